"""The decoder: a batch of tokens -> logits -> loss; it knows nothing of parallelism, checkpoints or settings.

- sizes.py: presets and TOML -> a model's sizes
- attention.py: attention inside of sequences or documents, and which kernel computes it
- transformer.py: the decoder
- loss.py: next-token loss without the whole matrix of logits
"""
