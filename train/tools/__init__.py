"""What is asked before a run.

- memory.py: how much of a device's memory a run takes
- plan.py: memory, time, energy
- tune.py: short trials -> the fastest settings
"""
