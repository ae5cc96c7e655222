"""Datasets on a hub, read by `datasets` in streaming mode where the network is there.

Enters: `hub:ID[:CONFIG[:SPLIT]]`. Leaves: the streaming dataset; its `num_shards` says in how many parts it is read.
"""

from __future__ import annotations

from typing import Any

from pretok.base.errors import UsageError
from pretok.read.paths import HUB


def open_hub(path: str) -> Any:
    """The streaming dataset a hub path names (default: its only config, split train). UsageError if it can't be had."""
    from datasets import load_dataset

    name, config, split, *more = [*path.removeprefix(HUB).split(":"), "", ""]
    if not name or any(more):
        raise UsageError(f"{path!r} is not hub:ID, hub:ID:CONFIG or hub:ID:CONFIG:SPLIT")
    try:
        return load_dataset(name, config or None, split=split or "train", streaming=True)
    except Exception as error:  # the library raises whatever its transport raised
        raise UsageError(f"cannot open {path}: {type(error).__name__}: {error}") from error
