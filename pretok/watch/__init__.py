"""WORK as its jobs left it -> how far they are, told on a login node.

status.py  what is finished, unfinished, failed or in work, and what to do next
"""
