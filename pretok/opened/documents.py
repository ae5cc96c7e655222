"""One shard -> rows of its documents, with where they came from, what is kept of them and, if asked for, their texts.

Enters: a manifest and its shards. Leaves: Arrow record batches, at most a window of the ledger each. The columns are
those of `docs` in `pretok query`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from pretok.base.errors import UsageError
from pretok.read.kept import TYPES
from pretok.shards.annotations import Annotations, matched_column, open_annotations
from pretok.shards.documents import Numbered, scan
from pretok.shards.ledger import SCHEMA, hex_digits, ledger_path, ledger_schema
from pretok.shards.manifest import Manifest
from pretok.shards.texts import load_decoder, shard_texts

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
    numbered: tuple[Numbered, ...]

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

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows of every shard, with these columns."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        for _, _, rows in scan(self.manifest, columns, self.numbered, self.joined):
            yield _typed(rows, schema)

    def read_texts(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows of every shard, with these columns and `text`. IntegrityError for ids that are no text."""
        schema = pa.schema([*(self.schema.field(name) for name in columns), TEXT])
        decoder, befores = load_decoder(self.manifest), dict(self.numbered)
        for shard, first, rows in scan(self.manifest, columns, self.numbered, self.joined):
            start = first - befores[shard]
            for low, texts in shard_texts(shard, decoder, start, start + len(rows)):
                yield _typed(rows.slice(low - start, len(texts)).append_column(TEXT, texts), schema)


def _typed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns in the types of `schema`; null where a shard has none."""
    columns = [
        hex_digits(column) if field.name == "hash" else column
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
