"""Benchmarks, run by hand and by the tests at tiny size only: `python -m benchmarks --help`."""
