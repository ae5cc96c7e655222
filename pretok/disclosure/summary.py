"""Figures -> the summary of training content, in the parts of the AI Office's template.

Input: a manifest, what is read of it, and the figures of its sources. Output: `Summary`. The parts are those of the
template for the public summary of training content under Article 53(1)(d) of Regulation (EU) 2024/1689: general
information, list of data sources, data processing aspects. A field that is null is a blank: no file here knows it, a
person must fill it in. Nothing is guessed, no threshold or size band of the template is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pretok.base.records import to_json
from pretok.base.version import PRETOK_VERSION
from pretok.disclosure.count import MOST_VALUES, Amount, DateRange, ReadFigures
from pretok.disclosure.read import Extent
from pretok.disclosure.register import Reservations
from pretok.shards.inputs import count_files
from pretok.shards.manifest import Manifest, SplitCounts
from pretok.shards.unfinished import incomplete
from pretok.shards.values import Sums, ValueCounts

FORMAT, VERSION = "pretok-disclosure", 3
COUNTED = {
    "documents": "each document once, however often it is read, if at least one of its tokens is",
    "document_bytes": "of the whole texts of these documents in UTF-8, as they were tokenized, each document once",
    "tokens": "those read as input of a prediction, as often as they are read, end-of-document tokens included",
    "token_bytes": "of the text of these tokens in UTF-8, as often as they are read; of a document that is read in "
    "part, its bytes in proportion to its tokens, rounded down",
    "epochs": "sequences read of a source by sequences it has; null: no order reads it",
    "values": "null: no column tells it; a value null: documents without one",
    "reservations": "documents, tokens: held in the shards now, in both splits; read: by the mix or the run; later: of "
    "that, in steps on the day of the register or after; refused, removed: by removals whose reason names the domain "
    "and no other of the register, as what was removed or rejected keeps no address; removed_read: of that, read "
    "by the run before; null: cannot be told",
}
"""What the figures of any scope mean."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One value and what has it."""

    value: str | None
    documents: int
    document_bytes: int
    tokens: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class Values:
    """distinct: how many different values there are, null not counted, None: more than are counted; listed: those with
    most tokens."""

    distinct: int | None
    listed: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class About:
    """What the summary is of. shards, mix: fingerprints; sequences of seq_len tokens are read in all."""

    scope: str
    split: str
    shards: str
    mix: str | None
    sequences: int | None
    seq_len: int | None
    pretok: str


@dataclass(frozen=True, slots=True)
class Provider:
    """Blanks."""

    name: str | None
    contact: str | None
    authorised_representative: str | None


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """size: the setting `model` of the run, with its sizes; the rest is blank, or of the run's files."""

    name: str | None
    versions: str | None
    based_on: str | None
    placed_on_the_market: str | None
    size: str | None
    sizes: dict[str, Any] | None
    steps: int | None
    steps_planned: int | None
    steps_skipped: int | None
    finished: bool | None
    trained_from: str | None
    trained_to: str | None


@dataclass(frozen=True, slots=True)
class General:
    """Part 1. dates: of documents; latest_acquisition: when data was last collected."""

    provider: Provider
    model: TrainedModel
    modalities: tuple[str, ...]
    size_band: str | None
    documents: int
    document_bytes: int
    tokens: int
    token_bytes: int
    types_of_content: str | None
    latest_acquisition: str | None
    languages: Values | None
    licences: Values | None
    synthetic: Values | None
    dates: DateRange | None
    duplicates: Amount | None


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """A source of part 2. category: which of `CATEGORIES` it is; columns: which kept column told what; unread: what
    the shards hold of it in another split."""

    name: str
    category: str | None
    description: str | None
    period_of_collection: str | None
    input_files: int
    documents: int
    document_bytes: int
    tokens: int
    token_bytes: int
    epochs: float | None
    sequences: int | None
    sequences_of: int | None
    columns: dict[str, str]
    languages: Values | None
    licences: Values | None
    synthetic: Values | None
    domains: Values | None
    dates: DateRange | None
    duplicates: Amount | None
    unread: dict[str, SplitCounts]


Category = Literal[
    "publicly available datasets",
    "data licensed from rightsholders",
    "private datasets of third parties",
    "data crawled and scraped from online sources",
    "user data",
    "synthetic data",
    "other",
]
CATEGORIES: tuple[str, ...] = get_args(Category)


@dataclass(frozen=True, slots=True)
class Sources:
    """Part 2. domains: of all sources that keep an address."""

    categories: tuple[str, ...]
    sources: tuple[SourceSummary, ...]
    crawlers: str | None
    domains: Values | None


@dataclass(frozen=True, slots=True)
class RemovedFrom:
    """What was removed of a source. refused: records that had a text which was removed, here or elsewhere; documents,
    tokens: of all splits; read_before: of what is read here, and counts as read, what was removed after it was."""

    refused: int
    documents: int
    tokens: int
    read_before: Amount


@dataclass(frozen=True, slots=True)
class Processing:
    """Part 3. records_read, rejected: by source, of all its splits; settings: the same for every source; reservations:
    None where no register is named."""

    reservations_of_rights: str | None
    removal_of_illegal_content: str | None
    other: str | None
    tokenizer: str
    settings: dict[str, Any]
    records_read: dict[str, int]
    rejected: dict[str, dict[str, int]]
    removed: dict[str, RemovedFrom]
    incomplete: tuple[str, ...]
    reservations: Reservations | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """All of it."""

    about: About
    general: General
    sources: Sources
    processing: Processing

    def as_json(self) -> dict[str, Any]:
        """As JSON; blanks are null."""
        return {"format": FORMAT, "version": VERSION, "counted": COUNTED, **to_json(self)}


