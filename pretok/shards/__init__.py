"""Batches of documents -> token ids -> sealed shards with one manifest.

The files:
shard_file.py        a shard: its manifest entry, the bytes of .bin and .idx
spans.py             .spans: the kind of each token of a conversation
ledger.py            .docs.parquet: a row per document
writer.py            encoded documents -> the files of one shard
manifest.py          manifest.json: what a shards folder holds
inputs.py            the inputs of a sealed source as a table, with the records that each piece gave
contamination.py     the results of a search for benchmark items
annotations.py       columns that were joined to documents afterwards

The job:
tokenize_job.py      plan, tokenize, seal
plan.py              the plan of one source, kept on disk
copies_job.py        which documents are copies of earlier ones, found before tokenizing
tokenize_task.py     a partition -> sealed shards and a record: the task of a worker
encode.py            batches -> token ids, of which `tokenizers` encodes a sample again before a shard is sealed
partition_record.py  the record of a partition that is done
seal.py              shards and records -> few files and one manifest
unfinished.py        what is not finished yet

Readers:
document_table.py    the table of documents: their place, their ledger, joined columns
names.py             hash, id or FILE:LINE -> documents
texts.py             a shard -> the texts of its documents
values.py            the host of an address, in SQL
"""
