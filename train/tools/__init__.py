"""What is asked before a run.

- plan.py: memory, time, energy
- tune.py: short trials -> the fastest settings
"""