def disclosed(manifest: Manifest, extent: Extent, figures: Sequence[ReadFigures], domains: int) -> Summary:
    """The summary; domains: how many are listed of each source and of all."""
    return Summary(
        about=About(
            extent.scope,
            extent.split,
            manifest.fingerprint,
            extent.mix,
            extent.sequences,
            extent.seq_len,
            PRETOK_VERSION,
        ),
        general=_general(extent, figures),
        sources=Sources(
            CATEGORIES,
            tuple(_source(manifest, extent.split, source, domains) for source in figures),
            None,
            _all_values(figures, "domain", domains),
        ),
        processing=Processing(
            reservations_of_rights=None,
            removal_of_illegal_content=None,
            other=None,
            tokenizer=manifest.tokenizer.fingerprint,
            settings=manifest.config,
            records_read={source.name: manifest.sources[source.name].read for source in figures},
            rejected={source.name: manifest.sources[source.name].rejected for source in figures},
            removed={source.name: _removed(manifest, source) for source in figures},
            incomplete=tuple(incomplete(manifest)),
        ),
    )


def _removed(manifest: Manifest, figures: ReadFigures) -> RemovedFrom:
    counts = manifest.sources[figures.name]
    gone = counts.removed
    return RemovedFrom(
        refused=counts.rejected.get("removed", 0),
        documents=gone.documents if gone else 0,
        tokens=gone.tokens if gone else 0,
        read_before=figures.removed,
    )


def _general(extent: Extent, figures: Sequence[ReadFigures]) -> General:
    total, run = _sum(source.amount for source in figures), extent.run
    duplicates = [source.duplicates for source in figures if source.duplicates]
    dates = [source.dates for source in figures if source.dates]
    return General(
        provider=Provider(None, None, None),
        model=TrainedModel(
            name=None,
            versions=None,
            based_on=None,
            placed_on_the_market=None,
            size=run.model if run else None,
            sizes=run.sizes if run else None,
            steps=run.steps if run else None,
            steps_planned=run.planned if run else None,
            steps_skipped=run.skipped if run else None,
            finished=run.finished if run else None,
            trained_from=run.began if run else None,
            trained_to=run.ended if run else None,
        ),
        modalities=("text",),
        size_band=None,
        documents=total.documents,
        document_bytes=total.document_bytes,
        tokens=total.tokens,
        token_bytes=total.token_bytes,
        types_of_content=None,
        latest_acquisition=None,
        languages=_all_values(figures, "language", None),
        licences=_all_values(figures, "licence", None),
        synthetic=_all_values(figures, "synthetic", None),
        dates=_all_dates(figures) if dates else None,
        duplicates=_sum(duplicates) if duplicates else None,
    )


def _sum(amounts: Iterable[Amount]) -> Amount:
    total = Amount()
    for amount in amounts:
        total.add(amount)
    return total


def _all_dates(figures: Sequence[ReadFigures]) -> DateRange:
    """Documents of sources without a column of dates are those without one."""
    dates = DateRange(dated=0, other=0, none=0)
    for source in figures:
        dates.merge(source.dates or DateRange(dated=0, other=0, none=source.amount.documents))
    return dates


def _all_values(figures: Sequence[ReadFigures], kind: str, most: int | None) -> Values | None:
    """Of all sources together; documents of those that do not tell have no value. None where none tells."""
    if not any(kind in source.values for source in figures):
        return None
    counts = ValueCounts(MOST_VALUES)
    for source in figures:
        amount = source.amount
        if kind in source.values:
            counts.merge(source.values[kind].sums)
        elif amount.documents:
            sizes = amount.document_bytes, amount.token_bytes
            counts.merge({None: (amount.documents, amount.tokens, *sizes)})
    return _values(counts, most)


def _values(counts: ValueCounts, most: int | None) -> Values:
    if counts.distinct is None:
        return Values(None, ())

    def listed(value: str | None, sums: Sums) -> Listed:
        documents, tokens, *sizes = sums
        of_documents, of_tokens = sizes
        return Listed(value, documents, of_documents, tokens, of_tokens)

    found = [listed(value, sums) for value, sums in counts.largest()]
    named = [entry for entry in found if entry.value is not None]
    shown = named[:most]
    return Values(counts.distinct, (*shown, *(entry for entry in found if entry.value is None)))


def _source(manifest: Manifest, split: str, figures: ReadFigures, domains: int) -> SourceSummary:
    extent = figures.extent
    counts = manifest.sources[figures.name]

    def of(kind: str, most: int | None) -> Values | None:
        return _values(figures.values[kind], most) if kind in figures.values else None

    return SourceSummary(
        name=figures.name,
        category=None,
        description=None,
        period_of_collection=None,
        input_files=count_files(manifest, figures.name),
        documents=figures.amount.documents,
        document_bytes=figures.amount.document_bytes,
        tokens=figures.amount.tokens,
        token_bytes=figures.amount.token_bytes,
        epochs=extent.epochs,
        sequences=extent.sequences,
        sequences_of=extent.of,
        columns=figures.columns,
        languages=of("language", None),
        licences=of("licence", None),
        synthetic=of("synthetic", None),
        domains=of("domain", domains),
        dates=figures.dates,
        duplicates=figures.duplicates,
        unread={
            name: part
            for name, part in (("train", counts.train), ("val", counts.val))
            if name != split and part.documents
        },
    )
