"""Where the ranks are and what each of them holds.

- devices.py: accelerators, their backends and peaks
- layout.py: how ranks, a global batch and the blocks are divided
- group.py: the process group, the run's folder, and one end for all ranks
- mesh.py: a model split over the ranks
- tensor.py: the products that ranks share
- context.py: the sequences that ranks share
- float8.py: products in float8
- recompute.py: activations that are computed again
- pipeline.py: the blocks divided over ranks
"""
