"""The exact order of a stream in other trainers.

Input: a `View` of `pretok.stream`, and the trainer's ranks and batches. Output: the loader, dataset or trainer class
that the trainer accepts. Each module imports its trainer and torch, so import it only where that runs.

In all of them round k is the next `ranks * micro_batch` positions, of which each data-parallel rank reads
`micro_batch`. So an optimizer step reads the same sequences for any ranks, micro-batch, accumulation and workers, and
the state of a loader is one position.

In this folder:

    pytorch.py       for any loop in torch or accelerate; the others, and the examples of docs/trainers.md, build on it
    transformers.py  a Trainer
    megatron.py      a dataset for Megatron-core
    checks.py        checks before the first step
"""
