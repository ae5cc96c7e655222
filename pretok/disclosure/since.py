"""What changed since a summary that was published: two summaries -> their differences.

Input: the JSON of both. Output: texts and figures of general information, sources and processing that differ, each by
its dotted name, with what it was and is; of a number also the difference, which for a model that was trained on is
what came after. Lists of values (languages, domains) are compared by value, by their tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.records import check_version
from pretok.base.storage import read_json

COMPARED = ("about", "general", "sources", "processing")


@dataclass(frozen=True, slots=True)
class Change:
    """before, now: None where it was not there, or a blank; more: the difference of numbers."""

    what: str
    before: Any
    now: Any
    more: float | None


def load_summary(path: Path, kind: str, version: int) -> dict[str, Any]:
    """The JSON of an earlier summary. Raises IntegrityError, MismatchError for another version."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != kind:
        raise IntegrityError(f"{path} is no summary of pretok disclose as JSON")
    check_version(data.get("version"), version, path, "make the earlier summary again with pretok disclose")
    if any(not isinstance(data.get(part), dict) for part in COMPARED):
        raise MismatchError(f"{path} lacks a part of a summary: it was edited")
    return data


def changes(before: dict[str, Any], now: dict[str, Any]) -> tuple[Change, ...]:
    """In the order of the summary of now, then what is no more in it."""
    old, new = (
        {name: value for part in COMPARED for name, value in _flat(summary[part], part)}
        for summary in (before, now)
    )
    names = [*new, *(name for name in old if name not in new)]
    return tuple(
        Change(name, old.get(name), new.get(name), _more(old.get(name), new.get(name)))
        for name in names
        if old.get(name) != new.get(name)
    )


def _more(before: Any, now: Any) -> float | None:
    numbers = [0 if value is None else value for value in (before, now)]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in numbers):
        return None
    return numbers[1] - numbers[0]


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Each text and number by its dotted name. Sources are called by their names, listed values by theirs."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "listed" and isinstance(inner, list):
                yield from ((f"{name}.{entry['value']}.tokens", entry["tokens"]) for entry in inner)
            else:
                yield from _flat(inner, f"{name}.{key}")
    elif isinstance(value, list) and value and isinstance(value[0], dict) and "name" in value[0]:
        for entry in value:
            yield from _flat(
                {key: inner for key, inner in entry.items() if key != "name"}, f"{name}.{entry['name']}"
            )
    else:
        yield name, value
