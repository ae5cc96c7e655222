"""Ledgers and what is read of each source -> exact figures: documents, tokens, bytes, and the same by language,
licence, domain and date where kept columns tell them.

Input: a manifest and an `Extent`; columns are those that ledgers keep and `pretok annotate` joined. Output:
`ReadFigures`. All files are compared with their checksums first. A document counts when at least one of its tokens
is read, once however often; `tokens` are those read, repetitions counted, and `token_bytes` their part of the texts;
`document_bytes` are of the whole texts of the documents that count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.errors import UsageError
from pretok.base.tokens import Ints
from pretok.disclosure.read import Extent, SourceReading
from pretok.shards.annotations import Annotations, open_annotations
from pretok.shards.documents import chosen_shards, scan
from pretok.shards.ledger import SCHEMA, ledger_schema
from pretok.shards.manifest import Manifest
from pretok.shards.values import ValueCounts, domains

KINDS: dict[str, tuple[str, ...]] = {
    "language": ("language", "lang"),
    "licence": ("license", "licence"),
    "synthetic": ("synthetic", "generator"),
    "domain": ("url",),
    "date": ("date", "created", "published"),
    "duplicate": ("duplicate_of",),
}
"""What a column may tell -> its usual names, the first that is kept is taken; the last part of a dotted name counts."""
MOST_VALUES = 10_000_000
"""Different values that are counted: about 2 GB of them."""
DATE = r"^(?P<date>\d{4}(?:-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?)?)(?:$|[T ])"
"""ISO 8601 to the day, the month or the year. A bare number may be a time of any unit: it is no date here."""


@dataclass(slots=True)
class Amount:
    """documents: each once; document_bytes: of their whole texts; tokens: as often as they are read; token_bytes: of
    their texts what these tokens are."""

    documents: int = 0
    document_bytes: int = 0
    tokens: int = 0
    token_bytes: int = 0

    def add(self, other: Amount) -> None:
        """Add another's."""
        self.documents += other.documents
        self.document_bytes += other.document_bytes
        self.tokens += other.tokens
        self.token_bytes += other.token_bytes


class DateRange(msgspec.Struct, kw_only=True, omit_defaults=True):
    """earliest, latest: as written, to the day, the month or the year; dated: documents between them; other: those
    whose value is no date as ISO 8601 writes it; none: those without a value."""

    earliest: str | None = None
    latest: str | None = None
    dated: int
    other: int
    none: int

    def add(self, values: pa.Array) -> None:
        """Take in a column of dates."""
        texts = values.cast(pa.string())
        found = pc.struct_field(pc.extract_regex(texts, DATE), "date")
        ends = pc.min_max(found).as_py()
        self.merge(
            DateRange(
                earliest=ends["min"],
                latest=ends["max"],
                dated=len(found) - found.null_count,
                other=found.null_count - texts.null_count,
                none=texts.null_count,
            )
        )

    def merge(self, other: DateRange) -> None:
        """The range of both."""
        earliest = [date for date in (self.earliest, other.earliest) if date]
        latest = [date for date in (self.latest, other.latest) if date]
        self.earliest, self.latest = min(earliest, default=None), max(latest, default=None)
        self.dated += other.dated
        self.other += other.other
        self.none += other.none


@dataclass(slots=True)
class ReadFigures:
    """Of one source. columns: kind -> the kept column that tells it; values: kind -> sums of (documents, tokens,
    document_bytes, token_bytes); duplicates: documents that the ledger names as copies; removed: of `amount` the
    documents that were removed since, of which nothing else is known; removals: the same by the time of the removal."""

    name: str
    extent: SourceReading
    amount: Amount
    columns: dict[str, str]
    values: dict[str, ValueCounts]
    dates: DateRange | None = None
    duplicates: Amount | None = field(default=None)
    removed: Amount = field(default_factory=Amount)
    removals: ValueCounts = field(default_factory=lambda: ValueCounts(MOST_VALUES))


def count_sources(manifest: Manifest, extent: Extent, named: Mapping[str, str]) -> list[ReadFigures]:
    """Read every ledger once. named: kind -> the column that tells it, instead of its usual names. Raises UsageError
    for an unknown kind or a column that no ledger has, IntegrityError, MismatchError."""
    joined = open_annotations(manifest)
    for one in joined:
        one.check()
    for name in extent.sources:
        for shard in manifest.of(name, extent.split):
            manifest.check(shard.ledger_path)
    schemas = {name: _columns(manifest, joined, name, extent.split) for name in extent.sources}
    kept = sorted({column for columns in schemas.values() for column in columns})
    for kind, column in named.items():
        if kind not in KINDS:
            raise UsageError(f"--column {kind}={column}: a column may tell {', '.join(KINDS)}")
        if column not in kept:
            raise UsageError(
                f"--column {kind}={column}: no ledger has it; kept is {', '.join(kept) or 'nothing'}"
            )
    return [
        _count(manifest, joined, extent, name, {**_usual(columns), **_present(named, columns)})
        for name, columns in schemas.items()
    ]


