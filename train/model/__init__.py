"""The decoder: a batch of tokens -> logits -> loss. It knows nothing of parallelism, checkpoints or settings.

sizes.py        presets and TOML -> the sizes of a model
attention.py    attention within sequences or documents, and the kernel that computes it
transformer.py  the decoder
loss.py         next-token loss without the full matrix of logits
"""
