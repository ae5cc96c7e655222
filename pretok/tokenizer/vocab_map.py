"""Map an old vocabulary to one that extends it: from which old rows of a model's matrices each new row is made.

Input: two tokenizers and the parts of each new entry, or a file. Output: vocab-map.json, read and written strictly. The
trainer reads it too, so this module loads nothing heavy.
"""

from __future__ import annotations

from pathlib import Path

from pretok.base.errors import UsageError
from pretok.base.records import Count, Digest, Record, check_version, read_record, to_json
from pretok.base.storage import read_json, write_json

FILE_NAME = "vocab-map.json"
VERSION = 1


class MapEnd(Record, frozen=True):
    """A tokenizer: number of entries, and fingerprint of everything that decides its ids."""

    size: Count
    fingerprint: Digest


class VocabMap(Record, frozen=True):
    """Which old rows of a matrix make the new ones; other ids below old.size keep their row."""

    version: Count
    old: MapEnd
    new: MapEnd
    rows: dict[str, tuple[Count, ...]]
    """Id of a new entry -> the old ids that it consists of, in order."""


def write_map(path: Path, old: MapEnd, new: MapEnd, rows: dict[int, tuple[int, ...]]) -> None:
    """Write the file."""
    named = {str(row): parts for row, parts in rows.items()}
    write_json(path, to_json(VocabMap(VERSION, old, new, named)))


def read_map(path: Path) -> VocabMap:
    """Read a map. Raises UsageError if there is none or its ids do not fit, IntegrityError if it is damaged."""
    if not path.is_file():
        raise UsageError(
            f"{path} is not a {FILE_NAME}; pretok build-vocab --extend writes one next to its tokenizer.json"
        )
    data = read_json(path)
    check_version(
        data.get("version") if isinstance(data, dict) else None, VERSION, path, "make the vocabulary again"
    )
    vocab_map = read_record(VocabMap, data, path)
    old, new, rows = vocab_map.old.size, vocab_map.new.size, vocab_map.rows
    ids = {int(row) for row in rows if row.isdecimal()}
    known = all(parts and max(parts) < old for parts in rows.values())
    if len(ids) < len(rows) or max(ids, default=0) >= new or not known:
        raise UsageError(f"{path}: it does not map between vocabularies of {old:,} and {new:,} entries")
    if missing := set(range(old, new)) - ids:
        raise UsageError(f"{path}: nothing says what the entry {min(missing)} consists of")
    return vocab_map
