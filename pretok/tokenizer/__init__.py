"""A tokenizer.json, and text -> token ids exactly as `tokenizers` gives them.

tokenizer_file.py   a tokenizer.json of any origin -> its checked contents
vocabulary.py       merges -> tokenizer.json; any byte-level tokenizer.json -> a vocabulary
segments.py         which words superwords may join: a pattern and a rule
stages.py           a superword vocabulary -> its two stages
reference.py        texts -> token ids by tokenizers, long ones word by word
superword_runs.py   runs of ids, merged by the pairs of superwords
superword_merge.py  ids of words -> ids of superwords
encoder.py          texts -> token ids, as tokenizers gives them, fast
decode.py           token ids -> texts, whole arrays at a time
"""
