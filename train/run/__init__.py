"""Settings -> a run, through any number of interruptions, and what it says of itself.

- report: lines for a person, never a minute of silence
- failures: no memory, space or package -> one line
- metrics: a line a step, MFU, goodput
- setup: settings -> something that can be trained
- loop: the run
"""
