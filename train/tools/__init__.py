"""What is asked before a run.

- memory.py: how much of a device's memory a run takes
- search.py: the fastest mesh, batch and recomputation that fit
- plan.py: memory, time, energy
- tune.py: short trials -> the fastest settings
- compare.py: vocabularies, by bits per byte at equal compute; the command
- compare_runs.py: what each run is, and the processes that do them
- compare_text.py: the same documents in the same order for every arm
- compare_point.py: one run, in a process of its own
- compare_read.py: points -> Parquet, table, picture
"""
