"""Documents that may not be wanted: texts of benchmarks, and copies of others. Found exactly, named or refused.

benchmark.py  a folder of benchmark items; batches of documents -> the share of an item that each holds
copies.py     hashes of documents -> which is a copy of which
removed.py    texts that were removed and must not come back
screening.py  batches of documents -> the same without what is refused, and with what was found
"""
