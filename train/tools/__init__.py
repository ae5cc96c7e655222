"""What is asked before a run.

- plan: memory, time, energy
- tune: short trials -> the fastest settings
"""
