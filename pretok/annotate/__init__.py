"""Tables made by other tools -> columns of documents that are tokens already, found by a key.

rows.py  files of rows -> tables, one type a column
job.py   what may be asked for, the join in SQL, and the record that seals it
"""
