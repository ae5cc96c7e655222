"""Settings -> a run, through any number of interruptions, and what it says of itself.

- report.py: lines for a person, never a minute of silence
- failures.py: no memory, space or package -> one line
- lines.py: the one writer of a run's lines
- goodput.py: what the time was spent on
- metrics.py: a line a step, MFU
- stragglers.py: which rank is slow
- phases.py: what is in force at which step, and what may go on with it
- changes.py: what was changed in mid-run
- setup.py: settings -> something that can be trained
- start.py: what the loop works on
- loop.py: the run
"""
