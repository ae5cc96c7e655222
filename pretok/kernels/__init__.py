"""Compiled loops over bytes of text (words, hashes, classes of code points) and over lengths; exact and stateless.

compile.py      compilation and its cache
characters.py   names of the bytes that loops look for
eight_bytes.py  eight bytes at a time, for compiled loops over text
hashing.py      documents -> 64-bit hashes, seeded selections
unicode.py      classes of code points
pretokenize.py  documents -> words, by the published patterns
folding.py      code points without case, accents and compatibility forms
ngrams.py       runs of words that two sets of texts share, whatever their case and accents
packing.py      lengths of documents -> bins of a capacity
"""
