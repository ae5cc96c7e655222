"""The rows given that no document has the key of: counted, and listed in a file.

Enters: all rows, sorted by key, and which of them the documents used. Leaves: a Parquet file of their places and keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pretok.annotate.index_task import load_rows
from pretok.annotate.join_task import SHOWN, Joined
from pretok.annotate.keys import KEY
from pretok.annotate.rows import Index, Rows
from pretok.annotate.values import PLACE
from pretok.base.storage import atomic_open, checksum
from pretok.shards.annotations import ListedRows


@dataclass(frozen=True, slots=True)
class Unused:
    """Rows that no document has the key of: how many, some by name, and the file that lists them all."""

    count: int
    named: tuple[str, ...]
    listed: ListedRows | None


def hits_of(index: Index, joined: Sequence[Joined]) -> list[npt.NDArray[np.bool_]]:
    """Of each bucket which rows a document has the key of."""
    hits = [np.zeros(count, np.bool_) for count in index.keys]
    for one in joined:
        for hit, used in zip(hits, one.used, strict=True):
            hit[used] = True
    return hits


def unused_rows(rows: Rows, index: Index, hits: Sequence[npt.NDArray[np.bool_]]) -> Iterator[pa.Table]:
    """Those without a whole key, then the others bucket by bucket."""
    for path in rows.keyless:
        yield load_rows([path], rows.schema)
    for path, hit in zip(index.paths, hits, strict=True):
        with pa.memory_map(str(path)) as file:
            yield pa.ipc.open_file(file).read_all().filter(pa.array(~hit))


def list_unused(rows: Rows, tables: Iterator[pa.Table], path: Path) -> Unused:
    """Write which rows no document has the key of: their file, line or row, and key."""
    keys = [name for name in rows.schema.names if name.startswith(KEY)]
    fields = [("given_file", pa.string()), ("line", pa.int64())]
    schema = pa.schema([*fields, *((name.removeprefix(KEY), pa.large_string()) for name in keys)])
    names = pa.array([file.path for file in rows.inputs], pa.string())
    count, named = 0, list[str]()
    with (
        atomic_open(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd", store_schema=False) as writer,
    ):
        for table in tables:
            place = [names.take(table[PLACE.names[0]].combine_chunks()), table[PLACE.names[1]]]
            writer.write_table(listed := pa.table([*place, *(table[name] for name in keys)], schema))
            count += len(listed)
            for given, line, *key in (
                tuple(row.values()) for row in listed.slice(0, SHOWN - len(named)).to_pylist()
            ):
                told = ", ".join(
                    f"{name.removeprefix(KEY)} {value!r}" for name, value in zip(keys, key, strict=True)
                )
                named.append(f"{given}, line or row {line}: {told}")
    if not count:
        path.unlink()
        return Unused(0, (), None)
    return Unused(count, tuple(named), ListedRows(path.name, path.stat().st_size, checksum(path)))
