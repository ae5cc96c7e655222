"""Where the ranks are and what each of them holds.

- devices.py: accelerators, their backends and peaks
- mesh.py: ranks, meshes, sharding, checkpointing of activations
"""
