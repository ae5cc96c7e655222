"""Inputs -> partitions -> batches of documents as Arrow arrays, with the rejected records and why.

paths.py            paths, globs and URLs -> the paths they stand for
files.py            input files: open, decompress, notice changes
recognise.py        paths -> input files, recognised by content
sample/__init__.py  the text shipped with the package
probe.py            inputs -> how much text they hold, and which fields they have
partition.py        inputs -> partitions, planned from sizes
readers.py          a partition -> batches of documents, any format
format.py           what a format is: recognise, probe, split, read
formats.py          the formats by name
lines.py            JSON Lines
jsonl.py            lines -> texts and kept columns, in Numba
text.py             plain text
tables.py           what the formats of tables have in common
parquet.py          Parquet
arrow.py            Arrow files and streams
spans.py            blocks of bytes -> spans of whole records, none too long
kept.py             fields that are kept beside the text, by type
batches.py          batches of documents as Arrow arrays
normalize.py        text -> normalized text
prefetch.py         an iterator in a thread, a few items ahead of its consumer
conversation.py     settings: how records become documents
partition_runs.py   one task per partition: shared by counting and tokenizing
changes.py          what has changed since a result was made
rejects.py          why records are rejected; sources that gave too little
"""
