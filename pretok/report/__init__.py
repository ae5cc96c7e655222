"""WORK, and a run if there is one -> one page that opens from disk without a network.

values.py    columns of ledgers -> documents and tokens of each value
frequencies.py  shards -> how often each entry of the vocabulary stands in them
gather.py    what jobs left on disk -> typed facts
history.py   logs of jobs, and what a run wrote -> what happened when
charts.py    numbers -> inline SVG
page.py      facts -> HTML
page.html    its template
"""
