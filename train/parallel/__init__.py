"""Where the ranks are and what each of them holds.

- devices.py: accelerators, their backends and peaks
- layout.py: how ranks, a global batch and the blocks are divided
- group.py: the process group, the run's folder, and one end for all ranks
- mesh.py: the ranks' mesh, parameters filled on it, gradients communicated
- parallelize.py: a model split over it: products, float8, recomputation, compilation, FSDP
- context.py: the sequences that ranks share
- pipeline.py: the blocks divided over ranks
"""
