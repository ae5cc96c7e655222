"""A run reads from an object store what it reads from files."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from support import needs

needs("torch")
from store_server import BUCKET, environment, serve

from pretok.base.storage import read_lines
from tests.train_support import column, mix_of, random_shards, run_jobs, tiny_flags

URL = f"s3://{BUCKET}"


def use(values: dict[str, str]) -> None:
    os.environ.update(values)


def test_a_run_reads_from_a_store_what_it_reads_from_files(tmp_path: Path) -> None:
    """Two ranks that share a cache, with loader threads and validation."""
    bucket = tmp_path / "bucket"
    shards = random_shards(bucket / "shards")
    mix_of(shards, bucket / "mix.json", (20, 44))
    for folder in ("local", "far"):
        (tmp_path / folder).mkdir()
    more: dict[str, Any] = {"workers": 1, "micro_batch": 2, "val_every": 4, "val_sequences": 8}
    local = tiny_flags(shards, tmp_path / "local", mix=str(bucket / "mix.json"), **more)
    more |= {"cache": str(tmp_path / "cache"), "cache_bytes": 1 << 24, "mix": f"{URL}/mix.json"}
    far = tiny_flags(f"{URL}/shards", tmp_path / "far", **more)  # type: ignore[arg-type]
    with serve(bucket) as server:
        run_jobs([(2, local), (2, far)], tmp_path, before=partial(use, environment(server)))
        assert server.gets()
    for name in ("data_hash", "loss"):
        assert column(tmp_path / "far" / "run", name) == column(tmp_path / "local" / "run", name)
    here, there = (read_lines(tmp_path / one / "run" / "validation.jsonl") for one in ("local", "far"))
    assert [line["val_loss"] for line in here] == [line["val_loss"] for line in there]
    [segment] = read_lines(tmp_path / "far" / "run" / "segments.jsonl")
    assert (segment["shards"], segment["mix"]) == (f"{URL}/shards", f"{URL}/mix.json")
