"""The table of documents: the place of each, its ledger, and the columns that were joined to it.

Input: a manifest, names of columns, and shards. Output: Arrow record batches, one per row group of a ledger, or views
in DuckDB. The columns are

    source, split, shard   where the document is
    doc                    its number in the split of the source, from 0
    position               its line or row in `file`, from 1
    file, tokens, bytes, hash and all others of the ledger, and the joined columns
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
"""Columns of a ledger from which the position follows."""
ROWS = "filename = 'pretok:file', file_row_number = true"
"""Options with which DuckDB reads ledgers. A kept column may have the name `filename`."""
LinesBefore = Mapping[tuple[str, int], int]
"""(file, start) -> records of the file before `start`."""
Numbered = tuple[Shard, int]
"""(shard, number of documents of its source and split before it)."""


def scan(
    manifest: Manifest, columns: Sequence[str], shards: Iterable[Numbered], joined: Sequence[Annotations] = ()
) -> Iterator[tuple[Shard, int, pa.RecordBatch]]:
    """Yield (shard, number of the first document, rows with these columns) for each row group of some shards, in order.

    A column that a shard does not have gets Arrow's type null. Other columns are not read. Raises IntegrityError.
    """
    lines = cache(lambda source: lines_of_source(manifest, source))  # reads the table of all inputs once
    needed = [name for name in columns if name not in (*OF_SHARD, "doc", "position")]
    needed += PLACE_IN_FILE if "position" in columns else ()
    if not set(needed) & set(SCHEMA.names):
        needed.append("tokens")  # at least one column, to know the number of rows
    for shard, first in shards:
        others = [
            notes.windows(shard, names)
            for notes in joined
            if (names := [name for name in columns if name in notes.types])
        ]
        for rows in ledger_windows(shard.ledger_path, needed):
            known = dict(zip(rows.schema.names, rows.columns, strict=True))
            # Joined columns have the row groups of the ledger, or none for a source that was added later.
            for windows in others:
                if window := next(windows, None):
                    known |= dict(zip(window.schema.names, window.columns, strict=True))
            if "position" in columns:
                known["position"] = row_positions(rows, lines(shard.source))
            if "doc" in columns:
                known["doc"] = pa.array(np.arange(first, first + len(rows)))
            for name, value in zip(OF_SHARD, (shard.source, shard.split, shard.prefix.name), strict=True):
                if name in columns:
                    known[name] = pa.repeat(pa.scalar(value, pa.string()), len(rows))
            arrays = [known[name] if name in known else pa.nulls(len(rows)) for name in columns]
            yield shard, first, pa.RecordBatch.from_arrays(arrays, names=list(columns))
            first += len(rows)


def documents_at(
    manifest: Manifest, shard: Shard, numbers: Sequence[int], joined: Sequence[Annotations] = ()
) -> list[dict[str, Any]]:
    """Return the rows of documents of a shard, with `position` and the columns of its ledger and of `joined`.

    numbers: in the shard, rising. Raises IntegrityError if the ledger was changed: it must not name a wrong line.
    """
    manifest.check(shard.ledger_path)
    columns = ["position", *ledger_schema(shard.ledger_path).names]
    columns += [name for notes in joined for name in notes.types]
    documents: list[dict[str, Any]] = []
    for _, first, rows in scan(manifest, columns, [(shard, 0)], joined):
        in_window = [number - first for number in numbers if first <= number < first + len(rows)]
        documents += rows.take(pa.array(in_window, pa.int64())).to_pylist()
        if len(documents) == len(numbers):
            return documents
    raise IntegrityError(
        f"{shard.ledger_path} has fewer rows than its shard has documents; see pretok verify"
    )


def check_place(manifest: Manifest, source: str | None, split: str | None) -> None:
    """Raise UsageError for a source or split that does not exist."""
    if source is not None and source not in manifest.sources:
        raise UsageError(f"no source {source!r}; the sources are {', '.join(manifest.sources)}")
    if split is not None and split not in SPLITS:
        raise UsageError(f"no split {split!r}; the splits are {' and '.join(SPLITS)}")


def chosen_shards(
    manifest: Manifest, source: str | None = None, split: str | None = None
) -> tuple[Numbered, ...]:
    """Return the shards of a source and split, or of all.

    Raises UsageError if there is none, or the shards hold a mix.
    """
    check_place(manifest, source, split)
    if manifest.materialized is not None:
        raise UsageError(
            f"{manifest.folder} holds a materialized mix: name the shards it was made of, which have its documents"
        )
    return tuple(
        (shard, before)
        for shard, before in manifest.numbered
        if source in (None, shard.source) and split in (None, shard.split)
    )


def lines_of_source(manifest: Manifest, source: str) -> LinesBefore:
    """`SourcePlan.lines_before` of all files of a source."""
    return load_inputs(manifest, source).lines_before()


def row_positions(rows: pa.RecordBatch, before: LinesBefore) -> pa.Array:
    """Return (rows,) int64: positions of rows with PLACE_IN_FILE.

    Raises IntegrityError for a file that is not an input.
    """
    try:
        places = zip(rows["file"].to_pylist(), rows["start"].to_pylist(), strict=True)
        lines = np.array([before[place] for place in places], np.int64)
    except KeyError as error:
        raise IntegrityError(
            f"a ledger names {error.args[0][0]}, which is not an input of its source; see pretok verify"
        ) from None
    return pa.array(lines + np.asarray(rows["record"]) + 1)


def make_table(connection: Any, name: str, rows: list[dict[str, Any]]) -> None:
    """Make a table in DuckDB of rows, at least one."""
    connection.register(f"{name}_arrow", pa.Table.from_pylist(rows))
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_arrow")
    connection.unregister(f"{name}_arrow")


def make_views(connection: Any, manifest: Manifest, joined: Sequence[Annotations]) -> None:
    """Make the view `ledger` in DuckDB, and `documents` with the joined columns too. `hash` is hexadecimal.

    A query reads only the columns that it names, from the Parquet files. Without shards there are no views. Raises
    IntegrityError if a ledger is missing.
    """
    ledgers = [shard.ledger_path for shard in manifest.shards]
    for path in ledgers:
        if not path.exists():
            raise IntegrityError(f"{path} is missing; see pretok verify")
    if not manifest.shards:
        return
    # Each Parquet file, a ledger or joined columns, has one row for each document of a shard, in order. So the number
    # of a row in its file, with the documents before the shard, identifies a document.
    placed = {shard.path: (shard, before) for shard, before in manifest.numbered}
    paths = [(path, shard.path) for path, shard in zip(ledgers, manifest.shards, strict=True)]
    paths += [(notes.folder / part.path, shard) for notes in joined for shard, part in notes.parts.items()]
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
    rows = parquet(ledgers, f"union_by_name = true, {ROWS}")
    connection.execute(
        f"""CREATE VIEW ledger AS
        SELECT f.source, f.split, f.shard, f.before + d.file_row_number AS doc, d.file,
            coalesce(p.before, 0) + d.record + 1 AS position, d.tokens, d.bytes, lower(hex(d.hash)) AS hash,
            d.* EXCLUDE (file, tokens, bytes, hash, "pretok:file", file_row_number){removed}
        FROM {rows} d
        JOIN row_files f ON f.path = d."pretok:file"
        LEFT JOIN pieces p ON p.source = f.source AND p.file = d.file AND p.start = d.start"""
    )
    parts = []
    for notes in joined:
        names = ", ".join(f"a.{identifier(name)}" for name in notes.types)
        rows = parquet(notes.roots, ROWS)
        parts.append(
            f"""LEFT JOIN (SELECT f.source, f.split, f.before + a.file_row_number AS doc, {names}
            FROM {rows} a JOIN row_files f ON f.path = a."pretok:file") USING (source, split, doc)"""
        )
    connection.execute(f"CREATE VIEW documents AS SELECT * FROM ledger {' '.join(parts)}")


def identifier(name: str) -> str:
    """Return the name of a column, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'
