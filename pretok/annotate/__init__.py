"""Tables made by other tools -> columns of documents that are tokens already, found by a key.

request.py     what to join to which documents, checked first
values.py      files -> rows, one type a column
keys.py        the columns of a key -> one number of 128 bits a row
spill.py       rows as they come -> few files on disk, by key
index_task.py  the rows of one such file -> sorted by key, each key once: the task
rows.py        all rows on disk, sorted by key
join_task.py   shards in a row -> the row of every document: the task
unused.py      the rows that no document has the key of
job.py         the job, and the record that seals it
"""
