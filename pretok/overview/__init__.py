"""The state of WORK and of runs, and what is to come, for a person.

status.py   what is finished, unfinished, failed or running, and the next command
history.py  logs and the records of a run, read back
forecast/   a recipe -> estimates, from a small sample of each source
report/     WORK and a run -> one HTML page
"""
