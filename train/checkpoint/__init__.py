"""From a training state to a checkpoint folder, which is complete or invisible, and back.

meta.py     the folder: meta.json, its files, their sizes and checksums
tensors.py  tensors by name, in pieces on any mesh
save.py     writes in the background, keeps the newest checkpoints
export.py   to transformers and back, with the tokenizer of the shards
"""

from __future__ import annotations

from pretok.base.errors import Stopped


class HungSave(Stopped):
    """A save was given up. Its thread may never end, so the process must exit without waiting for it."""
