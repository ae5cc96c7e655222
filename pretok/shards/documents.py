"""What is known of documents -> rows: where each stands, its ledger, and what was joined to it afterwards.

Input: a manifest, names of columns, and the shards of interest. Output: Arrow record batches, a window of a ledger
each. A document has

    source, split, shard   where it is
    doc                    its number in the source's split, from 0
    position               the line or row of `file`, from 1
    file, tokens, bytes, hash and all others of its ledger, and the joined columns
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from pretok.base.errors import IntegrityError, UsageError
from pretok.base.sql import parquet
from pretok.shards.annotations import Annotations
from pretok.shards.inputs import load_inputs
from pretok.shards.ledger import REMOVED, SCHEMA, ledger_schema, ledger_windows
from pretok.shards.manifest import SPLITS, Manifest, Shard

OF_SHARD = ("source", "split", "shard")
PLACE_IN_FILE = ("file", "start", "record")
"""Columns of a ledger that a position follows from."""
ROWS = "filename = 'pretok:file', file_row_number = true"
"""With what DuckDB reads the rows of our files: a kept column may be called `filename`."""
LinesBefore = Mapping[tuple[str, int], int]
"""(file, start) -> records of the file before `start`."""
Numbered = tuple[Shard, int]
"""A shard, and the documents of its source's split before it."""


def scan(
    manifest: Manifest, columns: Sequence[str], shards: Iterable[Numbered], joined: Sequence[Annotations] = ()
) -> Iterator[tuple[Shard, int, pa.RecordBatch]]:
    """(shard, number of the first document, rows with these columns) of some shards, in their order. A column that a
    shard does not have is of Arrow's type null. Only what is named is read. Raises IntegrityError."""
    lines = cache(lambda source: lines_of_source(manifest, source))  # a plan names every file of a source
    needed = [name for name in columns if name not in (*OF_SHARD, "doc", "position")]
    needed += PLACE_IN_FILE if "position" in columns else ()
    if not set(needed) & set(SCHEMA.names):
        needed.append("tokens")  # what every ledger has says how many rows there are
    for shard, first in shards:
        beside = [
            one.windows(shard, names)
            for one in joined
            if (names := [name for name in columns if name in one.columns])
        ]
        for rows in ledger_windows(shard.ledger_path, needed):
            found = dict(zip(rows.schema.names, rows.columns, strict=True))
            for windows in beside:  # one for each of the ledger, or none for a source that came later
                if window := next(windows, None):
                    found |= dict(zip(window.schema.names, window.columns, strict=True))
            if "position" in columns:
                found["position"] = row_positions(rows, lines(shard.source))
            if "doc" in columns:
                found["doc"] = pa.array(np.arange(first, first + len(rows)))
            for name, value in zip(OF_SHARD, (shard.source, shard.split, shard.prefix.name), strict=True):
                if name in columns:
                    found[name] = pa.repeat(pa.scalar(value, pa.string()), len(rows))
            arrays = [found[name] if name in found else pa.nulls(len(rows)) for name in columns]
            yield shard, first, pa.RecordBatch.from_arrays(arrays, names=list(columns))
            first += len(rows)


def documents_at(
    manifest: Manifest, shard: Shard, numbers: Sequence[int], joined: Sequence[Annotations] = ()
) -> list[dict[str, Any]]:
    """What is known of documents of a shard: `position` and the columns of its ledger and of `joined`. numbers: in the
    shard, rising. The ledger is compared with its checksum first: what is damaged must not name a wrong line. Raises
    IntegrityError."""
    manifest.check(shard.ledger_path)
    columns = ["position", *ledger_schema(shard.ledger_path).names]
    columns += [name for one in joined for name in one.columns]
    found: list[dict[str, Any]] = []
    for _, first, rows in scan(manifest, columns, [(shard, 0)], joined):
        here = [number - first for number in numbers if first <= number < first + len(rows)]
        found += rows.take(pa.array(here, pa.int64())).to_pylist()
        if len(found) == len(numbers):
            return found
    raise IntegrityError(f"{shard.ledger_path} has fewer rows than its shard documents; see pretok verify")


def check_place(manifest: Manifest, source: str | None, split: str | None) -> None:
    """UsageError for a source or a split that is not there."""
    if source is not None and source not in manifest.sources:
        raise UsageError(f"no source {source!r}; there is {', '.join(manifest.sources)}")
    if split is not None and split not in SPLITS:
        raise UsageError(f"no split {split!r}; there are {' and '.join(SPLITS)}")


