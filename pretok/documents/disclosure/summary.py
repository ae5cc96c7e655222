"""Figures -> the summary of training content, in the parts of the AI Office's template, as JSON.

Input: a manifest, what is read of it, the figures of its sources, and a person's answers. Output: one record; the page,
the dataset card and the SPDX document are views of it. Its parts are those of the template for the public summary of
training content under Article 53(1)(d) of Regulation (EU) 2024/1689: general information, list of data sources, data
processing aspects. A field that is null is a blank: no file knows it, and a person must fill it in. Nothing is guessed,
and no threshold or size band of the template is applied.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, create_model

from pretok.base.errors import UsageError
from pretok.base.records import to_json
from pretok.base.version import PRETOK_VERSION
from pretok.config import load_toml, validated
from pretok.config.settings import SettingsTable
from pretok.documents.disclosure.figures import Sums
from pretok.documents.disclosure.read import Extent
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import Manifest
from pretok.shards.unfinished import incomplete

FORMAT, VERSION = "pretok-disclosure", 3
COUNTED = {
    "documents": "each document once, if at least one of its tokens is read",
    "document_bytes": "bytes of the whole texts of these documents in UTF-8, each document once",
    "tokens": "tokens read as input of a prediction, with repetitions and end-of-document tokens",
    "token_bytes": "bytes of the text of these tokens in UTF-8, with repetitions; for a document that is read in part, "
    "its bytes in proportion to its tokens, rounded down",
    "epochs": "sequences read of a source, divided by the sequences it has; null: no order reads it",
    "values": "null: no column tells it; the value null: documents without a value",
    "reservations": "documents, tokens: in the shards now, in both splits; read: by the mix or the run; later: of "
    "that, in steps on the day of the register or after; null: not known",
}
"""What the figures of any scope mean."""
VALUES = {"languages": "language", "licences": "licence", "synthetic": "synthetic"}
"""Part of the summary -> the kind of column that it is of."""
Category = Literal[
    "publicly available datasets",
    "data licensed from rightsholders",
    "private datasets of third parties",
    "data crawled and scraped from online sources",
    "user data",
    "synthetic data",
    "other",
]
Section = dict[str, Any]


def _answers(name: str, *texts: str, **more: Any) -> Any:
    """Make a table of answers: texts, each null until it is answered."""
    fields: dict[str, Any] = {**dict.fromkeys(texts, (str | None, None)), **more}
    return create_model(name, __base__=SettingsTable, **fields)


_PARTS = {
    "provider": _answers("provider", "name", "contact", "authorised_representative"),
    "model": _answers("model", "name", "versions", "based_on", "placed_on_the_market"),
    "general": _answers("general", "size_band", "types_of_content", "latest_acquisition"),
    "processing": _answers("processing", "reservations_of_rights", "removal_of_illegal_content", "other"),
}


class SourceAnswers(SettingsTable):
    """The table [sources.NAME]."""

    category: Category | None = None
    description: str | None = None
    period_of_collection: str | None = None


Answers = _answers(
    "answers",
    "crawlers",
    "reservations",
    **{name: (part, part()) for name, part in _PARTS.items()},
    sources=(dict[str, SourceAnswers], Field(default_factory=dict)),
)
"""The file of answers. It has no key for what files know, so that no answer contradicts a figure. crawlers: which ones
collected the sources; reservations: the CSV of a register."""
RUN = (
    *("size", "sizes", "steps", "steps_planned", "steps_skipped", "finished", "trained_from", "trained_to"),
    "energy",  # mwh: at the devices; pue; carbon: kg CO2e per kWh; tco2e
)


def load_answers(path: Path | None, sources: set[str]) -> Any:
    """Read and check a file of answers, if there is one. Raises UsageError."""
    if path is None:
        return Answers()
    answers = validated(Answers, load_toml(path), str(path))
    if unknown := sorted(answers.sources.keys() - sources):
        raise UsageError(
            f"{path}: there is no source {unknown[0]!r}; the sources are {', '.join(sorted(sources))}"
        )
    return answers


def summarize(
    manifest: Manifest,
    extent: Extent,
    figures: Sums,
    answers: Any,
    domains: int,
    reservations: Section | None,
) -> Section:
    """Return the summary.

    figures: with `read`; domains: how many to list, for each source and for all; reservations: None without a register.
    """
    sources = extent.sources
    return {
        "format": FORMAT,
        "version": VERSION,
        "counted": COUNTED,
        "about": {
            "scope": extent.scope,
            "split": extent.split,
            "shards": manifest.fingerprint,
            "mix": extent.mix,
            "sequences": extent.sequences,
            "seq_len": extent.seq_len,
            "pretok": PRETOK_VERSION,
        },
        "general": {
            "provider": answers.provider.model_dump(),
            "model": answers.model.model_dump() | dict.fromkeys(RUN) | (extent.run or {}),
            "modalities": ["text"],
            **answers.general.model_dump(),
            **figures.amount("read"),
            **_by_columns(figures, None),
        },
        "sources": {
            "categories": list(get_args(Category)),
            "sources": [_source(manifest, extent, figures, answers, name, domains) for name in sources],
            "crawlers": answers.crawlers,
            "domains": _values(figures, "domain", None, domains),
        },
        "processing": {
            **answers.processing.model_dump(),
            "tokenizer": manifest.tokenizer.fingerprint,
            "settings": manifest.config,
            "records_read": {name: manifest.sources[name].read for name in sources},
            "rejected": {name: manifest.sources[name].rejected for name in sources},
            "removed": {name: _removed(manifest, figures, name) for name in sources},
            "incomplete": incomplete(manifest),
            "reservations": reservations,
        },
    }


def _source(
    manifest: Manifest, extent: Extent, figures: Sums, answers: Any, name: str, domains: int
) -> Section:
    counts, reading = manifest.sources[name], extent.sources[name]
    splits = {"train": counts.train, "val": counts.val}
    return {
        "name": name,
        **answers.sources.get(name, SourceAnswers()).model_dump(),
        "input_files": len(load_inputs(manifest, name).inputs) if name in manifest.tokenized else 0,
        **figures.amount("read", source=name),
        "epochs": reading.epochs,
        "sequences": reading.sequences,
        "sequences_of": reading.of,
        "columns": figures.columns[name],
        **_by_columns(figures, name),
        "domains": _values(figures, "domain", name, domains),
        "unread": {
            split: to_json(part) for split, part in splits.items() if split != extent.split and part.documents
        },
    }


def _values(figures: Sums, kind: str, source: str | None, most: int | None = None) -> Section | None:
    """Return the sums by value; None without a column."""
    return figures.by_value("read", kind, source, most) if figures.has_column("read", kind, source) else None


def _by_columns(figures: Sums, source: str | None) -> Section:
    """Return the sums by column of a source, or of all sources."""
    parts: Section = {part: _values(figures, kind, source) for part, kind in VALUES.items()}
    dated, copied = (figures.has_column("read", kind, source) for kind in ("date", "duplicate"))
    parts["dates"] = figures.dates("read", source) if dated else None
    parts["duplicates"] = figures.amount("read", "duplicate", source, "value NOT NULL") if copied else None
    return parts


def _removed(manifest: Manifest, figures: Sums, name: str) -> Section:
    """Return the removed documents of a source.

    refused: records whose text had been removed, here or elsewhere; documents, tokens: in all splits; read_before: what
    is counted as read and was removed later.
    """
    counts = manifest.sources[name]
    return {
        "refused": counts.rejected.get("removed", 0),
        "documents": counts.removed.documents if counts.removed else 0,
        "tokens": counts.removed.tokens if counts.removed else 0,
        "read_before": figures.amount("read", "removed", name, "value NOT NULL"),
    }
