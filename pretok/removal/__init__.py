"""Remove documents from finished shards; everything else stays in place.

select.py   a condition or a list of names -> the documents, with every copy of their texts
reach.py    these documents -> which mixes read them how often, and which other files hold them
job.py      overwrite tokens, rewrite ledgers and annotations, seal the folder again; all or nothing
"""
