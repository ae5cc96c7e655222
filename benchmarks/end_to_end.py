"""`pretok tokenize` as it runs: Ray, plan, tasks, seal, manifest.

Input: inputs by source. Output: seconds of start-up and of work. Start-up is Ray, the worker processes, their imports
and their tokenizer: a first tiny job in the same engine bears it. The word caches are still cold after it.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians
from pretok.base.console import SILENT
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.config import Recipe, make_recipe
from pretok.shards.job import run_tokenize
from pretok.shards.manifest import load_manifest


def recipe_of(sources: dict[str, list[str]], vocab: Path, out: Path, size: str | int = 0) -> Recipe:
    """A recipe without any option but the size of a shard; what lies in `out` is removed."""
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


def warm_up(engine: Engine, tiny: list[str], vocab: Path, folder: Path) -> None:
    """A first job, which bears the start-up: a task for each of the files."""
    recipe = recipe_of({f"w{k}": [path] for k, path in enumerate(tiny)}, vocab, folder / "warm")
    run_tokenize(recipe, engine, SILENT)


def run_job(sources: dict[str, list[str]], vocab: Path, folder: Path, workers: int) -> dict[str, float]:
    """Tokenize in this process's own Ray; MB/s of text without start-up, and what the tasks used."""
    began = time.perf_counter()
    with StopFlag() as stop, Engine(workers, None, stop) as engine:
        warm_up(engine, tiny_files(folder, workers), vocab, folder)
        recipe = recipe_of(sources, vocab, folder / "out")
        started = time.perf_counter()
        summary = run_tokenize(recipe, engine, SILENT)
        ended = time.perf_counter()
    totals = load_manifest(recipe.shards_dir).data["totals"]
    shutil.rmtree(folder / "out")
    return {
        "mb_s": totals["bytes"] / 1e6 / (ended - started),
        "seconds": ended - started,
        "startup_seconds": started - began,
        "text_mb": totals["bytes"] / 1e6,
        "compressed_mb": sum(Path(path).stat().st_size for paths in sources.values() for path in paths) / 1e6,
        "tokens": float(totals["tokens"]),
        "idle_share": summary.idle,
        "worker_peak_mb": summary.peak / 1e6,
    }


def job(
    inputs: Inputs, sources: dict[str, list[str]], workers: int, cpus: int | None = None
) -> dict[str, float]:
    """`run_job` in a fresh process."""
    return fresh(run_job, sources, inputs.vocab, inputs.folder, workers, cpus=cpus)


def measure_end_to_end(inputs: Inputs, runs: int) -> dict[str, Any]:
    """From .jsonl.zst and Parquet with two workers; one worker confined to one core."""
    cases: dict[str, list[dict[str, float]]] = {"two_workers": [], "two_workers_parquet": [], "one_core": []}
    for _ in range(runs):
        cases["two_workers"].append(job(inputs, inputs.zst, 2))
        cases["two_workers_parquet"].append(job(inputs, inputs.parquet, 2))
        cases["one_core"].append(job(inputs, inputs.zst, 1, cpus=1))
    return {name: medians(results) for name, results in cases.items()}
