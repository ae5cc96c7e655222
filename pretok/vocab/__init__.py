"""Counts -> merges -> a vocabulary, and a report of what it costs.

bpe.py         words and their counts -> merges
extend.py      an existing tokenizer and further merges -> the same tokenizer with more entries
measure.py     vocabularies x text -> uses of their entries, and what these cost
records.py     the contents of report.json
planned.py     how much text of each source is planned: what figures are weighed by
report.py      measurements -> the report, and its tables
job.py         the job: counts -> merges -> tokenizer.json and a report
"""
