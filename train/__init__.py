"""The companion trainer: shards made by `pretok` -> checkpoints of a Llama-style model.

Needs torch, numpy and safetensors; sees of `pretok` only stream, loader, manifest, storage, stop and errors.
"""
