"""Documents by what they are called or what they say.

Enters: a manifest, and a column of the ledgers with a value, or a piece of text. Leaves: (source, split, number) of the
documents that match, in the order of the shards. A column is read as a whole, of all shards of the sources; for a text
the shards are decoded, which reads all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.errors import IntegrityError, UsageError
from pretok.shards.format import ShardReader
from pretok.shards.ledger import HASH, ledger_path, ledger_schema, ledger_windows
from pretok.shards.manifest import Manifest, Shard
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, load_vocab

Place = tuple[str, str, int]
"""(source, split, number of the document in it)"""


def find_documents(manifest: Manifest, source: str | None, column: str, value: str, most: int) -> list[Place]:
    """The first `most` documents, of one source or of all, whose `column` of the ledger has a value; `text`: those that
    hold the value. Raises UsageError for a column that no ledger has, or a value that it cannot have."""
    if source is not None and source not in manifest.sources:
        raise UsageError(f"no source {source!r}; there is {', '.join(manifest.sources)}")
    shards = [
        (shard, before) for shard, before in _numbered(manifest) if source is None or shard.source == source
    ]
    matches = _by_text(manifest, shards, value) if column == "text" else _by_column(shards, column, value)
    return list(islice(matches, most))


def _numbered(manifest: Manifest) -> Iterator[tuple[Shard, int]]:
    """Each shard with the documents of its source and split before it."""
    before: dict[tuple[str, str], int] = {}
    for shard in manifest.shards:
        key = (shard.source, shard.split)
        yield shard, before.get(key, 0)
        before[key] = before.get(key, 0) + shard.documents


def _by_column(shards: list[tuple[Shard, int]], column: str, value: str) -> Iterator[Place]:
    known: set[str] = set()
    found = False
    for shard, before in shards:
        path = ledger_path(shard.prefix)
        if not path.exists():
            raise IntegrityError(
                f"{path} does not exist: the shards of {shard.source} were made without ledgers"
            )
        schema = ledger_schema(path)
        known |= set(schema.names)
        if column not in schema.names:
            continue
        found = True
        scalar = _scalar(schema.field(column).type, column, value)
        at = before
        for rows in ledger_windows(path, [column]):
            for row in np.flatnonzero(np.asarray(pc.fill_null(pc.equal(rows[column], scalar), False))):
                yield shard.source, shard.split, at + int(row)
            at += len(rows)
    if not found:
        raise UsageError(f"no ledger has a column {column!r}; there are {', '.join(sorted(known))}")


def _scalar(kind: pa.DataType, column: str, value: str) -> Any:
    """The value as one of the column."""
    try:
        return pa.scalar(bytes.fromhex(value), HASH) if kind == HASH else pa.scalar(value).cast(kind)
    except (ValueError, pa.ArrowException):
        what = "32 hexadecimal digits" if kind == HASH else str(kind)
        raise UsageError(f"{column} is {what}, not {value!r}") from None


def _by_text(manifest: Manifest, shards: list[tuple[Shard, int]], value: str) -> Iterator[Place]:
    vocab = load_vocab(manifest.folder / TOKENIZER_FILE, eod=manifest.eod_id)
    tokens = [vocab.token_bytes(i) for i in range(vocab.size)]
    wanted = value.encode()
    for shard, before in shards:
        reader = ShardReader(shard.prefix)
        for number in range(len(reader)):
            if wanted in b"".join([tokens[i] for i in reader[number][:-1].tolist()]):
                yield shard.source, shard.split, before + number
