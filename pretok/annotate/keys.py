"""The columns of a key -> one number of 128 bits a row, by which rows and documents find each other.

Enters: columns as files give them, or documents of a shard. Leaves: (rows, 2) uint64, and which rows have a whole key.
Values are compared as texts: 17 is "17", bytes are those of a text in UTF-8, a hash is its hexadecimal digits. Two keys
count as equal where the numbers are: XXH64 with two seeds, as for texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.tokens import Hashes
from pretok.kernels.hashing import hash_documents
from pretok.shards.ledger import hash_texts, hex_digits
from pretok.shards.positions import PLACE_IN_FILE, LinesBefore, row_positions

OF_SHARD = ("source", "split", "shard")
NUMBERED = ("doc", "file", "position", "hash")
DOCUMENT = (*OF_SHARD, *NUMBERED)
"""What names every document, as the view `docs` of `pretok query` has it; what a ledger keeps comes to it."""
OURS = "pretok:"
"""Begins the names of columns that are ours beside those of the files."""
KEY = f"{OURS}key:"


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """A shard as its documents are named. checksum: of its ledger; first: number of its first document in the source's
    split."""

    prefix: Path
    checksum: str
    source: str
    split: str
    first: int
    documents: int


def key_text(name: str, column: pa.Array) -> pa.LargeStringArray | None:
    """A column of a key as texts; None for a type that names nothing. Bytes are those of a text, and digits of a hash
    alone. Raises pyarrow.ArrowInvalid for bytes that are no text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return key_text(name, column.dictionary_decode())
    if name == "hash" and (pa.types.is_fixed_size_binary(kind) or kind in (pa.binary(), pa.large_binary())):
        return hex_digits(column)
    texts = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_integer,
        pa.types.is_null,
    )
    return column.cast(pa.large_string()) if any(test(kind) for test in texts) else None


def hash_keys(columns: Sequence[pa.LargeStringArray]) -> tuple[Hashes, npt.NDArray[np.bool_]]:
    """((rows, 2) uint64, which rows have a value in every column) of columns as `key_text` gives them."""
    given = np.ones(len(columns[0]), np.bool_)
    hashes = []
    for column in columns:
        given &= np.asarray(column.is_valid())
        hashes.append(hash_texts(pc.fill_null(column, "")))
    together: Hashes = np.ascontiguousarray(np.concatenate(hashes, axis=1))
    data = together.view(np.uint8).reshape(-1)
    offsets = np.arange(len(given) + 1, dtype=np.int64) * together.shape[1] * 8
    return np.stack([hash_documents(data, offsets, seed) for seed in (0, 1)], axis=1), given


def document_keys(
    place: ShardPlace,
    at: int,
    rows: pa.RecordBatch,
    by: Sequence[str],
    before: LinesBefore,
) -> list[pa.LargeStringArray]:
    """The key of documents of a shard, those from number `at` in it on; null where its ledger
    lacks the column.

    rows: their ledger's columns that `ledger_columns` names; before: (file, start) -> lines of the file before.
    """
    named = {"source": place.source, "split": place.split, "shard": place.prefix.name}
    columns: list[pa.Array] = []
    for name in by:
        if name in named:
            columns.append(pa.repeat(pa.scalar(named[name], pa.large_string()), len(rows)))
        elif name == "doc":
            columns.append(pa.array(np.arange(len(rows)) + place.first + at))
        elif name == "position":
            columns.append(row_positions(rows, before))
        elif name in rows.schema.names:
            columns.append(rows[name])
        else:
            columns.append(pa.nulls(len(rows), pa.large_string()))
    texts = [key_text(name, column) for name, column in zip(by, columns, strict=True)]
    return [pa.nulls(len(rows), pa.large_string()) if text is None else text for text in texts]


def ledger_columns(by: Sequence[str], there: Sequence[str]) -> list[str]:
    """The columns of a ledger that a key is made of; `tokens` where it is of none, for the number of rows."""
    wanted = [name for name in by if name in there and name not in (*OF_SHARD, "doc", "position")]
    if "position" in by:
        wanted += PLACE_IN_FILE
    return list(dict.fromkeys(wanted)) or ["tokens"]


def one_array(table: pa.Table, name: str) -> pa.Array:
    """A column of a table, without a copy where it is in one piece."""
    column = table[name]
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
