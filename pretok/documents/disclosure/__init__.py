"""WORK, a mix or a run -> what was trained on, in the sections of the EU AI Office's template for the public summary.

read.py          shards, mix or run -> which tokens of each source are read, and how often
figures.py       ledgers and what is read of them -> exact sums, in a table of DuckDB
summary.py       sums and a person's answers -> the summary, one record; unknown values are named blanks
domains.py       hosts -> registrable domains, as CSV, and what was read of reserved ones
card.py          the summary -> the dataset card of the Hugging Face hub, README.md
spdx.py          the summary -> an SPDX 3.0 document
disclose_job.py  all of these, as JSON, HTML, Markdown, CSV or SPDX
page.html        the template of the page; card.md that of the card
"""
