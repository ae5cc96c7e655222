"""A tokenizer.json, and text -> token ids exactly as `tokenizers` gives them.

tokenizer_file.py  a tokenizer.json of any origin -> its checked contents; how it spells bytes
vocabulary.py      merges -> tokenizer.json; any byte-level tokenizer.json -> a vocabulary
reference.py       texts -> token ids by tokenizers, long ones word by word
encoder.py         texts -> token ids, as tokenizers gives them, fast
decode.py          token ids -> texts, whole arrays at a time
kinds.py           kinds of tokens in a conversation
vocab_map.py       from an old vocabulary to one that extends it
"""
