"""Where the ranks are and what each of them holds.

- devices.py: accelerators, their backends and peaks
- ending.py: what ends one rank ends all, with its words
- mesh.py: ranks, meshes, sharding, checkpointing of activations
- stages.py: which blocks are in which stage of a pipeline, and what waiting costs
- pipeline.py: the blocks divided over ranks
"""
