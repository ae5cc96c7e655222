"""Settings -> a run, through any number of interruptions, and what it says of itself.

- report.py: lines for a person, never a minute of silence
- failures.py: no memory, space or package -> one line
- goodput.py: what the time was spent on
- metrics.py: a line a step, MFU
- setup.py: settings -> something that can be trained
- loop.py: the run
"""
