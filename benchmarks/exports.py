"""Shards in the formats of others: how fast they are written, beside a plain copy of the same bytes.

Input: random tokens as a shard. Output: megabytes of ids a second, one process, for each format that `pretok export`
writes, to the disk; and of copying the file with the library's own call, flushed too. The source is in memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians

TOKENS = 300_000_000
MERGE = 10 << 30
"""Bytes of a file for Megatron, as its guide wants them."""


def run_exports(folder: Path) -> dict[str, float]:
    """Each format once, from shards in `folder`."""
    from pretok.base.console import SILENT
    from pretok.base.execute import Engine
    from pretok.base.stop import StopFlag
    from pretok.export.formats import FORMATS
    from pretok.export.job import run_export
    from pretok.shards.manifest import load_manifest

    manifest = load_manifest(folder)
    [shard] = manifest.shards
    size = shard.bin_path.stat().st_size / 1e6
    copy = folder / "copy.bin"
    began = time.perf_counter()
    shutil.copyfile(shard.bin_path, copy)
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    found = {"a plain copy, flushed: MB/s": size / (time.perf_counter() - began)}
    copy.unlink()
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        for to in FORMATS:
            out = folder / f"for-{to}"
            began = time.perf_counter()
            run_export(manifest, to, out, MERGE if to == "megatron" else 0, {}, engine, SILENT)
            found[f"{to}: MB/s"] = size / (time.perf_counter() - began)
            shutil.rmtree(out)
    return found


def measure_exports(inputs: Inputs, runs: int) -> dict[str, Any]:
    """Medians of runs in processes of their own."""
    from benchmarks.train_shards import write_random_shards

    with tempfile.TemporaryDirectory(dir=inputs.folder) as name:
        folder = write_random_shards(Path(name) / "shards", TOKENS)
        return medians([fresh(run_exports, folder) for _ in range(runs)])
