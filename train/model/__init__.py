"""The decoder: a batch of tokens -> logits -> loss; it knows nothing of parallelism, checkpoints or settings.

- sizes: presets and TOML -> a model's sizes
- transformer: the decoder
- loss: next-token loss without the whole matrix of logits
"""
