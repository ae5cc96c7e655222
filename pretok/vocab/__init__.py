"""Counts -> merges -> a vocabulary, and a report of what it costs.

bpe.py         words and their counts -> merges
extend.py      an existing tokenizer and merges that go on -> the same tokenizer with more entries
cost.py        what a vocabulary costs, from counts alone
records.py     what report.json holds
planned.py     how much text of each source is planned: what figures are weighed by
entries.py     uses of entries -> how evenly they are used, which are rare, which are only steps
compare.py     held-out texts x any tokenizers -> what each costs
report.py      all that was measured -> the report
show.py        the report -> tables
job.py         the job: counts -> merges -> tokenizer.json and a report
"""
