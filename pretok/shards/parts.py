"""Parts: what a worker leaves of a partition, a shard at a time, and the record that makes it count.

Input: encoded documents. Output: the files of a shard (`SplitWriter`), and of each sealed part a `PartRecord`, JSON in
the state folder, written last. A restart goes on behind the parts that have a record. What a record says of files is
what the manifest will say, so sealing a source is to list what its parts hold.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.errors import MismatchError
from pretok.base.failures import Failure
from pretok.base.records import Count, Record, read_record
from pretok.base.storage import read_json
from pretok.base.tokens import Bytes, Tokens
from pretok.base.version import PRETOK_VERSION
from pretok.screen.benchmark import ItemCount
from pretok.shards.format import ShardReader, ShardWriter
from pretok.shards.ledger import LedgerWriter, ledger_path, ledger_windows
from pretok.shards.manifest import Shard, SideFile
from pretok.shards.spans import ShardSpans, SpanWriter, spans_path

PACKAGES = ("gigatoken", "tokenizers", "pyarrow", "numpy", "numba")
"""What could change a byte of the shards."""
ENGINES = PACKAGES[:2]
"""What decides ids. The others decide bytes of ledgers at most."""


class PartRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a part holds, put together while it is written; JSON in the state folder once it is sealed.

    name: of its train shard; records: how many were read for it, per piece of the partition; lines: of each such piece
    how many lines or rows stand before what follows the part; rejected: by reason;
    errors: inputs whose rest could not be read; mismatches: values of kept columns that are null because of another
    type, by column; last: whether the partition ends here; train, val: None where empty;
    side_files: of the train shard; counts: what was reported of it; contaminated: what was found of the items of a
    benchmark, in documents that were refused too; software: what made it; compared, compared_bytes: documents that
    `tokenizers` encoded again, and their text; differed: piece and record of the one that the engine had encoded
    otherwise, so that `tokenizers` encoded the whole part; None where the engine did.
    """

    name: str
    records: dict[str, Count] = msgspec.field(default_factory=Counter)
    rejected: dict[str, Count] = msgspec.field(default_factory=Counter)
    errors: list[Failure] = msgspec.field(default_factory=list)
    mismatches: dict[str, Count] = msgspec.field(default_factory=Counter)
    lines: dict[str, Count] = msgspec.field(default_factory=dict)
    counts: dict[str, Count] = msgspec.field(default_factory=Counter)
    last: bool = False
    train: Shard | None = None
    val: Shard | None = None
    side_files: tuple[SideFile, ...] = ()
    contaminated: tuple[ItemCount, ...] = ()
    software: dict[str, str]
    compared: Count = 0
    compared_bytes: Count = 0
    differed: tuple[Count, Count] | None = None

    @property
    def read(self) -> int:
        """Records read for this part."""
        return sum(self.records.values())


def part_name(partition: str, part: int) -> str:
    """Name of a part's shard: the partition's, with the part's number from the second on."""
    return f"{partition}-{part}" if part else partition


def load_parts(state_dir: Path, partition: str) -> list[PartRecord]:
    """Records of the sealed parts of a partition, in order."""
    parts: list[PartRecord] = []
    while (path := state_dir / f"{part_name(partition, len(parts))}.json").exists():
        parts.append(read_record(PartRecord, read_json(path), path))
        if parts[-1].last:
            break
    return parts


def is_complete(state: Path, partition: str) -> bool:
    """Whether all parts of a partition are sealed and no input of it was damaged."""
    if not state.exists():  # only finished sources have no state folder
        return True
    parts = load_parts(state, partition)
    return bool(parts) and parts[-1].last and not any(part.errors for part in parts)


class SplitWriter:
    """Writes the files of the shard `prefix` (path without suffix): tokens, ledger, and spans of conversations.
    `append` or `copy` as often as needed, then `seal`; leaving the stack before leaves nothing."""

    def __init__(self, prefix: Path, dtype: np.dtype[Any], schema: pa.Schema, stack: ExitStack) -> None:
        self.shard = stack.enter_context(ShardWriter(prefix, dtype))
        self._ledger = stack.enter_context(LedgerWriter(prefix, schema))
        self._text_bytes = 0
        self._spans: SpanWriter | None = None
        self._prefix = prefix

    def append(self, tokens: Tokens, rows: pa.RecordBatch, kinds: Bytes | None) -> None:
        """Add whole documents: all their ids, their rows, and of conversations the kind of each token."""
        lengths = np.asarray(rows["tokens"])
        if kinds is not None:
            self._spans = self._spans or SpanWriter(self._prefix)
            self._spans.append(kinds, lengths)
        self.shard.append(tokens, lengths)
        self._ledger.append(rows)
        self._text_bytes += pc.sum(rows["bytes"]).as_py() or 0

    def copy(self, prefix: Path) -> None:
        """Add the documents of another shard, a window of its ledger at a time."""
        reader, spans, at = ShardReader(prefix), spans_path(prefix), 0
        kinds = ShardSpans(spans).of_tokens if spans.exists() else None
        for rows in ledger_windows(ledger_path(prefix)):
            low, high = reader.offsets[at], reader.offsets[at + len(rows)]
            self.append(reader.tokens[low:high], rows, None if kinds is None else kinds[low:high])
            at += len(rows)

    def seal(self, source: str, split: str) -> tuple[Shard, tuple[SideFile, ...]]:
        """What the manifest says of its files. Ledger and spans go first: a shard that is there has them."""
        files, kinds = [self._ledger.seal(source)], None
        if self._spans:
            spans, kinds = self._spans.seal(source)
            files.append(spans)
        return self.shard.seal(source, split, self._text_bytes, kinds), tuple(files)


@cache
def software() -> dict[str, str]:
    """The versions of this process."""
    return {
        "pretok": PRETOK_VERSION,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def all_software(used: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Every version that was used, of each package: `20.0.0`, or `20.0.0, 21.0.0`."""
    found: dict[str, set[str]] = {}
    for versions in used:
        for name, each in versions.items():
            found.setdefault(name, set()).update(each.split(", "))
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def refuse_other_engine(shards: Path, made: Mapping[str, str]) -> None:
    """MismatchError where an engine of another version made what is in `shards`."""
    now = software()
    if others := [name for name in ENGINES if made.get(name, now[name]) != now[name]]:
        name = others[0]
        raise MismatchError(
            f"{shards} holds ids of {name} {made[name]}, and {os.uname().nodename} has {name} {now[name]}, which may "
            f"give other ids to the same text: pip install {name}=={made[name].rpartition(', ')[2]}, or use another "
            "--out folder"
        )
