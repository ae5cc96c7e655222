"""The exact order of a stream inside the trainers of others.

Input: a `View` of `pretok.stream`, and what the trainer says of its ranks and batches. Output: the loader, dataset or
trainer class that it takes. A module here imports its trainer and torch, so import it only where that runs.

Everywhere round k is the next `ranks * micro_batch` positions, of which each data-parallel rank reads `micro_batch`. So
an optimizer step reads the same sequences for any ranks, micro-batch, accumulation and workers, and the state of a
loader is one position.

In this folder:

    pytorch.py       any loop of torch or accelerate; the others, and the examples of docs/trainers.md, are built on it
    transformers.py  a Trainer
    megatron.py      a dataset for Megatron-core
    checks.py        what is refused before the first step
"""
