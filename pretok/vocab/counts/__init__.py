"""Batches of documents -> exact counts of every word, a lasting artifact in 64 buckets.

table.py        words -> counts, in memory
buckets.py      counted words on disk, in buckets
count_task.py   a partition -> counted words; counts of many files -> one bucket
counts_file.py  counts.json: what counts hold and what they were made from
count_job.py    the job: every word of every source, into 64 buckets
weigh.py        counts of several sources -> one weighted count a word
"""
