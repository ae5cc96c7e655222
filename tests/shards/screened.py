"""Helpers of the tests that tokenize with a benchmark or without copies: inputs, rejects, rows of ledgers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pretok.config import Recipe
from pretok.shards.manifest import load_manifest


def write(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def rejects(made: Recipe, source: str) -> list[dict[str, Any]]:
    paths = load_manifest(made.shards_dir).rejects(source)
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def rows(made: Recipe, source: str) -> list[dict[str, Any]]:
    """The ledgers of a source, train and val, by file and record."""
    found = []
    for shard in load_manifest(made.shards_dir).shards:
        if shard.source == source:
            found += pq.read_table(shard.ledger_path).to_pylist()
    return sorted(found, key=lambda row: (row["file"], row["start"], row["record"]))
