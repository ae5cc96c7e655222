"""How things are measured: in fresh processes, several times, with the machine named.

Input: functions of this package. Output: their results, medians of them, and `results.json`, where each section is
replaced when it is measured again.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from pretok.base.startup import collect_seldom

RESULTS = Path(__file__).with_name("results.json")
PACKAGES = (
    "gigatoken",
    "tokenizers",
    "datatrove",
    "datasets",
    "megatron-core",
    "ray",
    "pyarrow",
    "numba",
    "numpy",
)
Result = TypeVar("Result")


def fresh(
    function: Callable[..., Result],
    *args: Any,
    cpus: int | None = None,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> Result:
    """Call a top-level function in a new process, confined to `cpus` CPUs, with `env` set before its imports.

    `quiet` drops what it and its own processes print.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), _prepare, (cpus, dict(env or {}), quiet)) as pool:
        return pool.submit(function, *args).result()


def fresh_pair(
    function: Callable[..., Result], first: tuple[Any, ...], second: tuple[Any, ...]
) -> list[Result]:
    """Call a function in two new processes at once."""
    with ProcessPoolExecutor(2, get_context("spawn"), _prepare, (None, {}, False)) as pool:
        return [call.result() for call in (pool.submit(function, *first), pool.submit(function, *second))]


def _prepare(cpus: int | None, env: dict[str, str], quiet: bool) -> None:
    collect_seldom()  # as every command does
    os.environ.update(env)
    if quiet:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    if cpus:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])


def timed(function: Callable[[], Result]) -> tuple[float, Result]:
    """(seconds, result)."""
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Median of each key over the runs."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next(
        (line.partition(":")[2].strip() for line in cpuinfo.splitlines() if "model name" in line), "?"
    )
    memory = int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1]) / 1e6
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory),
        "python": ".".join(map(str, os.sys.version_info[:3])),  # type: ignore[attr-defined]
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def load_results() -> dict[str, Any]:
    """What was measured so far."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def save(section: str, values: dict[str, Any]) -> None:
    """Replace one section, noting how busy the machine was with other work when it ended."""
    results = load_results()
    results["machine"] = machine()
    results[section] = {**_rounded(values), "load_average": round(os.getloadavg()[1], 1)}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(section, json.dumps(results[section], indent=1), flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return value
