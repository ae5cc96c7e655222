"""Documents that may be unwanted: benchmark texts and copies of others. They are found exactly, and marked or rejected.

benchmark.py  a folder of benchmark items; batches of documents -> the share of an item that each holds
copies.py     hashes of documents -> which is a copy of which
removed.py    texts that were removed and must not come back
screening.py  batches of documents -> the same without what is refused, and with what was found
"""
