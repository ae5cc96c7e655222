"""The summary -> the card of a data set: README.md with the YAML head that the hub of Hugging Face reads.

Input: the summary. Output: Markdown with a head in YAML, which leaves out unknown values. Format:
https://github.com/huggingface/hub-docs/blob/main/datasetcard.md
"""

from __future__ import annotations

import json
from bisect import bisect_right
from importlib.resources import files
from typing import Any

from pretok.base.html import page_environment
from pretok.base.visible import visible_json
from pretok.documents.disclosure.summary import Section

SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
"""Bounds of the hub's categories of documents: powers of ten from the third."""
SCOPES = {
    "shards": "all training documents once",
    "mix": "a mix of them",
    "run": "the data of a training run",
}


def dataset_card(summary: Section) -> str:
    """Return README.md."""
    general, about = summary["general"], summary["about"]
    model = general["model"]["name"]
    title = f"Training data of {model}" if model else "Training data"
    licences = _values(general["licences"])
    licence = "other" if licences else None
    if len(licences) == 1:
        licence = licences[0]
    head: dict[str, Any] = {
        "pretty_name": title,
        "language": [value for value in _values(general["languages"]) if value],
        "license": licence,
        "size_categories": [_size(general["documents"])],
        "tags": ["pretok"],
    }
    environment = page_environment()
    template = environment.from_string(
        files("pretok.documents.disclosure").joinpath("card.md").read_text("utf-8")
    )
    text = "\n".join(f"{key}:{_yaml(value)}" for key, value in head.items() if value)
    return template.render(
        head=visible_json(text),
        title=title,
        about=about,
        general=general,
        scope=SCOPES[about["scope"]],
        sources=summary["sources"]["sources"],
        processing=summary["processing"],
    )


def _values(values: Section | None) -> list[str | None]:
    """Return the values of a column, most tokens first; None stands for documents without one."""
    return [row["value"] for row in values["listed"]] if values else []


def _yaml(value: str | list[str]) -> str:
    """Return a value behind its key, as YAML. A string is written as JSON, which is YAML too."""
    if isinstance(value, str):
        return f" {json.dumps(value, ensure_ascii=False)}"
    return "".join(f"\n-{_yaml(item)}" for item in value)


def _size(documents: int) -> str:
    above = bisect_right([10 ** (3 + at) for at in range(len(SIZES))], documents)
    low, high = ("", *SIZES)[above], (*SIZES, "")[above]
    if low and high:
        return f"{low}<n<{high}"
    return f"n<{high}" if high else f"n>{low}"
