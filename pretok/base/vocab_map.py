"""The map from an old vocabulary to one made of it: which rows of a model's matrices go where.

Input: two tokenizers and what each new entry is made of, or a file. Output: vocab-map.json, read and written strictly.
The trainer reads it too, so nothing heavy is loaded here.
"""

from __future__ import annotations

from pathlib import Path

from pretok.base.errors import UsageError
from pretok.base.records import Count, Record, check_version, read_record, to_json
from pretok.base.storage import read_json, write_json

FILE_NAME = "vocab-map.json"
VERSION = 1


class MapEnd(Record, frozen=True):
    """A tokenizer: its entries, and the fingerprint of all that decides its ids."""

    size: Count
    fingerprint: str


class VocabMap(Record, frozen=True):
    """rows: id of a new entry -> the old ids it is made of, in order. Every other id below old.size keeps its row."""

    version: Count
    old: MapEnd
    new: MapEnd
    rows: dict[str, tuple[Count, ...]]


def write_map(path: Path, old: MapEnd, new: MapEnd, rows: dict[int, tuple[int, ...]]) -> None:
    """Write the file."""
    named = {str(row): parts for row, parts in rows.items()}
    write_json(path, to_json(VocabMap(VERSION, old, new, named)))


def read_map(path: Path) -> VocabMap:
    """The map in a file. UsageError where there is none or its ids are of other sizes, IntegrityError for damage."""
    if not path.is_file():
        raise UsageError(
            f"{path} is no {FILE_NAME}: pretok build-vocab --extend writes one beside its tokenizer.json"
        )
    data = read_json(path)
    check_version(
        data.get("version") if isinstance(data, dict) else None, VERSION, path, "make the vocabulary again"
    )
    made = read_record(VocabMap, data, path)
    ids = {int(row) for row in made.rows if row.isdecimal()}
    known = all(parts and max(parts) < made.old.size for parts in made.rows.values())
    if len(ids) < len(made.rows) or max(ids, default=0) >= made.new.size or not known:
        raise UsageError(f"{path}: its rows are not those of {made.old.size:,} and {made.new.size:,} entries")
    if missing := set(range(made.old.size, made.new.size)) - ids:
        raise UsageError(f"{path}: nothing says what the entry {min(missing)} is made of")
    return made
