"""Remove documents from finished shards; everything else stays in place.

select.py      a condition or a list of names -> the documents, with every copy of their texts
reach.py       these documents -> their counts, and which other files hold something of them
remove_job.py  overwrite tokens, rewrite ledgers and annotations, seal the folder again; all or nothing
"""
