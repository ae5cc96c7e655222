"""Finished work, opened by a program or a notebook: `pretok.open(WORK)`.

work.py  WORK -> sources, counts, documents, texts, rejects, the mix and the vocabulary's report
rows.py  rows read when they are asked for, as Arrow, pandas or polars
"""
