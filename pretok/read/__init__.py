"""Inputs -> partitions -> batches of documents as Arrow arrays, with the rejected records and why.

paths.py            paths, globs and URLs -> the paths they stand for
files.py            input files: open, decompress, notice changes
recognise.py        paths -> input files, recognised by content
sample/__init__.py  the text shipped with the package
probe.py            inputs -> how much text they hold, and which fields they have
partition.py        inputs -> partitions, planned from sizes
changes.py          what has changed since a result was made
spans.py            blocks of bytes -> spans of whole records, none too long
jsonl.py            JSON Lines -> texts and kept columns, in Numba
kept.py             fields that are kept beside the text, by type
tables.py           Parquet and Arrow files -> columns of text
batches.py          batches of documents as Arrow arrays
normalize.py        text -> normalized text
prefetch.py         an iterator in a thread, a few items ahead of its consumer
conversation.py     how messages, or several fields, become documents
readers.py          a partition -> batches of documents, any format
partition_runs.py   one task per partition: shared by counting and tokenizing
rejects.py          why records are rejected; sources that gave too little
"""
