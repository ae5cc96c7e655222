"""The columns of a key -> one number of 128 bits a row, by which rows and documents find each other.

Input: columns as files give them, or as `shards.documents` does. Output: tables with the number in two columns. Values
are compared as texts: 17 is "17", bytes are those of a text in UTF-8, a hash is its hexadecimal digits. Two keys count
as equal where the numbers are: XXH64 with two seeds, as for texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.tokens import Hashes
from pretok.kernels.hashing import hash_documents
from pretok.read.batches import hash_texts
from pretok.shards.ledger import hex_digits

HASHES = ("h0", "h1")


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


def document_keys(by: Sequence[str], rows: pa.RecordBatch) -> list[pa.LargeStringArray]:
    """The columns of the key of documents; null where their ledger lacks one, or keeps what names nothing."""
    texts = [key_text(name, rows[name]) for name in by]
    return [pa.nulls(len(rows), pa.large_string()) if text is None else text for text in texts]


def hash_keys(columns: Sequence[pa.LargeStringArray]) -> list[pa.Array]:
    """HASHES of rows. A key that lacks a value is 0 and null: it is in the first bucket and equals nothing."""
    given = np.ones(len(columns[0]), np.bool_)
    hashes = []
    for column in columns:
        given &= np.asarray(column.is_valid())
        hashes.append(hash_texts(pc.fill_null(column, "")))
    together: Hashes = np.ascontiguousarray(np.concatenate(hashes, axis=1))
    data = together.view(np.uint8).reshape(-1)
    offsets = np.arange(len(given) + 1, dtype=np.int64) * together.shape[1] * 8
    first, second = (hash_documents(data, offsets, seed) for seed in (0, 1))
    return [pa.array(np.where(given, first, np.uint64(0))), pa.array(second, mask=~given)]


def one_array(table: pa.Table, name: str) -> pa.Array:
    """A column of a table, without a copy where it is in one piece."""
    column = table[name]
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
