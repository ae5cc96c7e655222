"""Counts -> merges -> a vocabulary, and a report of what it costs.

bpe.py         words and their counts -> merges
extend.py      an existing tokenizer and merges that go on -> the same tokenizer with more entries
measure.py     vocabularies x text -> uses of their entries, and what these cost
records.py     what report.json holds
planned.py     how much text of each source is planned: what figures are weighed by
report.py      all that was measured -> the report, and its tables
job.py         the job: counts -> merges -> tokenizer.json and a report
"""
