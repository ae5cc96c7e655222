"""Documents that may not be wanted: texts of benchmarks, and copies of others. Found exactly, named or refused.

benchmark.py      a folder of benchmark items -> what is looked for
contamination.py  batches of documents -> the share of a benchmark item that each holds
copies.py         hashes of documents -> which is a copy of which
screening.py      batches of documents -> the same without what is refused, and with what was found
"""
