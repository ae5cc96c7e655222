"""Counts -> merges -> a vocabulary, and a report of what it costs.

cells.py          words -> a row of cells, and how often each occurs
pairs.py          pairs of tokens and where they occur, for bpe
first_pairs.py    words -> the pairs that merging begins with
bpe.py            counts -> merges
cost.py           what a vocabulary costs, from counts alone
records.py        what report.json holds
planned.py        how much text of each source is planned: what figures are weighed by
entries.py        uses of entries -> how evenly they are used, which are rare, which are only steps
alphabets.py      the letters of Europe -> how many tokens each takes
compare.py        held-out texts x any tokenizers -> what each costs
report.py         all that was measured -> the report
show.py           the report -> tables
job.py            the job: counts -> merges -> tokenizer.json and a report
"""
