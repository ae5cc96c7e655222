"""A format: the functions of its module, and the values that they exchange with the other readers.

A format is one module with the members of `Format`, and a line in `pretok.read.formats`.

    recognise   the first and last bytes of a file -> whether it has this format
    probe       an input -> a Probe: how much text it holds, and which fields it has
    split       a Probe -> Pieces, each of which is read by itself
    read        a Piece -> Records
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.texts import from_buffers
from pretok.read.files import InputFile
from pretok.read.kept import TYPES, KeptColumn, KeptValues
from pretok.read.record_format import RecordFormat, TokenFiles
from pretok.read.rejects import TOO_LONG

COMPRESSION_RATIO = 3.0
"""Assumed bytes of text per byte of a zstd or gzip file."""
TEXT, LIST, NOTHING, WRITTEN, OTHER = "text", "list", "null", "written", "other"
"""Kinds of values of a field, besides the other keys of `kept.TYPES`. WRITTEN: no text of a document, but of a kept
column."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The facts about an input before it is read."""

    file: InputFile
    size: int
    """Expected bytes of text."""
    parts: tuple[int, ...] = ()
    """Bytes of all columns of each row group or record batch of a table."""
    rows: tuple[int, ...] = ()
    """Rows of each of these."""
    fields: dict[str, set[str]] = field(default_factory=dict)
    """Dotted name -> the kinds of values that were seen."""
    tokens: TokenFiles | None = None
    """How its ids are read, if it is a file of tokens."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one input.

    From `start` to `stop`, which count bytes (jsonl, tokens without an index), row groups (parquet), record batches
    (arrow) or documents (tokens with an index); None for the whole file.
    """

    file: InputFile
    start: int | None = None
    stop: int | None = None
    first: int | None = None
    """Number of its first row or document, if these can be counted."""

    @property
    def is_part(self) -> bool:
        """Whether the file was cut."""
        return self.start is not None

    @property
    def origin(self) -> tuple[int, int]:
        """(start, first): record n of the piece is record first + n, counted from `start` in the file.

        `start` is 0, except for later parts of a JSON Lines file: the lines before them are not counted.
        """
        return (0, self.first or 0) if not self.start or self.first is not None else (self.start, 0)

    @property
    def place(self) -> str:
        """The file, and where in it the count of the records of the piece begins, for messages."""
        start, first = self.origin
        return f"{self.file.path}{f' after byte {start}' if start else f' after record {first}' if first else ''}"


Keep = Sequence[KeptColumn]


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records."""

    status: npt.NDArray[np.uint8]
    """(records,) uint8, an index of REASONS."""
    texts: pa.LargeStringArray
    """Of the OK ones, not yet checked for UTF-8."""
    explain: Callable[[int], str]
    """Number of a rejected record, from 0 here -> details."""
    sizes: npt.NDArray[np.int64]
    """(records,) bytes of each in the input."""
    numbers: npt.NDArray[np.int64]
    """(records,) the line or row of each, from 0 here."""
    lines: int
    """Number of lines or rows."""
    kept: Sequence[KeptValues] = ()
    """The kept columns of the OK ones."""
    before: npt.NDArray[np.uint64] | None = None
    """As in `TextBatch`."""
    remarks: Mapping[str, int] = field(default_factory=dict)
    """As in `TextBatch`."""


class Format(Protocol):
    """The members of the module of a format."""

    SUFFIXES: tuple[str, ...]
    """Of the names of files that have this format."""
    CERTAIN: bool
    """Whether a file that is recognised has this format whatever its name and its source say."""
    TABLE: bool
    """Whether it is read in other places than from its beginning on, so that it may not be compressed as a whole."""

    def recognise(self, head: bytes, tail: bytes, /) -> bool:
        """Whether these are the first and last bytes of a file of this format; `head` is decompressed."""

    def probe(self, file: InputFile, sampled: bool, /) -> Probe:
        """Return what planning needs to know.

        sampled: whether some records may be read to find it out. Raises OSError, or ValueError or a pyarrow error if
        the file is damaged.
        """

    def split(self, probe: Probe, limit: int, /) -> list[tuple[Piece, int]]:
        """Return (piece, bytes of text) of a file, in order, of at most `limit` bytes of text where it can be split."""

    def read(
        self, piece: Piece, small: bytes | None, record: RecordFormat, keep: Keep, batch_bytes: int, /
    ) -> Iterator[Records]:
        """Yield the records of a piece, some `batch_bytes` of text at a time.

        small: all bytes of its file, if they have been read already. Raises CorruptInputError after the last record
        that can be read.
        """


def text_size(file: InputFile) -> int:
    """Return the expected bytes of text of a file of lines or plain text."""
    return int(file.size * COMPRESSION_RATIO) if file.compression else file.size


def too_long(limit: int, keep: Keep = ()) -> Records:
    """Return a record that was skipped because it has more than `limit` bytes."""
    single, no_texts = np.ones(1, np.int64), from_buffers(np.empty(0, np.uint8), np.zeros(1, np.int64))
    kept = [(pa.nulls(0, TYPES[column.type]), np.zeros(0, np.bool_)) for column in keep]
    status = np.full(1, TOO_LONG, np.uint8)
    return Records(
        status, no_texts, lambda _: f"more than {limit} bytes", limit + single, single - 1, 1, kept
    )
