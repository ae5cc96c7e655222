"""Vocabularies on the same text -> which of them models learn better with, at equal training compute.

- text.py: the same documents in the same order for every vocabulary
- point.py: one run, in a process of its own
- report.py: points -> Parquet, table, picture
- command.py: what is asked for, and the processes that do the runs that are missing
"""
