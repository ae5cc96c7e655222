"""What no file of ours knows: answers of a person -> the blanks of the summary, and the same at every run again.

Input: a TOML file, WORK/disclosure.toml unless another is named, and a summary. Output: the summary with its blanks
filled in. What files know is no key here, so an answer cannot contradict a figure.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.config import load_toml, validated
from pretok.config.settings import Part
from pretok.disclosure.summary import Category, Provider, Summary

FILE_NAME = "disclosure.toml"


class ProviderAnswers(Part):
    """[provider]"""

    name: str | None = None
    contact: str | None = None
    authorised_representative: str | None = None


class ModelAnswers(Part):
    """[model]"""

    name: str | None = None
    versions: str | None = None
    based_on: str | None = None
    placed_on_the_market: str | None = None


class GeneralAnswers(Part):
    """[general]"""

    size_band: str | None = None
    types_of_content: str | None = None
    latest_acquisition: str | None = None


class SourceAnswers(Part):
    """[sources.NAME]"""

    category: Category | None = None
    description: str | None = None
    period_of_collection: str | None = None


class ProcessingAnswers(Part):
    """[processing]"""

    reservations_of_rights: str | None = None
    removal_of_illegal_content: str | None = None
    other: str | None = None


class Answers(Part):
    """The whole file. crawlers: which ones collected the sources; reservations: a register of them, a CSV."""

    crawlers: str | None = None
    reservations: str | None = None
    provider: ProviderAnswers = ProviderAnswers()
    model: ModelAnswers = ModelAnswers()
    general: GeneralAnswers = GeneralAnswers()
    sources: dict[str, SourceAnswers] = Field(default_factory=dict)
    processing: ProcessingAnswers = ProcessingAnswers()


def load_answers(path: Path) -> Answers:
    """Read and check a file of answers. UsageError says what is wrong and where."""
    return validated(Answers, load_toml(path), str(path))


def answered(summary: Summary, answers: Answers, known: set[str], where: Path) -> Summary:
    """The summary with its blanks filled in; known: sources that the shards have, of which some may not be read.
    UsageError for answers of a source that is none."""
    if unknown := sorted(answers.sources.keys() - known):
        raise UsageError(f"{where}: there is no source {unknown[0]!r}; there are {', '.join(sorted(known))}")
    general = replace(
        summary.general,
        provider=Provider(**answers.provider.model_dump()),
        model=replace(summary.general.model, **answers.model.model_dump()),
        **answers.general.model_dump(),
    )
    sources = tuple(
        replace(source, **answers.sources.get(source.name, SourceAnswers()).model_dump())
        for source in summary.sources.sources
    )
    return replace(
        summary,
        general=general,
        sources=replace(summary.sources, sources=sources, crawlers=answers.crawlers),
        processing=replace(summary.processing, **answers.processing.model_dump()),
    )
