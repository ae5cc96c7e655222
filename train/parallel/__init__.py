"""Parallelism: which ranks exist, and what each of them holds.

devices.py      accelerators, their backends and peaks
layout.py       how ranks, a global batch and the blocks are divided
group.py        the process group, the run's folder, and a common end for all ranks
mesh.py         the mesh of the ranks, its parameters, and communication of gradients
parallelize.py  a model split over the mesh: products, float8, recomputation, compilation, FSDP
context.py      context parallelism, sequences shared by ranks
pipeline.py     pipeline parallelism, blocks divided over ranks
"""
