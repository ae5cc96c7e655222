"""The fields of a record that are kept beside its tokens: which, of which type, and what is of another type.

Input: names as a recipe gives them, and columns as tables have them. Output: KeptColumn, and columns of the types
below. A value of another type is null and told, or its document a reject, as the recipe says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
"""Columns that a row of a ledger has anyway, there, in the view of `pretok query` or while DuckDB makes that."""
LONGEST_VALUE = 1 << 14
"""Bytes of the longest text that is kept: 65,536 of them are held at a time."""


class KeptColumn(Record, frozen=True):
    """name: of the column; field: of the record, `meta.url` one inside `meta`; type: a key of TYPES, "" where nobody
    has said or looked yet."""

    name: str
    field: str
    type: str = ""

    @property
    def renamed(self) -> bool:
        """Whether it has the name that `parse_keep` gives a field whose own name is a column of the ledger."""
        return self.field.lower() in LEDGER_NAMES and self.name == f"{self.field}_"


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept of every record. reject: whether a value of another type rejects its document."""

    columns: tuple[KeptColumn, ...] = ()
    reject: bool = False


@dataclass(frozen=True, slots=True)
class KeptValues:
    """The kept columns of some documents. columns: a (documents,) array each; wrong: (columns, documents), which values
    were there but of another type; show: the value of (document, column) for a message."""

    columns: list[pa.Array]
    wrong: npt.NDArray[np.bool_]
    show: Callable[[int, int], str]

    def slice(self, start: int, count: int) -> KeptValues:
        """The same of some documents in a row."""
        return KeptValues(
            [column.slice(start, count) for column in self.columns],
            self.wrong[:, start : start + count],
            lambda document, column: self.show(start + document, column),
        )

    def filter(self, left: npt.NDArray[np.bool_]) -> KeptValues:
        """The same of the documents that are left."""
        documents = np.flatnonzero(left)
        return KeptValues(
            [column.filter(pa.array(left)) for column in self.columns],
            self.wrong[:, left],
            lambda document, column: self.show(int(documents[document]), column),
        )


def parse_keep(text: str) -> KeptColumn:
    """`url`, `url=meta.url`, `score:float` or both: [NAME=]FIELD[:TYPE]. `source` is kept as `source_`, as are
    all LEDGER_NAMES. Raises ValueError."""
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
    if not equals and name.lower() in LEDGER_NAMES:
        name += "_"
    return KeptColumn(name, field, kind)


def kept_tables(columns: Sequence[pa.Array | None], keep: Sequence[KeptColumn], rows: int) -> KeptValues:
    """Columns as a table has them, None for one that it lacks, as kept ones."""
    pairs = [
        (pa.nulls(rows, TYPES[column.type]), np.zeros(rows, np.bool_))
        if found is None
        else _as_type(found, column.type)
        for found, column in zip(columns, keep, strict=True)
    ]

    def show(row: int, column: int) -> str:
        found = columns[column]
        return "" if found is None else f"{found[row].as_py()!r:.200} ({found.type})"

    return KeptValues([column for column, _ in pairs], np.array([wrong for _, wrong in pairs]), show)


def type_of(kind: pa.DataType) -> str:
    """The key of TYPES that a column of an Arrow type is kept as, "" where it is not: dates, times and decimal numbers
    are kept as text."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return type_of(kind.value_type)
    if is_.is_boolean(kind):
        return "boolean"
    if is_.is_integer(kind):
        return "integer"
    if is_.is_floating(kind):
        return "float"
    texts = (is_.is_string, is_.is_large_string, is_.is_string_view, is_.is_temporal, is_.is_decimal)
    return "text" if any(test(kind) for test in texts) else ""


def _as_type(column: pa.Array, kind: str) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """A column as a type of TYPES, null where a value is of another one; which those are."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    given = np.asarray(column.is_valid())
    fits = type_of(column.type) in ((kind, "integer") if kind == "float" else (kind,))
    if not fits:
        return pa.nulls(len(column), TYPES[kind]), given
    if kind == "text":
        column = column.cast(pa.large_string())
        wrong = np.asarray(pc.fill_null(pc.greater(pc.binary_length(column), LONGEST_VALUE), False))
    else:
        wrong = np.zeros(len(column), np.bool_)
        if kind == "integer" and pa.types.is_uint64(column.type):
            wrong = np.asarray(pc.fill_null(pc.greater(column, pa.scalar(2**63 - 1, pa.uint64())), False))
    if wrong.any():
        column = pc.if_else(pa.array(wrong), pa.scalar(None, column.type), column)
    return column.cast(TYPES[kind], safe=kind != "float"), wrong


def describe_mismatch(column: KeptColumn, value: str) -> str:
    """What to tell of a value that is of another type."""
    return f"{column.field} is {value}, no {column.type}"


def parse_floats(texts: pa.LargeStringArray) -> pa.DoubleArray:
    """Numbers as JSON has them, the words of Python for no numbers included."""
    try:
        return texts.cast(pa.float64())
    except pa.ArrowInvalid:  # beyond the largest number there is, or a word
        return pa.array([None if text is None else float(text) for text in texts.to_pylist()], pa.float64())


def mismatches(values: KeptValues, keep: Keep) -> dict[str, int]:
    """Column -> how many values of it are of another type."""
    counts = values.wrong.sum(axis=1).tolist()
    return {column.name: count for column, count in zip(keep.columns, counts, strict=True) if count}
