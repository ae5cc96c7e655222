"""Removed texts that must not come back: their hashes, in a file that can be given to any project.

Input: hashes of texts as in ledgers, with the date and the reason of the removal; or the file. Output:
`removed.parquet`, a row per text: hash fixed_size_binary(16), removed string, removed_reason string; and which texts of
a batch are among them. The file holds no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pretok.base.errors import IntegrityError
from pretok.base.storage import reading
from pretok.base.tree import TreeFile
from pretok.read.batches import HASH, hash_column, hash_texts

FILE_NAME = "removed.parquet"
COLUMNS = ("removed", "removed_reason")
"""The columns of a ledger and of this file that say when (UTC) and why a document was removed."""
SCHEMA = pa.schema(
    [pa.field("hash", HASH, nullable=False), *(pa.field(name, pa.string()) for name in COLUMNS)]
)


def removed_path(shards: Path) -> Path:
    """Return where the hashes of removed texts are."""
    return shards / FILE_NAME


def read_removed(paths: Sequence[Path]) -> pa.Table:
    """Read the rows of several files, each text once. Raises IntegrityError for another file."""
    tables = [SCHEMA.empty_table()]
    for path in paths:
        with reading(path, pa.ArrowException):
            table = pq.read_table(path, use_threads=False, partitioning=None)
        if table.schema.remove_metadata() != SCHEMA:
            raise IntegrityError(
                f"{path} is not a list of removed texts: its columns are {table.schema.names}"
            )
        tables.append(table)
    table = pa.concat_tables(tables)
    # Of a text in several files the first row stays, and rows keep their order: the same files give the same bytes.
    first = np.unique(np.array(table["hash"].to_pylist(), "S16"), return_index=True)[1]
    return table.take(pa.array(np.sort(first))).combine_chunks()


def write_removed(path: Path, table: pa.Table) -> tuple[int, str]:
    """Write the file atomically and return (size, root)."""
    with TreeFile(path) as file:
        pq.write_table(
            table.cast(SCHEMA), pa.PythonFile(file, mode="w"), compression="zstd", store_schema=False
        )
        file.seal()
    return file.size, file.root


def rows_of(hashes: pa.Array, at: str, reason: str) -> pa.Table:
    """Return the rows of texts that are removed together."""
    many = len(hashes)
    columns = [hashes.cast(HASH), *(pa.repeat(pa.scalar(text, pa.string()), many) for text in (at, reason))]
    return pa.table(columns, schema=SCHEMA)


def find_removed(texts: pa.LargeStringArray, hashes: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which texts have one of the hashes: (texts,)."""
    return np.asarray(pc.is_in(hash_column(hash_texts(texts)), value_set=hashes))
