"""A WORK folder in Python, as `pretok.open` returns it.

Input: WORK, with shards/ and maybe mix.json and vocab/, or a folder of shards. Output: a `Work`. Opening reads only the
manifest; everything else is read when it is needed, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

import pyarrow as pa

from pretok.base.errors import UsageError
from pretok.base.records import read_record
from pretok.base.storage import read_json
from pretok.shards.annotations import Annotations, open_annotations
from pretok.shards.document_table import Numbered, check_place, chosen_shards, scan
from pretok.shards.ledger import REMOVED, SCHEMA, hex_digits, ledger_schema
from pretok.shards.manifest import SPLITS, Manifest, has_manifest, load_manifest
from pretok.shards.texts import load_decoder, shard_texts
from pretok.shards.unfinished import incomplete, refuse_unfinished
from pretok.stream.mix_file import Mix, load_mix
from pretok.vocab.report_file import VocabReport

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
"""The columns of every document: source, split and shard, number in the split, input and line or row there (from 1),
tokens (with BOS and EOD), bytes and hash of its text."""
PLACE = ("source", "split", "doc")
TEXT = pa.field("text", pa.large_string())
REJECTS = pa.schema({"source": TEXTS, "file": TEXTS, "position": NUMBERS, "reason": TEXTS, "detail": TEXTS})
BATCH = 65_536
"""Rejects in a batch."""


class Work:
    """Finished work, read only.

    manifest: the sealed description of the shards; sources: their names, sorted; mix: the mix in WORK/mix.json, or
    None; vocabulary: the report of build-vocab, or None; incomplete: what is missing from the shards, as sentences.
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
        """The mix. Raises IntegrityError if the file is damaged."""
        path = self.folder / "mix.json"
        return load_mix(path) if path.exists() else None

    @cached_property
    def vocabulary(self) -> VocabReport | None:
        """The report of build-vocab. Raises IntegrityError if the file is damaged."""
        path = self.folder / "vocab" / "report.json"
        return read_record(VocabReport, read_json(path), path) if path.exists() else None

    def counts(self) -> pa.Table:
        """Return exact counts, a row for each source and split.

        Columns: source, split, tokens (with BOS and EOD), documents, bytes of text.
        """
        rows = [
            (name, split, part.tokens, part.documents, part.bytes)
            for name, counts in self.manifest.sources.items()
            for split, part in zip(SPLITS, (counts.train, counts.val), strict=True)
        ]
        names = ["source", "split", "tokens", "documents", "bytes"]
        return pa.table(list(map(list, zip(*rows, strict=True))), names)

    def documents(
        self, source: str | None = None, split: str | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """Read the ledger, a row for each document of a source or split, or of all, in the order of the shards.

        columns: by default all of source, split, shard, doc (the number in the split, as for `pretok inspect`), file,
        position (line or row, from 1), tokens (with BOS and EOD), bytes, hash (hexadecimal), and the kept and the
        joined columns. Raises UsageError for an unknown source, split or column.
        """
        return self._read(source, split, columns, with_text=False)

    def texts(
        self, source: str | None = None, split: str | None = None, columns: Sequence[str] = PLACE
    ) -> pa.RecordBatchReader:
        """Decode the texts from the shards, after normalization.

        Returns the `columns` of `documents` and `text`, a row for each document, in the same order. Iterate over the
        batches if the texts may not fit in memory.
        """
        return self._read(source, split, columns, with_text=True)

    def rejects(self, source: str | None = None) -> pa.RecordBatchReader:
        """Read the rejected records: source, file, position (line or row, from 1), reason, detail."""
        check_place(self.manifest, source, None)

        names = self.sources if source is None else (source,)
        lines = ({"source": name, **line} for name in names for line in self.manifest.reject_lines(name))
        blocks = iter(lambda: list(islice(lines, BATCH)), [])
        batches = (pa.RecordBatch.from_pylist(block, REJECTS) for block in blocks)
        return pa.RecordBatchReader.from_batches(REJECTS, batches)

    def _read(
        self, source: str | None, split: str | None, columns: Sequence[str] | None, *, with_text: bool
    ) -> pa.RecordBatchReader:
        numbered = chosen_shards(self.manifest, source, split)
        joined = open_annotations(self.manifest)
        types = _types(numbered, joined)
        columns = list(types) if columns is None else columns
        if unknown := [name for name in columns if name not in types]:
            raise UsageError(f"no column {unknown[0]!r}; the columns are {', '.join(types)}")
        known = pa.schema({name: types[name] for name in columns})

        def batches() -> Iterator[pa.RecordBatch]:
            decoder = load_decoder(self.manifest) if with_text else None
            befores = {shard.bin_path: before for shard, before in numbered}
            for shard, first, batch in scan(self.manifest, columns, numbered, joined):
                arrays = [
                    (hex_digits(array) if name == "hash" else array).cast(types[name])
                    for name, array in zip(columns, batch.columns, strict=True)
                ]
                rows = pa.RecordBatch.from_arrays(arrays, schema=known)
                if decoder is None:
                    yield rows
                    continue
                start = first - befores[shard.bin_path]
                for low, texts in shard_texts(shard, decoder, start, start + len(rows)):
                    yield rows.slice(low - start, len(texts)).append_column(TEXT, texts)

        return pa.RecordBatchReader.from_batches(known.append(TEXT) if with_text else known, batches())

    def __repr__(self) -> str:
        totals, names = self.manifest.totals, ", ".join(self.sources)
        return f"<pretok work {self.folder}: {totals.tokens:,} tokens in {totals.documents:,} documents of {names}>"


def _types(numbered: Sequence[Numbered], joined: Sequence[Annotations]) -> dict[str, pa.DataType]:
    """Return the type of every column of the documents. Raises UsageError if a column has two types in two shards."""
    try:
        known = pa.unify_schemas(
            [SCHEMA, *(ledger_schema(shard.ledger_path) for shard, _ in numbered), REMOVED]
        )
    except pa.ArrowTypeError as error:
        raise UsageError(f"{error}: open the sources one by one (source=...)") from None
    types = OURS | {field.name: field.type for field in known if field.name not in SCHEMA.names}
    for table in joined:
        types |= table.types
    return types


def open_work(work: str | Path) -> Work:
    """Open a WORK folder, or its shards, for reading.

    Raises IntegrityError if there are no finished shards or they are damaged, MismatchError if another version made
    them.
    """
    return Work(Path(work))
