"""Recipes -> Slurm jobs; nodes -> what they can do.

chain.py       a recipe and a site's profile -> a chain of Slurm jobs
node_check.py  what each node of an allocation can do
"""
