"""A WORK folder as Python sees it: what `pretok.open` gives.

Input: WORK, which holds shards/ and maybe mix.json and vocab/, or a folder of shards itself. Output: a `Work`. Opening
reads the manifest; everything else is read when it is asked for, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from pretok.base.errors import UsageError
from pretok.base.records import read_record
from pretok.base.storage import read_json
from pretok.shards.annotations import Annotations, open_annotations
from pretok.shards.documents import Numbered, check_place, chosen_shards, scan
from pretok.shards.ledger import REMOVED, SCHEMA, hex_digits, ledger_schema
from pretok.shards.manifest import SPLITS, Manifest, has_manifest, load_manifest
from pretok.shards.texts import load_decoder, shard_texts
from pretok.shards.unfinished import incomplete, refuse_unfinished
from pretok.stream.mix_file import Mix, load_mix
from pretok.vocab.records import VocabReport

TEXTS, NUMBERS = pa.string(), pa.int64()
OURS = {
    **dict.fromkeys(("source", "split", "shard"), TEXTS),
    "doc": NUMBERS,
    "file": TEXTS,
    "position": NUMBERS,
    "tokens": pa.int32(),
    "bytes": NUMBERS,
    "hash": TEXTS,
}
"""The columns that every document has: its source, split and shard, its number in the split, its input and the line or
row there (from 1), tokens (BOS and EOD included), bytes and hash of its text."""
PLACE = ("source", "split", "doc")
TEXT = pa.field("text", pa.large_string())
REJECTS = pa.schema({"source": TEXTS, "file": TEXTS, "position": NUMBERS, "reason": TEXTS, "detail": TEXTS})
BATCH = 65_536
"""Rejects of a batch."""


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

    def counts(self) -> pa.Table:
        """Exact counts, a row a source and split: source, split, tokens (BOS and EOD included), documents, bytes of
        text."""
        return pa.Table.from_pylist(
            [
                {
                    "source": name,
                    "split": split,
                    "tokens": held.tokens,
                    "documents": held.documents,
                    "bytes": held.bytes,
                }
                for name, counts in self.manifest.sources.items()
                for split, held in zip(SPLITS, (counts.train, counts.val), strict=True)
            ]
        )

    def documents(
        self, source: str | None = None, split: str | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """What is known of each document, a row each, of one source or split or of all, in the order of the shards.

        columns: those wanted, all by default: source, split, shard, doc (its number in the split, as `pretok inspect`
        takes it), file and position (line or row, from 1), tokens (BOS and EOD included), bytes and hash (hexadecimal)
        of its text, the kept and the joined ones. UsageError for a source, split or column that is not there.
        """
        return self._read(source, split, columns, with_text=False)

    def texts(
        self, source: str | None = None, split: str | None = None, columns: Sequence[str] = PLACE
    ) -> pa.RecordBatchReader:
        """The texts as they were tokenized (after normalization), decoded from the shards: `columns` of `documents` and
        `text`, a row a document, in the same order. Iterate over them where they may not fit into memory.

        Raises as `documents`; reading them IntegrityError for shards that are damaged.
        """
        return self._read(source, split, columns, with_text=True)

    def rejects(self, source: str | None = None) -> pa.RecordBatchReader:
        """The records that are no documents: source, file, position (line or row, from 1), reason, detail."""
        check_place(self.manifest, source, None)

        def batches() -> Iterator[pa.RecordBatch]:
            rows: list[dict[str, Any]] = []
            for name in self.sources if source is None else (source,):
                for line in self.manifest.reject_lines(name):
                    rows.append({"source": name, **line})
                    if len(rows) == BATCH:
                        yield pa.RecordBatch.from_pylist(rows, REJECTS)
                        rows = []
            yield pa.RecordBatch.from_pylist(rows, REJECTS)

        return pa.RecordBatchReader.from_batches(REJECTS, batches())

    def _read(
        self, source: str | None, split: str | None, columns: Sequence[str] | None, *, with_text: bool
    ) -> pa.RecordBatchReader:
        numbered = chosen_shards(self.manifest, source, split)
        joined = open_annotations(self.manifest)
        types = _types(numbered, joined)
        columns = list(types) if columns is None else columns
        if unknown := [name for name in columns if name not in types]:
            raise UsageError(f"no column {unknown[0]!r}; there are {', '.join(types)}")
        known = pa.schema({name: types[name] for name in columns})

        def batches() -> Iterator[pa.RecordBatch]:
            decoder, befores = load_decoder(self.manifest) if with_text else None, dict(numbered)
            for shard, first, found in scan(self.manifest, columns, numbered, joined):
                arrays = [
                    (hex_digits(array) if name == "hash" else array).cast(types[name])
                    for name, array in zip(columns, found.columns, strict=True)
                ]
                rows = pa.RecordBatch.from_arrays(arrays, schema=known)
                if decoder is None:
                    yield rows
                    continue
                start = first - befores[shard]
                for low, texts in shard_texts(shard, decoder, start, start + len(rows)):
                    yield rows.slice(low - start, len(texts)).append_column(TEXT, texts)

        return pa.RecordBatchReader.from_batches(known.append(TEXT) if with_text else known, batches())

    def __repr__(self) -> str:
        totals = self.manifest.totals
        return (
            f"<pretok work {self.folder}: {totals.tokens:,} tokens in {totals.documents:,} documents of "
            f"{', '.join(self.sources)}>"
        )


def _types(numbered: Sequence[Numbered], joined: Sequence[Annotations]) -> dict[str, pa.DataType]:
    """Every column of the documents of some shards. UsageError where one is of two types in two shards."""
    try:
        known = pa.unify_schemas(
            [SCHEMA, *(ledger_schema(shard.ledger_path) for shard, _ in numbered), REMOVED]
        )
    except pa.ArrowTypeError as error:
        raise UsageError(f"{error}: open the sources one by one (source=...)") from None
    types = OURS | {field.name: field.type for field in known if field.name not in SCHEMA.names}
    for one in joined:
        types |= one.types
    return types


def open_work(work: str | Path) -> Work:
    """Open a WORK folder, or its shards, for reading.

    Raises IntegrityError (no finished shards there, or damaged), MismatchError (made by another version).
    """
    return Work(Path(work))
