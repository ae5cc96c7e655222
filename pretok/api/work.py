"""A WORK folder as Python sees it: what `pretok.open` gives.

Input: WORK, which holds shards/ and maybe mix.json and vocab/, or a folder of shards itself. Output: a `Work`. Opening
reads the manifest; everything else is read when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa

from pretok.api.rows import LazyTable
from pretok.base.errors import UsageError
from pretok.base.records import read_record
from pretok.base.storage import read_json
from pretok.read.kept import TYPES
from pretok.shards.annotations import Annotations, matched_column, open_annotations
from pretok.shards.documents import Numbered, check_place, chosen_shards, scan
from pretok.shards.ledger import REMOVED, SCHEMA, hex_digits, ledger_schema
from pretok.shards.manifest import SPLITS, Manifest, has_manifest, load_manifest
from pretok.shards.texts import load_decoder, shard_texts
from pretok.shards.unfinished import incomplete, refuse_unfinished
from pretok.stream.mix_file import Mix, load_mix
from pretok.vocab.records import VocabReport

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
COUNTS = pa.schema(
    [("source", pa.string()), ("split", pa.string())]
    + [(name, pa.int64()) for name in ("tokens", "documents", "bytes")]
)
REJECTS = pa.schema(
    [
        ("source", pa.string()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)
BATCH = 65_536
"""Rejects of a batch."""


@dataclass(frozen=True)
class Documents:
    """The documents of some shards. numbered: each shard with the documents of its split before it."""

    manifest: Manifest
    numbered: tuple[Numbered, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """OURS, the kept columns of all shards, REMOVED, what was joined. UsageError where a column is of two types in
        two shards."""
        kept: dict[str, tuple[pa.DataType, str]] = {}
        for shard, _ in self.numbered:
            for field in ledger_schema(shard.ledger_path):
                known, source = kept.setdefault(field.name, (field.type, shard.source))
                if known != field.type:
                    raise UsageError(
                        f"column {field.name} is {known} in source {source} and {field.type} in {shard.source}: "
                        "open the sources one by one (source=...)"
                    )
        found = {name: kind for name, (kind, _) in kept.items() if name not in SCHEMA.names}
        found |= {field.name: field.type for field in REMOVED}
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


class Work:
    """Finished work, read only.

    manifest: the sealed description of the shards; sources: their names, sorted; mix: that of WORK/mix.json, None
    without one; vocabulary: the report of build-vocab, None without one; incomplete: what the shards lack, as
    sentences, () for nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        shards = self.folder if has_manifest(self.folder) else self.folder / "shards"
        refuse_unfinished(shards)
        self.manifest: Manifest = load_manifest(shards)
        self.sources: tuple[str, ...] = tuple(self.manifest.sources)
        self.incomplete: tuple[str, ...] = tuple(incomplete(self.manifest))

    @cached_property
    def mix(self) -> Mix | None:
        """The mix, which a notebook shows. IntegrityError where the file is damaged."""
        path = self.folder / "mix.json"
        return load_mix(path) if path.exists() else None

    @cached_property
    def vocabulary(self) -> VocabReport | None:
        """The report of build-vocab. IntegrityError where the file is damaged."""
        path = self.folder / "vocab" / "report.json"
        return read_record(VocabReport, read_json(path), path) if path.exists() else None

    def counts(self) -> LazyTable:
        """Exact counts, a row a source and split: source, split, tokens (BOS and EOD included), documents, bytes of
        text."""
        rows = [
            {"source": name, "split": split, "tokens": c.tokens, "documents": c.documents, "bytes": c.bytes}
            for name in self.sources
            for split in SPLITS
            for c in [getattr(self.manifest.sources[name], split)]
        ]
        return LazyTable("counts", COUNTS, len(rows), partial(_one_batch, rows))

    def documents(
        self, source: str | None = None, split: str | None = None, columns: Sequence[str] | None = None
    ) -> LazyTable:
        """What is known of each document, a row each, of one source or split or of all, in the order of the shards.

        columns: those wanted, all by default: source, split, shard, doc (its number in the split, as `pretok inspect`
        takes it), file and position (line or row, from 1), tokens (BOS and EOD included), bytes and hash (hexadecimal)
        of its text, the kept and the joined ones. UsageError for a source, split or column that is not there.
        """
        found = self._documents(source, split)
        wanted = self._checked(found, found.schema.names if columns is None else columns)
        schema = pa.schema([found.schema.field(name) for name in wanted])
        return LazyTable("documents", schema, _count(found), partial(found.read, wanted))

    def texts(
        self, source: str | None = None, split: str | None = None, columns: Sequence[str] = PLACE
    ) -> LazyTable:
        """The texts as they were tokenized (after normalization), decoded from the shards: `columns` of `documents` and
        `text`, a row a document, in the same order. Iterate over them where they may not fit into memory.

        Raises as `documents`; reading them IntegrityError for shards that are damaged.
        """
        found = self._documents(source, split)
        wanted = self._checked(found, columns)
        schema = pa.schema([*(found.schema.field(name) for name in wanted), ("text", pa.large_string())])
        return LazyTable("texts", schema, _count(found), partial(found.read_texts, wanted))

    def rejects(self, source: str | None = None) -> LazyTable:
        """The records that are no documents: source, file, position (line or row, from 1), reason, detail."""
        check_place(self.manifest, source, None)
        names = self.sources if source is None else (source,)
        length = sum(sum(self.manifest.sources[name].rejected.values()) for name in names)
        return LazyTable("rejects", REJECTS, length, partial(self._read_rejects, names))

    def _read_rejects(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for name in names:
            rows: list[object] = []
            for line in self.manifest.reject_lines(name):
                rows.append({"source": name, **line})
                if len(rows) == BATCH:
                    yield pa.RecordBatch.from_pylist(rows, REJECTS)
                    rows = []
            if rows:
                yield pa.RecordBatch.from_pylist(rows, REJECTS)

    def _documents(self, source: str | None, split: str | None) -> Documents:
        return Documents(self.manifest, chosen_shards(self.manifest, source, split))

    def _checked(self, found: Documents, columns: Sequence[str]) -> Sequence[str]:
        names = found.schema.names
        if unknown := [column for column in columns if column not in names]:
            raise UsageError(f"no column {unknown[0]!r}; there are {', '.join(names)}")
        return columns

    def __repr__(self) -> str:
        totals = self.manifest.totals
        return (
            f"<pretok work {self.folder}: {totals.tokens:,} tokens in {totals.documents:,} documents of "
            f"{', '.join(self.sources)}>"
        )


def _typed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns in the types of `schema`; null where a shard has none."""
    columns = [
        hex_digits(column) if field.name == "hash" else column
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _one_batch(rows: list[dict[str, object]]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist(rows, COUNTS)


def _count(found: Documents) -> int:
    return sum(shard.documents for shard, _ in found.numbered)


def open_work(work: str | Path) -> Work:
    """Open a WORK folder, or its shards, for reading.

    Raises IntegrityError (no finished shards there, or damaged), MismatchError (made by another version).
    """
    return Work(Path(work))