def chosen_shards(
    manifest: Manifest, source: str | None = None, split: str | None = None
) -> tuple[Numbered, ...]:
    """The shards of a source and a split, or of all. UsageError where there is no such place, or the shards hold a
    mix."""
    check_place(manifest, source, split)
    if manifest.materialized is not None:
        raise UsageError(
            f"{manifest.folder} holds a mix in its order; its documents are in the shards it was made of"
        )
    return tuple(
        (shard, before)
        for shard, before in manifest.numbered
        if source in (None, shard.source) and split in (None, shard.split)
    )


def lines_of_source(manifest: Manifest, source: str) -> LinesBefore:
    """Of all files of a source."""
    return load_inputs(manifest, source).lines_before()


def row_positions(rows: pa.RecordBatch, before: LinesBefore) -> pa.Array:
    """(rows,) int64 of rows with PLACE_IN_FILE. IntegrityError for a file that is no input."""
    try:
        places = zip(rows["file"].to_pylist(), rows["start"].to_pylist(), strict=True)
        lines = np.array([before[place] for place in places], np.int64)
    except KeyError as error:
        raise IntegrityError(
            f"a ledger names {error.args[0][0]}, no input of its source; see pretok verify"
        ) from None
    return pa.array(lines + np.asarray(rows["record"]) + 1)


def make_table(connection: Any, name: str, rows: list[dict[str, Any]]) -> None:
    """A table of DuckDB of some rows, at least one, which say its columns."""
    connection.register(f"{name}_arrow", pa.Table.from_pylist(rows))
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_arrow")
    connection.unregister(f"{name}_arrow")


def make_views(connection: Any, manifest: Manifest, joined: Sequence[Annotations]) -> None:
    """The same table in DuckDB: the view `ledger`, and `documents` with the joined columns too. `hash` is hexadecimal.

    Nothing is copied: a query reads the columns that it names from the Parquet files themselves. Without a shard there
    are no views. Raises IntegrityError for a ledger that is not there.
    """
    for shard in manifest.shards:
        if not shard.ledger_path.exists():
            raise IntegrityError(f"{shard.ledger_path} is missing; see pretok verify")
    if not manifest.shards:
        return
    # Whose rows a file holds: a ledger, or joined columns in the order of the documents of one shard.
    placed = {shard.path: (shard, before) for shard, before in manifest.numbered}
    paths = [(shard.ledger_path, shard.path) for shard in manifest.shards]
    paths += [(one.folder / part.path, part.shard) for one in joined for part in one.record.parts]
    files = [
        {
            "path": str(path),
            "source": shard.source,
            "split": shard.split,
            "shard": shard.prefix.name,
            "before": before,
        }
        for path, of in paths
        for shard, before in [placed[of]]
    ]
    make_table(connection, "row_files", files)
    pieces = [
        {"source": name, "file": file, "start": start, "before": before}
        for name in manifest.tokenized
        for (file, start), before in lines_of_source(manifest, name).items()
        if before
    ]
    empty = {"source": "", "file": "", "start": 0, "before": 0}  # gives the columns their types
    make_table(connection, "pieces", [*pieces, empty])
    known = any(shard.removed for shard in manifest.shards)
    removed = "" if known else "".join(f", NULL::VARCHAR AS {name}" for name in REMOVED.names)
    ledgers = parquet((shard.ledger_path for shard in manifest.shards), f"union_by_name = true, {ROWS}")
    connection.execute(
        f"""CREATE VIEW ledger AS
        SELECT f.source, f.split, f.shard, f.before + d.file_row_number AS doc, d.file,
            coalesce(p.before, 0) + d.record + 1 AS position, d.tokens, d.bytes, lower(hex(d.hash)) AS hash,
            d.* EXCLUDE (file, tokens, bytes, hash, "pretok:file", file_row_number){removed}
        FROM {ledgers} d
        JOIN row_files f ON f.path = d."pretok:file"
        LEFT JOIN pieces p ON p.source = f.source AND p.file = d.file AND p.start = d.start"""
    )
    parts = []
    for one in joined:
        names = ", ".join(f"a.{identifier(name)}" for name in one.columns)
        rows = parquet((one.folder / part.path for part in one.record.parts), ROWS)
        parts.append(
            f"""LEFT JOIN (SELECT f.source, f.split, f.before + a.file_row_number AS doc, {names}
            FROM {rows} a JOIN row_files f ON f.path = a."pretok:file") USING (source, split, doc)"""
        )
    connection.execute(f"CREATE VIEW documents AS SELECT * FROM ledger {' '.join(parts)}")


def identifier(name: str) -> str:
    """A column's name in SQL."""
    return '"' + name.replace('"', '""') + '"'
