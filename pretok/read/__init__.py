"""Inputs -> partitions -> batches of documents as Arrow arrays, with the rejected records and why.

paths.py            paths, globs and URLs -> the paths they stand for
files.py            input files: open, decompress, notice changes
recognise.py        paths -> input files, recognised by content
sample/             the text shipped with the package
probe.py            inputs -> how much text they hold, and which fields they have
partition.py        inputs -> partitions, planned from sizes
source_plan.py      the partitions of a source on disk, and later the records that each piece gave
readers.py          a partition -> batches of documents, any format
format.py           what a format is: recognise, probe, split, read
formats/            Parquet, Arrow, JSON Lines, plain text: a module each
fill.py             their text in a buffer
whole_records.py    the text of a file -> spans of whole records, none too long
kept.py             fields that are kept beside the text, by type
batches.py          batches of documents as Arrow arrays
normalize.py        text -> normalized text
prefetch.py         an iterator in a thread, a few items ahead of its consumer
record_format.py    settings: how records become documents
rejects.py          why records are rejected; sources that gave too little
rejects_file.py     rejected records on disk: of a partition, then of a source
damage.py           damaged files: named, read again once they are repaired, or left out whole
"""