def _columns(manifest: Manifest, joined: list[Annotations], source: str, split: str) -> list[str]:
    """The kept columns of a source, in the order of its ledgers, and those that were joined to it."""
    names: dict[str, None] = {}
    for shard in manifest.of(source, split):
        names |= dict.fromkeys(ledger_schema(shard.ledger_path).names)
    of_source = [one for one in joined if any(part.source == source for part in one.record.parts)]
    names |= dict.fromkeys(column.name for one in of_source for column in one.record.columns)
    return [name for name in names if name not in SCHEMA.names]


def _usual(columns: list[str]) -> dict[str, str]:
    found = {}
    for kind, names in KINDS.items():
        matching = [c for name in names for c in columns if c.rpartition(".")[2].lower() == name]
        if matching:
            found[kind] = matching[0]
    return found


def _present(named: Mapping[str, str], columns: list[str]) -> dict[str, str]:
    return {kind: column for kind, column in named.items() if column in columns}


def _count(
    manifest: Manifest, joined: list[Annotations], extent: Extent, name: str, columns: dict[str, str]
) -> ReadFigures:
    source = extent.sources[name]
    counted = {kind: ValueCounts(MOST_VALUES) for kind in columns if kind not in ("date", "duplicate")}
    figures = ReadFigures(name, source, Amount(), columns, counted)
    figures.dates = DateRange(dated=0, other=0, none=0) if "date" in columns else None
    figures.duplicates = Amount() if "duplicate" in columns else None
    order = {at: number for number, at in enumerate([*(r.at for r in manifest.removals), None])}
    first = 0  # of the window among the flat tokens of the source
    wanted = ["tokens", "bytes", "removed", *sorted(set(columns.values()) - {"removed"})]
    for _, _, rows in scan(manifest, wanted, chosen_shards(manifest, name, extent.split), joined):
        lengths = np.asarray(rows["tokens"]).astype(np.int64)
        bounds: Ints = first + np.concatenate([[0], np.cumsum(lengths)])
        removed = None
        if rows["removed"].null_count < len(rows):
            removed = np.array([order[at] for at in rows["removed"].to_pylist()])
        tokens = source.tokens(bounds, removed)
        if source.coverage is None and removed is not None:  # shards are what they are now
            tokens = np.where(removed < order[None], 0, tokens)
        first = int(bounds[-1])
        read = tokens > 0
        _add(figures, rows.filter(pa.array(read)), tokens[read], lengths[read])
    return figures


def _add(figures: ReadFigures, rows: pa.RecordBatch, tokens: Ints, lengths: Ints) -> None:
    """Documents that are read, the tokens read of each, and the tokens that it has."""
    sizes = rows["bytes"]
    whole, rest = np.divmod(tokens, lengths)
    held = np.asarray(sizes)
    bytes_read = pa.array(held * whole + held * rest // lengths)  # of a document read in part, in proportion
    figures.amount.add(_amount(rows, tokens, bytes_read))
    gone = rows["removed"].is_valid()
    figures.removed.add(_amount(rows.filter(gone), tokens[np.asarray(gone)], bytes_read.filter(gone)))
    amounts = (pa.array(tokens), sizes, bytes_read)
    figures.removals.add(*(column.filter(gone) for column in (rows["removed"], *amounts)))
    for kind, column in figures.columns.items():
        values = rows[column]
        if kind == "date":
            assert figures.dates is not None
            figures.dates.add(values)
        elif kind == "duplicate":
            assert figures.duplicates is not None
            copies = values.is_valid()
            of_copies = bytes_read.filter(copies)
            figures.duplicates.add(_amount(rows.filter(copies), tokens[np.asarray(copies)], of_copies))
        else:
            told = domains(values.cast(pa.string())) if kind == "domain" else values
            figures.values[kind].add(told, *amounts)


def _amount(rows: pa.RecordBatch, tokens: Ints, bytes_read: pa.Array) -> Amount:
    of_documents, of_tokens = (pc.sum(sizes, min_count=0).as_py() for sizes in (rows["bytes"], bytes_read))
    return Amount(len(rows), of_documents, int(tokens.sum()), of_tokens)
