"""Settings -> a run, through any number of interruptions, and what it says of itself.

- report.py: lines for a person, never a minute of silence
- failures.py: no memory, space or package -> one line
- memory.py: what held a GPU's memory when it ran out
- metrics.py: a line a step, MFU, goodput
- setup.py: settings -> something that can be trained
- loop.py: the run
"""
