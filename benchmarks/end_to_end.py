"""`pretok tokenize` as it runs: plan, tasks, seal, manifest.

Input: inputs by source. Output: the speed without start-up, which is the workers, their imports and their tokenizer: a
first tiny job in the same engine bears it. The word caches are still empty after it.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, fresh, in_turns, timed
from pretok.base.console import NO_CONSOLE, Console
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.config import Recipe, make_recipe
from pretok.shards.manifest import load_manifest
from pretok.shards.tokenize_job import run_tokenize


def recipe_of(sources: dict[str, list[str]], vocab: Path, out: Path, size: str | int = 0) -> Recipe:
    """A recipe without any option but the size of a shard; what is in `out` is removed."""
    shutil.rmtree(out, ignore_errors=True)
    tables = {name: {"inputs": paths} for name, paths in sources.items()}
    settings = {"out": out, "sources": tables, "vocab": {"path": vocab}, "shards": {"size": size}}
    return make_recipe(settings, "benchmark")


def tiny_files(folder: Path, number: int) -> list[str]:
    """Files of one short document each."""
    paths = [folder / f"tiny-{k}.jsonl" for k in range(number)]
    for path in paths:
        path.write_text(json.dumps({"text": "ciao"}) + "\n", encoding="utf-8")
    return [str(path) for path in paths]


class _Workers(Console):
    """Keeps what the log says of the workers of the last step."""

    def event(self, name: str, /, **details: Any) -> None:
        if name == "workers":
            self.workers = details


def run_job(
    sources: dict[str, list[str]], tiny: list[str], vocab: Path, folder: Path, size: str | int = 0
) -> Row:
    """Tokenize in an engine of this process, with a worker for each of the files `tiny`: or, for one, without any."""
    workers = len(tiny) if len(tiny) > 1 else 0
    began = time.perf_counter()
    with StopFlag() as stop, Engine(workers, None, stop) as engine:
        warm = recipe_of({f"w{k}": [path] for k, path in enumerate(tiny)}, vocab, folder / "warm")
        run_tokenize(warm, engine, NO_CONSOLE)
        startup = time.perf_counter() - began
        recipe = recipe_of(sources, vocab, folder / "out", size)
        console = _Workers()
        spent, _ = timed(lambda: run_tokenize(recipe, engine, console))
        again, _ = timed(lambda: run_tokenize(recipe, engine, NO_CONSOLE))
    totals = load_manifest(recipe.shards_dir).totals
    shutil.rmtree(folder / "out")
    return {
        "MB/s": totals.bytes / 1e6 / spent["s"],
        "s": spent["s"],
        "driver's CPU s": spent["CPU s"],
        "s again, nothing to do": again["s"],
        "start-up s": startup,
        "bytes per token": totals.bytes / totals.tokens,
        "idle share": console.workers["idle"],
        "worker's peak MB": console.workers["peak_bytes"] / 1e6,
    }


def measure(inputs: Inputs) -> Table:
    """From .jsonl.zst and from Parquet with two workers; in one process on one core."""
    two, one, vocab = tiny_files(inputs.folder, 2), tiny_files(inputs.folder, 1), inputs.vocab
    zst, parquet = inputs.zst, inputs.parquet
    table = in_turns(
        {
            ".jsonl.zst, 2 workers": lambda: fresh(run_job, zst, two, vocab, inputs.folder),
            "Parquet, 2 workers": lambda: fresh(run_job, parquet, two, vocab, inputs.folder),
            ".jsonl.zst, one core": lambda: fresh(run_job, zst, one, vocab, inputs.folder, cpus=1),
        },
        inputs.runs,
    )
    for name, sources in zip(table, (zst, parquet, zst), strict=True):
        stored = sum(Path(path).stat().st_size for paths in sources.values() for path in paths)
        table[name]["bytes of text per stored byte"] = table[name]["MB/s"] * table[name]["s"] * 1e6 / stored
    return table
