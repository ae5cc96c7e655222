"""WORK as its jobs left it -> how far they are, told on a login node.

lines.py   how far jobs and runs are, while they work
status.py  what is finished, unfinished, failed or in work, and what to do next
"""
