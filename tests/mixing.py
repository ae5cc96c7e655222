"""Manifests without files, and wishes for a mix as a user writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.train_shards import bare_contents
from pretok.shards.contents import ShardEntry
from pretok.shards.manifest import Manifest
from pretok.stream.mix_job import MixRequest
from pretok.stream.quota import parse_stage


def manifest_of(tokens: dict[str, int]) -> Manifest:
    """A manifest of sources of any size, one shard each; no file is behind it."""
    shards = [
        ShardEntry(f"{name}/{name}-00000.bin", name, "train", n, 1, 2 * n, 0, "", "")
        for name, n in tokens.items()
    ]
    return Manifest(Path("/x"), bare_contents(50_000, shards))


def request(*stages: str, **changes: Any) -> MixRequest:
    return MixRequest(tuple(parse_stage(stage) for stage in stages), **changes)
