"""Inputs -> partitions -> batches of documents as Arrow arrays, with what was refused and why.

paths.py            paths, globs and URLs -> the paths they stand for
files.py            input files: open, decompress, notice changes
recognise.py        paths -> input files, recognised by content
sample/__init__.py  the text shipped with the package
guarded.py          a function over items in a process of its own, which a library may end
probe.py            inputs -> how much text they hold, whether the field is there, the types of what is kept
partition.py        inputs -> partitions, planned from sizes
changes.py          what changed since a result was made, by name
spans.py            blocks of bytes -> spans of whole records, none too long
jsonl.py            JSON Lines -> texts and what is kept beside them, in Numba
kept.py             what is kept of a record beside its text, by type
tables.py           Parquet and Arrow files -> columns of text
batches.py          batches of documents as Arrow arrays
normalize.py        text -> normalized text
prefetch.py         an iterator in a thread, a few items ahead of its consumer
conversation.py     how messages, or several fields, become documents
readers.py          a partition -> batches of documents, any format
partition_runs.py   one task a partition: what counting and tokenizing share
rejects.py          why records are refused; sources that gave too little
"""
