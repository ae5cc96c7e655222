"""WORK, a mix of it or a run -> what was trained on, in the parts of the public summary that the EU AI Act asks for.

read.py       shards, mix or run -> which tokens of each source are read, and how often
count.py      ledgers and what is read of them -> exact figures of each source
summary.py    figures -> the parts of the summary; what no file knows is a named blank
answers.py    what a person answers -> the blanks
domains.py    hosts -> registrable domains, all of them, as CSV
register.py   reserved domains -> what of them is held, read, refused and removed
croissant.py  the summary -> Croissant 1.1
job.py        all of it, as JSON, HTML or Croissant
page.html     the template of the page
"""
