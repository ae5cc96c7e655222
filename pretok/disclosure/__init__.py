"""WORK, a mix of it or a run -> what was trained on, in the parts of the public summary that the EU AI Act asks for.

read.py       shards, mix or run -> which tokens of each source are read, and how often
figures.py    ledgers and what is read of them -> exact sums, in a table of DuckDB
summary.py    sums and a person's answers -> the summary, one record; what no file knows is a named blank
domains.py    hosts -> registrable domains, all of them, as CSV
register.py   reserved domains -> what of them is held, read, refused and removed
card.py       the summary -> README.md of a data set, as the hub reads it
job.py        all of it, as JSON, HTML, Markdown or CSV
page.html     the template of the page; card.md that of the card
"""
