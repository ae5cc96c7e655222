"""Files of rows -> all rows on disk, sorted by key: what the documents are joined to.

Enters: a Request. Leaves: `Rows`, as they were given, in buckets; `Index`, the same sorted, each key once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pretok.annotate.index_task import SHOWN, Indexed, IndexTask
from pretok.annotate.keys import OURS
from pretok.annotate.request import Request
from pretok.annotate.spill import HASHES, Spill, buckets_for
from pretok.annotate.values import Columns, read_values
from pretok.base.errors import UsageError
from pretok.base.stop import StopFlag
from pretok.base.tell import Teller
from pretok.base.units import counted, listed
from pretok.read.files import InputFile
from pretok.read.probe import COMPRESSION_RATIO
from pretok.read.recognise import list_inputs


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that were given, on disk. schema: of all of them; buckets: the files of each bucket; keyless: those of
    the rows without a whole key."""

    inputs: Sequence[InputFile]
    schema: pa.Schema
    buckets: tuple[tuple[Path, ...], ...]
    keyless: tuple[Path, ...]

    @property
    def values(self) -> list[pa.Field]:
        """The columns to join."""
        return [field for field in self.schema if not field.name.startswith(OURS)]


def read_rows(
    request: Request, refuse: Callable[[str], None], work: Path, stop: StopFlag, tell: Teller
) -> Rows:
    """Read the files and leave their rows in buckets in the folder `work`; refuse: as of `Columns`. Raises UsageError,
    Stopped."""
    inputs, notices = list_inputs(request.files, "auto")
    for notice in notices:
        tell.notice(notice)
    for file in inputs:
        if file.format not in ("jsonl", "parquet"):
            raise UsageError(f"{file.path} is {file.format}; rows come as JSON Lines or Parquet")
    columns = Columns(request.by, request.columns, refuse)
    size = sum(int(file.size * (COMPRESSION_RATIO if file.compression else 1)) for file in inputs)
    with stop.raising(), Spill(work, buckets_for(size)) as spill:
        for number, file in enumerate(inputs):
            for table in read_values(number, file, columns):
                spill.append(table)
    if missing := [name for name in request.columns or () if name not in columns.kinds]:
        raise UsageError(
            f"--columns: no row has {missing[0]!r}; other columns are {', '.join(columns.left) or 'none'}"
        )
    tell.notice(f"{counted(spill.rows, 'row')} in {counted(len(inputs), 'file')}")
    schema = pa.schema([*HASHES, *columns.schema(last=True)])
    keyless = tuple(spill.paths.pop(-1))
    return Rows(inputs, schema, tuple(tuple(spill.paths[number]) for number in sorted(spill.paths)), keyless)


@dataclass(frozen=True, slots=True)
class Index:
    """The sorted buckets, with so many keys each; repeated: rows that said again what another says."""

    paths: tuple[Path, ...]
    keys: tuple[int, ...]
    repeated: int


def index_tasks(rows: Rows, work: Path) -> list[IndexTask]:
    """A task for each bucket."""
    given = tuple(file.path for file in rows.inputs)
    return [
        IndexTask(paths, rows.schema, given, work / f"sorted-{number}.arrow")
        for number, paths in enumerate(rows.buckets)
    ]


def index_of(tasks: Sequence[IndexTask], found: Sequence[Indexed]) -> Index:
    """What the tasks left. Raises UsageError that names rows which say different things of one key."""
    if conflicts := sum(one.conflicts for one in found):
        named = [text for one in found for text in one.named]
        raise UsageError(
            "rows of one key say different things:\n  " + listed(named, SHOWN, "\n  ", count=conflicts)
        )
    return Index(
        tuple(task.out for task in tasks),
        tuple(one.rows for one in found),
        sum(one.repeated for one in found),
    )
