"""The state of WORK, read from the files that its jobs left.

status.py  what is finished, unfinished, failed or running, and the next command
"""
