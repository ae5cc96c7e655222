"""Counts -> merges -> a vocabulary, with superwords if asked for, and a report of what it costs.

pairs.py          pairs of tokens and where they occur, for bpe
bpe.py            counts -> merges
chains.py         documents -> chains of tokens -> merges of superwords
chain_task.py     a partition -> a file of chains
superword_job.py  the job: chains of all partitions -> superwords in the place of the last entries
cost.py           what a vocabulary costs, from counts alone
job.py            the job: counts -> merges -> tokenizer.json and a report
"""
