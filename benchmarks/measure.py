"""How things are measured: in fresh processes, several times in turns, with the machine named.

Input: functions of this package. Output: tables, and results.json, where each section is replaced when it is measured
again.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from pretok.base.startup import collect_seldom

RESULTS = Path(__file__).with_name("results.json")
PACKAGES = ("gigatoken", "tokenizers", "datatrove", "datasets", "megatron-core", "pyarrow", "numba", "numpy")
Row = dict[str, float]
Table = dict[str, Row]
"""Name of a case -> name of a column -> value."""
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


def _prepare(cpus: int | None, env: dict[str, str], quiet: bool) -> None:
    collect_seldom()  # as every command does
    os.environ.update(env)
    if quiet:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    if cpus:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])


def in_turns(cases: Mapping[str, Callable[[], Row]], runs: int) -> Table:
    """Run all cases once, then all again, so that a busy minute hits each of them; medians of `runs` turns."""
    turns = [{name: case() for name, case in cases.items()} for _ in range(runs)]
    return {name: medians([turn[name] for turn in turns]) for name in cases}


def medians(rows: Sequence[Row]) -> Row:
    """Median of each column."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def timed(function: Callable[[], Result]) -> tuple[Row, Result]:
    """({"s", "CPU s"} of this process, result)."""
    began, used = time.perf_counter(), time.process_time()
    result = function()
    return {"s": time.perf_counter() - began, "CPU s": time.process_time() - used}, result


def machine() -> str:
    """What the figures were measured on."""
    names = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in names if "model name" in line), "unknown CPU")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB; "
        f"{', '.join([f'Python {platform.python_version()}', *filter(None, map(_version, PACKAGES))])}"
    )


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return ""


def load_results() -> dict[str, Any]:
    """Name of a section -> {"machine", "date", "load", "rows"}; load: the average of a minute before it."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8")))


def save(section: str, table: Table, load: float) -> None:
    """Replace one section of results.json."""
    rows = {name: {key: float(f"{value:.4g}") for key, value in row.items()} for name, row in table.items()}
    when = {"date": date.today().isoformat(), "load": round(load, 1)}
    results = load_results() | {section: {"machine": machine(), **when, "rows": rows}}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def markdown(table: Table) -> str:
    """The table; cases that have other columns than those above begin one of their own."""
    tables = []
    for columns, cases in groupby(table.items(), key=lambda case: tuple(case[1])):
        lines = [f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
        for name, row in cases:
            cells = [name.replace("|", "\\|"), *map(_shown, row.values())]
            lines.append(f"| {' | '.join(cells)} |")
        tables.append("\n".join(lines) + "\n")
    return "\n".join(tables)


def _shown(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
