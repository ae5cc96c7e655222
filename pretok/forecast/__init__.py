"""A recipe -> what it will give, from a few megabytes of each source, before any node-hour is spent.

windows.py     the inputs of a source -> evenly spread windows of text
vocabulary.py  a recipe -> the vocabulary to count with: its own, or one trained on samples
measure.py     windows -> what they hold: documents, text, tokens, rejects
estimate.py    measured windows -> whole sources, with intervals; sources and a mix -> epochs
job.py         the job: a recipe -> a forecast, its JSON and its tables
"""
