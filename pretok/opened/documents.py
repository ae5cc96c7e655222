"""One shard -> rows of its documents, with where they came from, what is kept of them and, if asked for, their texts.

Enters: a manifest and its shards. Leaves: Arrow record batches, at most a window of the ledger each. The columns are
those of `docs` in `pretok query`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from pretok.audit.texts import load_decoder, shard_texts
from pretok.base.errors import UsageError
from pretok.read.kept import TYPES
from pretok.shards.annotations import Annotations, matched_column, open_annotations
from pretok.shards.ledger import SCHEMA, hex_digits, ledger_path, ledger_schema, ledger_windows
from pretok.shards.manifest import Manifest, Shard
from pretok.shards.positions import PLACE_IN_FILE, LinesBefore, lines_of_source, row_positions

OURS = (
    ("source", pa.string()),
    ("split", pa.string()),
    ("shard", pa.string()),
    ("doc", pa.int64()),
    ("file", pa.string()),
    ("position", pa.int64()),
    ("tokens", pa.int32()),
    ("bytes", pa.int64()),
    ("hash", pa.string()),
)
"""The columns that every document has: its source, split and shard, its number in the split, its input and the line or
row there (from 1), tokens (BOS and EOD included), bytes and hash of its text."""
PLACE = ("source", "split", "doc")
TEXT = pa.field("text", pa.large_string())


@dataclass(frozen=True)
class Documents:
    """The documents of some shards. numbered: each shard with the documents of its split before it."""

    manifest: Manifest
    numbered: tuple[tuple[Shard, int], ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """OURS, then the kept columns of all shards, then the joined ones. UsageError where two shards keep one name as
        two types."""
        kept: dict[str, tuple[pa.DataType, str]] = {}
        for shard, _ in self.numbered:
            for field in ledger_schema(ledger_path(shard.prefix)):
                known, source = kept.setdefault(field.name, (field.type, shard.source))
                if known != field.type:
                    raise UsageError(
                        f"column {field.name} is {known} in source {source} and {field.type} in {shard.source}: "
                        "open the sources one by one (source=...)"
                    )
        found = {name: kind for name, (kind, _) in kept.items() if name not in SCHEMA.names}
        for one in self.joined:
            found |= {matched_column(one.name): pa.bool_()}
            found |= {column.name: TYPES[column.type] for column in one.record.columns}
        return pa.schema([*OURS, *found.items()])

    @cached_property
    def joined(self) -> list[Annotations]:
        """What `pretok annotate` joined. MismatchError where it was joined to other documents."""
        return open_annotations(self.manifest)

    @cached_property
    def _lines(self) -> dict[str, LinesBefore]:
        """Of each source, and not of each of its shards: a plan names every file."""
        return {
            source: lines_of_source(self.manifest, source) for source in {s.source for s, _ in self.numbered}
        }

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows of every shard, with these columns."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        for shard, before in self.numbered:
            for rows in self._rows(shard, before, columns):
                yield _with_columns(rows, schema)

    def read_texts(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows of every shard, with these columns and `text`. IntegrityError for ids that are no text."""
        schema = pa.schema([*(self.schema.field(name) for name in columns), TEXT])
        decoder = load_decoder(self.manifest)
        for shard, before in self.numbered:
            start = 0
            for rows in self._rows(shard, before, columns):
                end = start + len(rows)
                for low, texts in shard_texts(shard, decoder, start, end):
                    part = rows.slice(low - start, len(texts))
                    yield _with_columns(part.append_column(TEXT, texts), schema)
                start = end

    def _rows(self, shard: Shard, before: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        path = ledger_path(shard.prefix)
        needed = {"tokens", *columns} | (set(PLACE_IN_FILE) if "position" in columns else set())
        joined = [
            one.windows(self.manifest, shard, wanted)
            for one in self.joined
            if (wanted := [name for name in one.columns if name in columns])
        ]
        for rows in ledger_windows(path, [name for name in ledger_schema(path).names if name in needed]):
            found = dict(zip(rows.schema.names, rows.columns, strict=True))
            if "position" in columns:
                found["position"] = row_positions(rows, self._lines[shard.source])
            if "hash" in columns:
                found["hash"] = hex_digits(found["hash"]).cast(pa.string())
            for (
                windows
            ) in joined:  # a window of the ledger each, or none at all for a source they do not know
                if (window := next(windows, None)) is not None:
                    found |= dict(zip(window.schema.names, window.columns, strict=True))
            yield _with_place(shard, before, len(rows), found)
            before += len(rows)


def _with_place(shard: Shard, before: int, count: int, found: dict[str, pa.Array]) -> pa.RecordBatch:
    """The columns of a ledger, and what follows from where they are."""
    texts = {"source": shard.source, "split": shard.split, "shard": shard.prefix.name}
    place = {name: pa.repeat(pa.scalar(value, pa.string()), count) for name, value in texts.items()}
    place["doc"] = pa.array(np.arange(before, before + count))
    return pa.RecordBatch.from_pydict(place | found)


def _with_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`; null where this shard has none."""
    held = set(rows.schema.names)
    columns = [
        rows[field.name] if field.name in held else pa.nulls(len(rows), field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
