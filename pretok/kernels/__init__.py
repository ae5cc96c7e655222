"""Compiled loops over bytes of text (words, hashes, classes of code points) and over lengths; exact and stateless.

compile.py      compilation and its cache
characters.py   names of the bytes that loops look for
eight_bytes.py  eight bytes at a time, for compiled loops over text
hashing.py      documents -> 64-bit hashes, seeded selections
unicode.py      classes of code points
pretokenize.py  documents -> words, by the published patterns
folding.py      what spellings of one text have in common: no case, accents, compatibility forms
ngrams.py       runs of words that two sets of texts share, however they are spelled
packing.py      lengths of documents -> bins of a capacity
"""
