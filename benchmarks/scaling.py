"""How cost grows: memory with the size of one file, time with the corpus, idle time with uneven files.

Output: peak memory of a worker for inputs of different sizes and a 20 MB document; seconds and memory at 1, 3 and 10
times as much text and 1 and 2 workers; the idle share where one file holds most of the text.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.end_to_end import job
from benchmarks.inputs import Inputs
from benchmarks.measure import medians

COPIES = (1, 3, 10)


def measure_memory(inputs: Inputs) -> dict[str, Any]:
    """Peak resident MB of the worker."""
    large = inputs.folder / "twice.jsonl"
    if not large.exists():
        with large.open("wb") as file:
            for _ in range(2):
                file.write(inputs.plain.read_bytes())
    group = inputs.folder / "one-row-group.parquet"
    if not group.exists():
        texts = pa.concat_tables([pq.read_table(path) for paths in inputs.parquet.values() for path in paths])
        thrice = pa.concat_tables([texts] * 3).cast(pa.schema([("text", pa.large_string())]))
        pq.write_table(thrice, group, row_group_size=len(thrice), compression="zstd")
    cases = {
        "row_group_of_850_mb": [str(group)],
        "one_zst_of_300_mb": [str(inputs.single)],
        "plain_300_mb": [str(inputs.plain)],
        "plain_600_mb": [str(large)],
        "document_of_20_mb": [str(inputs.long)],
    }
    jobs = {name: job(inputs, {"all": paths}, 1) for name, paths in cases.items()}
    return {name: done["worker_peak_mb"] for name, done in jobs.items()}


def measure_scaling(inputs: Inputs, runs: int) -> dict[str, Any]:
    """Seconds, MB/s and peak MB by multiples of the corpus (`Inputs.grown`) and workers, in turns; one worker is
    confined to one core."""
    curve = {}
    for copies in COPIES:
        done: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        for _ in range(runs if copies < max(COPIES) else 1):  # a long run has its own median
            for workers, jobs in done.items():
                jobs.append(job(inputs, inputs.grown(copies), workers, cpus=workers))
        for workers, jobs in done.items():
            curve[f"{copies}x_{workers}_workers"] = {
                key: medians(jobs)[key]
                for key in ("text_mb", "seconds", "mb_s", "idle_share", "worker_peak_mb")
            }
    return {
        "curve": curve,
        "two_workers_over_one": {
            f"{copies}x": curve[f"{copies}x_2_workers"]["mb_s"] / curve[f"{copies}x_1_workers"]["mb_s"]
            for copies in COPIES
        },
        "one_worker_two_cores": job(inputs, inputs.grown(3), 1, cpus=2)["mb_s"],
    }


def measure_balance(inputs: Inputs) -> dict[str, Any]:
    """A large and a small file, two workers: share of their time that the workers have no task."""
    small = str(inputs.slices[0])
    cases = {"plain": str(inputs.plain), "zst": str(inputs.single)}
    jobs = {name: job(inputs, {"all": [path, small]}, 2) for name, path in cases.items()}
    return {name: {key: done[key] for key in ("idle_share", "mb_s")} for name, done in jobs.items()}
