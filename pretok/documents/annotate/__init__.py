"""Join tables made by other tools to tokenized documents, by a key.

rows.py          files of rows -> tables, with one type per column
annotate_job.py  check the request, join in SQL, and write the record that seals the result
"""
