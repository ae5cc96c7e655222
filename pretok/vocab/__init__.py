"""Words -> counts -> merges -> a vocabulary, and a report of what it costs.

counts/             batches of documents -> exact counts of every word
bpe.py              words and their counts -> merges: the algorithm
symbols.py          words -> one array in which neighbours are joined
pairs.py            the pairs in it, and what a merge changes
extend.py           an existing tokenizer and further merges -> the same tokenizer with more entries
measure.py          vocabularies x text -> uses of their entries, and what these cost
report_file.py      the contents of report.json
report.py           measurements -> the report, and its tables
build_vocab_job.py  the job: counts -> merges -> tokenizer.json and a report
"""
