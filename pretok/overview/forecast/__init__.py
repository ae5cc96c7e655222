"""A recipe -> an estimate of its results, from a few megabytes of each source, before any node-hour is spent.

windows.py       the inputs of a source -> windows of text, evenly spread
vocabulary.py    a recipe -> the vocabulary to count with: its own, or one trained on a sample
measure.py       windows -> what they hold: documents, text, tokens, rejects
estimate.py      measured windows -> whole sources, with intervals; sources and a mix -> epochs
forecast_job.py  the job: a recipe -> a forecast, its JSON and its tables
"""
