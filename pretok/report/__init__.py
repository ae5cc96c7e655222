"""WORK, and a run if there is one -> one page that opens from disk without a network.

frequencies.py  shards -> how often each entry of the vocabulary stands in them
gather.py    what jobs left on disk -> typed facts
page.py      facts -> HTML
page.html    its template
"""
