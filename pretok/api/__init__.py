"""pretok from a program or a notebook: `pretok.build_vocab`, `pretok.tokenize`, `pretok.mix`, and `pretok.open(WORK)`.

make.py  inputs and settings -> vocabulary, shards, mix, as the commands make them
work.py  WORK -> sources, counts, documents, texts, rejects, the mix and the vocabulary's report
"""
