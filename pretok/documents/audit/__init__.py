"""Finished shards -> what they hold, and whether they are what was sealed.

totals.py       exact counts by source
inspection.py   one document as its tokens, and where it came from
find.py         documents by id, address, hash, file and line, by what they say, and at random
show.py         a document or a sequence of a mix as its tokens
query.py        SQL over ledgers, manifest, rejects and counts
trace.py        which positions and steps read a document, and which documents a position reads
verify_task.py  a shard -> its problems: the task of verify
verify_job.py   the job: a folder against its manifest
"""

VERIFY_DOCUMENTS = 300
"""How many documents verification encodes again where nobody says."""
