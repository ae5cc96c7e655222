"""Recipes -> Slurm jobs; checks of nodes.

chain.py       a recipe and a site profile -> a chain of Slurm jobs
node_check.py  is a node fit for a long job?
"""
