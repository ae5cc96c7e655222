"""Documents of finished shards -> the same shards without them, at the same places.

select.py   a predicate or a list of ids -> the documents, with every copy of their texts
reach.py    these documents -> which mixes read them how often, and what else holds them
job.py      overwrites tokens, rewrites what is known of the documents, seals the folder anew; whole or not at all
"""
