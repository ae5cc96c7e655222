"""Batches of documents -> token ids -> sealed shards with one manifest.

format.py      the bytes of .bin and .idx
spans.py       of which kind each token of a conversation is: the file beside a shard
ledger.py      what is known of each document: the Parquet file beside a shard
annotations.py  what was joined to documents afterwards: a second ledger
manifest.py    the sealed description of a shards folder: its file, and the records in it
contamination.py  what stands beside shards of the benchmark they were searched for
inputs.py      what a source is made of, as a table: its plan, and what each piece gave
plan.py        the plan of one source, kept on disk
copies_job.py  which documents are copies of earlier ones, settled before tokenizing
batching.py    small batches that are handled as one
sample.py      documents of a shard, encoded again by tokenizers before it counts
parts.py       what a worker leaves of a partition, a shard at a time
task.py        a partition -> sealed parts: the task a worker runs
unfinished.py  what is not finished, told in words
seal.py        sealed parts -> few files and one manifest
documents.py   what is known of documents as rows: their place, their ledger, what was joined to them
names.py       names of documents -> which documents they are
values.py      columns of ledgers -> documents and tokens of each value
texts.py       the texts of a shard, a few megabytes at a time
job.py         the job: plan, tokenize, seal
"""
