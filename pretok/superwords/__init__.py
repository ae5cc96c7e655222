"""Superwords: entries of a vocabulary that are sequences of words. Off by default, and then nothing here is imported.

Two stages before this one come here, by name: `pretok.tokenizer.reference.superwords_for` for a tokenizer.json that
joins words, and `pretok.vocab.job` for a recipe that asks for superwords.

segments.py     which words superwords may join: a pattern and a rule
stages.py       a superword vocabulary -> its two stages
encode.py       texts -> token ids: words, then superwords
chains.py       documents -> chains of tokens -> merges of superwords
chain_task.py   a partition -> a file of chains
job.py          the job: chains of all partitions -> superwords in the place of the last entries
"""
