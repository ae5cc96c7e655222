"""What is asked before a run.

- memory.py: how much of a device's memory a run takes
- search.py: the fastest mesh, batch and recomputation that fit
- plan.py: memory, time, energy
- tune.py: short trials -> the fastest settings
"""
