"""Where the ranks are and what each of them holds.

- devices: accelerators, their backends and peaks
- mesh: ranks, meshes, sharding, checkpointing of activations
"""
