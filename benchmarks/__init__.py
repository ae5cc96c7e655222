"""Benchmarks, run by hand and never by the tests: `python -m benchmarks --help`."""
