"""The fields of a record that are kept as columns next to its tokens.

Input: names as a recipe gives them, and columns of tables or values of JSON. Output: KeptColumn, and columns of the
types below. A value of another type becomes null, and is marked: none is cast, except a whole number to a float, and
what a table has and JSON writes as text: bytes, dates, times and decimal numbers.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.records import Record

TYPES = {
    "text": pa.large_string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "boolean": pa.bool_(),
}
"""Types of kept columns."""
LEDGER_NAMES = frozenset(
    (
        "file", "start", "record", "tokens", "bytes", "hash", "source", "split", "shard", "doc", "position",
        "duplicate_of", "contaminated_share", "contaminated_by", "removed", "removed_reason",
        "file_row_number", "pretok:file",
    )
)  # fmt: skip
"""Columns that a ledger, the view of `pretok query` or the query behind that view have already."""
LONGEST_VALUE = 1 << 14
"""Bytes of the longest text that is kept: 65,536 values are in memory at a time."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class KeptColumn(Record, frozen=True):
    """A column of the ledger whose values come from a field of the records."""

    name: str
    field: str
    """Of the record, such as `meta.url` inside `meta`."""
    type: str = ""
    """A key of TYPES, "" if the recipe gives none: then it is text, and the first records must have the field."""


KeptValues = tuple[pa.Array, npt.NDArray[np.bool_]]
"""(a column of a type in TYPES, which of its values are null because they had another type)."""


def parse_keep(text: str) -> KeptColumn:
    """`url`, `url=meta.url`, `score:float` or both: [NAME=]FIELD[:TYPE]. Raises ValueError."""
    name, equals, field = text.partition("=")
    if not equals:
        name = field = text
    bare, colon, kind = field.rpartition(":")
    if colon and kind in TYPES:
        name, field = name if equals else bare, bare
    else:
        kind = ""
    if not name or not all(field.split(".")):
        raise ValueError(
            f"keep: {text!r} is not [NAME=]FIELD[:TYPE], such as id, url=meta.url or score:float"
        )
    return KeptColumn(name, field, kind)


def type_of(kind: pa.DataType) -> str:
    """Return the key of TYPES as which a column of an Arrow type is kept, "" for none."""
    is_ = pa.types
    if is_.is_dictionary(kind) or is_.is_run_end_encoded(kind):
        return type_of(kind.value_type)
    if isinstance(kind, pa.UuidType):
        return "text"
    if is_.is_boolean(kind):
        return "boolean"
    if is_.is_integer(kind):
        return "integer"
    if is_.is_floating(kind):
        return "float"
    written = (is_.is_date, is_.is_time, is_.is_timestamp, is_.is_decimal)
    return "text" if not is_.is_null(kind) and (is_text(kind) or any(test(kind) for test in written)) else ""


def fits(own: str, kind: str) -> bool:
    """Whether values of the type `own` are values of a column of the type `kind`, both keys of TYPES."""
    return own == kind or (own, kind) == ("integer", "float")


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of an Arrow type holds texts, as strings or as bytes, or nothing but nulls."""
    is_ = pa.types
    strings = (is_.is_string, is_.is_large_string, is_.is_string_view, is_.is_null)
    return any(test(kind) for test in (*strings, is_.is_binary, is_.is_large_binary, is_.is_binary_view))


def keep_column(column: pa.Array, kind: str) -> KeptValues:
    """Convert a column of a table, whose texts may be other bytes than UTF-8, to a type in TYPES."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if isinstance(column.type, pa.JsonType):
        kept = _of_json(column, kind)
        return kept, np.asarray(kept.is_null()) & np.asarray(column.is_valid())
    if not fits(type_of(column.type), kind):
        kept = pa.nulls(len(column), TYPES[kind])
    elif kind == "text":
        kept = keep_json(column.cast(pa.large_binary()), kind) if is_text(column.type) else _written(column)
        short = pc.less_equal(pc.binary_length(kept), LONGEST_VALUE)
        kept = kept if pc.all(short).as_py() else pc.if_else(short, kept, None)
    elif kind == "integer" and pa.types.is_uint64(column.type):
        most = pa.scalar(2**63 - 1, pa.uint64())
        kept = pc.if_else(pc.less_equal(column, most), column, None).cast(pa.int64())
    else:
        kept = column.cast(TYPES[kind], safe=kind != "float")
    return kept, np.asarray(kept.is_null()) & np.asarray(column.is_valid())


def _of_json(column: pa.Array, kind: str) -> pa.Array:
    """Return the values of a column of JSON that have the type `kind`; null for others."""
    types: dict[str, tuple[type, ...]] = {
        "text": (str,), "integer": (int,), "float": (int, float), "boolean": (bool,),
    }  # fmt: skip

    def kept(text: str | None) -> object:
        value: Any = None if text is None else msgspec.json.decode(text)
        whole = isinstance(value, bool) == (kind == "boolean") and isinstance(value, types[kind])
        if not whole or (kind == "integer" and not -(2**63) <= value < 2**63):
            return None
        return None if kind == "text" and len(value.encode()) > LONGEST_VALUE else value

    return pa.array(map(kept, column.to_pylist()), TYPES[kind])


def _written(column: pa.Array) -> pa.LargeStringArray:
    """Return dates, times and decimal numbers as texts.

    Null outside of the years 1 to 9999 and of a day, for which Arrow writes other texts or other dates; all are null if
    their time zone is unknown.
    """
    kind = column.type
    if not pa.types.is_decimal(kind):
        per_day = 1 if kind == pa.date32() else 86_400 * _PER_SECOND[getattr(kind, "unit", "ms")]
        first, end = (0, 1) if pa.types.is_time(kind) else (-719_162, 2_932_896)
        first, end = (max(-(2**63), min(day * per_day, 2**63 - 1)) for day in (first, end))
        number = column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
        column = pc.if_else(pc.and_(pc.greater_equal(number, first), pc.less(number, end)), column, None)
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.nulls(len(column), pa.large_string())


def keep_json(values: pa.LargeBinaryArray, kind: str) -> pa.Array:
    """Convert values of JSON to a column of a type in TYPES; null for a value of another type.

    values: as the file writes them, but texts without quotes and escapes.
    """
    if kind == "boolean":
        words = pa.array([b"false", b"true"], pa.large_binary())
        return pc.index_in(values, value_set=words).cast(pa.bool_())
    try:
        column = values.cast(pa.large_string()).cast(TYPES[kind])
        if kind != "float" or not pc.any(pc.is_inf(column)).as_py():
            return column
    except pa.ArrowInvalid:  # at least one of them: find out which
        pass
    return pa.array([_parsed(value, kind) for value in values.to_pylist()], TYPES[kind])


def _parsed(value: bytes | None, kind: str) -> str | int | float | None:
    if value is None:
        return None
    try:
        if kind == "text":
            return value.decode()
        if kind == "float":
            number = float(value)
            return None if math.isinf(number) and b"I" not in value else number  # 1e999 is no float
        whole = int(value)
    except ValueError:
        return None
    return whole if -(2**63) <= whole < 2**63 else None
