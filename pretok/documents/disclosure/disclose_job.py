"""disclose: WORK, and a mix or a run -> the summary of what was read.

Input: folders and files by name. Output: text: the summary as JSON; views of it as HTML, dataset card and SPDX
document; or its domains as CSV. The page shows the JSON key by key, so that the two cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from pretok.base.errors import UsageError
from pretok.base.html import page_environment
from pretok.base.visible import visible_json
from pretok.documents.disclosure.card import dataset_card
from pretok.documents.disclosure.domains import count_reserved, domains_csv, read_register
from pretok.documents.disclosure.figures import open_figures
from pretok.documents.disclosure.read import read_mix, read_shards, read_steps
from pretok.documents.disclosure.spdx import spdx_document
from pretok.documents.disclosure.summary import Section, load_answers, summarize
from pretok.shards.document_table import chosen_shards
from pretok.shards.manifest import load_manifest, shards_of
from pretok.shards.unfinished import refuse_unfinished

ANSWERS = "disclosure.toml"


@dataclass(frozen=True, slots=True)
class DisclosureRequest:
    """What to summarize."""

    work: Path
    target: Path | None = None
    """The folder of a run, a mix.json, or None for the shards."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Kind -> kept column that holds it."""
    domains: int = 1000
    """How many to list."""
    answers: Path | None = None
    """A file of answers, None: WORK/disclosure.toml if it exists."""


def run_disclose(request: DisclosureRequest, kind: str) -> str:
    """Return the summary in one of FORMATS. Raises UsageError, MismatchError, IntegrityError."""
    if kind not in FORMATS:
        raise UsageError(f"--format {kind!r}: known are {', '.join(FORMATS)}")
    work, target = request.work, request.target
    shards = shards_of(work)
    refuse_unfinished(shards)
    manifest = load_manifest(shards)
    chosen_shards(manifest)  # refuses a mix in its order
    run = target if target is not None and target.is_dir() else None
    if run is not None:
        extent = read_steps(manifest, run)
    else:
        extent = read_shards(manifest) if target is None else read_mix(manifest, target)
    given = request.answers or work / ANSWERS
    answers = load_answers(given if request.answers or given.exists() else None, set(manifest.sources))
    register = None if answers.reservations is None else read_register(given.parent / answers.reservations)
    with open_figures(manifest, request.columns) as figures:
        figures.add("read", extent)
        if kind == "csv":
            return domains_csv(figures)
        reserved = register and count_reserved(manifest, extent, figures, register, run)
        summary = summarize(manifest, extent, figures, answers, request.domains, reserved)
    return VIEWS[kind](summary)


def _json(summary: Section) -> str:
    return visible_json(json.dumps(summary, ensure_ascii=False, indent=2)) + "\n"


def _page(summary: Section) -> str:
    environment = page_environment()
    environment.globals["number"] = _number
    template = environment.from_string(
        files("pretok.documents.disclosure").joinpath("page.html").read_text("utf-8")
    )
    return template.render(summary=summary)


def _number(value: float) -> str:
    """Format a number: 500000.0 -> `500,000`, 1e-05 -> `1e-05`, 18.74666 -> `18.7467`."""
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:,.6g}"


View = Callable[[Section], str]
VIEWS: dict[str, View] = {"json": _json, "html": _page, "md": dataset_card, "spdx": spdx_document}
"""Format -> what writes the summary so."""
FORMATS = (*VIEWS, "csv")
