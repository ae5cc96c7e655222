"""The rows of one bucket -> the same, sorted by key, each key once: the task of annotate's first step.

Enters: an IndexTask. Leaves: an Arrow file that is mapped into memory, and how many rows said again what another said;
two that say different things of one key are told, the job ends with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.annotate.keys import KEY, OURS
from pretok.annotate.spill import HASHES
from pretok.annotate.values import PLACE
from pretok.base.storage import atomic_open
from pretok.base.tell import Counts
from pretok.base.tokens import Ints

SHOWN = 5
"""Conflicts that are named."""


@dataclass(frozen=True, slots=True)
class IndexTask:
    """paths: the rows of a bucket as they were spilled; schema: of all rows; given: the files that rows came from; out:
    the sorted file."""

    paths: tuple[Path, ...]
    schema: pa.Schema
    given: tuple[str, ...]
    out: Path


@dataclass(frozen=True, slots=True)
class Indexed:
    """rows: different keys; conflicts: that many rows say something else of a key than another, named: the first."""

    rows: int
    repeated: int
    conflicts: int
    named: tuple[str, ...]


def index_bucket(task: IndexTask, report: Callable[[Counts], None]) -> Indexed:  # noqa: ARG001
    """Sort a bucket."""
    table = load_rows(task.paths, task.schema)
    order = np.lexsort(
        [np.asarray(table[name]) for name in reversed(HASHES.names)]
    )  # stable: the first given comes first
    table = table.take(pa.array(order)).combine_chunks()
    again = same_as_before(table)
    values = [name for name in table.schema.names if not name.startswith(OURS)]
    rows = np.flatnonzero(again)
    differ = rows[_differ(table, values, rows)]
    once = table.filter(pa.array(~again)).combine_chunks()
    with atomic_open(task.out) as file, pa.ipc.new_file(file, once.schema) as writer:
        writer.write_table(once)
    named = tuple(_conflict(table, row, task.given) for row in differ[:SHOWN].tolist())
    return Indexed(len(once), len(rows) - len(differ), len(differ), named)


def load_rows(paths: Sequence[Path], schema: pa.Schema) -> pa.Table:
    """Rows as they were spilled, in the last types and with all columns."""
    parts = []
    for path in paths:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            table = reader.read_all()
        columns = [
            table[field.name].cast(field.type, safe=False)
            if field.name in table.schema.names
            else pa.chunked_array([pa.nulls(len(table), field.type)])
            for field in schema
        ]
        parts.append(pa.table(columns, schema))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def same_as_before(table: pa.Table) -> npt.NDArray[np.bool_]:
    """(rows,) whether a row of a sorted table has the key of the row before."""
    keys = np.stack([np.asarray(table[name]) for name in HASHES.names], axis=1)
    same = np.zeros(len(keys), np.bool_)
    same[1:] = (keys[1:] == keys[:-1]).all(axis=1)
    return same


def _differ(table: pa.Table, values: Sequence[str], rows: Ints) -> npt.NDArray[np.bool_]:
    """Which of `rows` have another value than the row before, in any column."""
    differ = np.zeros(len(rows), np.bool_)
    for name in values:
        here, before = (table[name].take(pa.array(at)).combine_chunks() for at in (rows, rows - 1))
        same = np.asarray(pc.fill_null(pc.equal(here, before), False))
        same |= np.asarray(here.is_null()) & np.asarray(before.is_null())
        if pa.types.is_floating(here.type):
            same |= np.asarray(pc.fill_null(pc.and_(pc.is_nan(here), pc.is_nan(before)), False))
        differ |= ~same
    return differ


def _conflict(table: pa.Table, row: int, given: Sequence[str]) -> str:
    """Two rows of one key, named."""
    (before,), (here,) = (table.slice(at, 1).to_pylist() for at in (row - 1, row))
    key = ", ".join(f"{name.removeprefix(KEY)} {here[name]!r}" for name in here if name.startswith(KEY))
    file, line = PLACE.names
    one, other = (f"{given[r[file]]}, line or row {r[line]}" for r in (before, here))
    name = next(name for name in here if not name.startswith(OURS) and here[name] != before[name])
    return f"{key}: {name} is {before[name]!r} in {one} and {here[name]!r} in {other}"
