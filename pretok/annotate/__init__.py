"""Tables made by other tools -> columns of documents that are tokens already, found by a key.

values.py  files of rows -> tables, one type a column
keys.py    the columns of a key -> one number of 128 bits a row
join.py    rows and documents, by bucket of their keys -> the row of every document: the tasks, in SQL
job.py     what may be asked for, the job, and the record that seals it
"""
