"""The exact order of a stream inside the trainers of others.

Input: a `View` of `pretok.stream`, and what the trainer says of its ranks and batches. Output: the loader, dataset or
trainer class that it takes. A module here imports its trainer and torch, so import it only where that runs.

Everywhere round k is the next `ranks * micro_batch` positions, of which each data-parallel rank reads `micro_batch`. So
an optimizer step reads the same sequences for any ranks, micro-batch, accumulation and workers, and the state of a
loader is one position.

In this folder:

    pytorch.py       any loop of torch or accelerate; the others are built on it
    transformers.py  a Trainer
    torchtitan.py    a dataloader of its configuration
    megatron.py      a dataset for Megatron-core, and a loader for its type `external`
    olmo.py          a data loader of OLMo-core
    checks.py        what is refused before the first step
    digests.py       what each rank was handed, in a file; and the hashes of a run's steps from these
"""
