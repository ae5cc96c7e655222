"""WORK, and maybe a run -> one page that opens from disk without a network.

frequencies.py  shards -> how often each entry of the vocabulary occurs in them
gather.py       the files of jobs -> typed facts
page.py         facts -> HTML
page.html       its template
"""
