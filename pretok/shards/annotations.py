"""Columns that were joined to documents after tokenizing: a second ledger, in a folder of its own beside the shards.

`pretok annotate` writes them. Their rows are in the order of the documents of each shard.

    SHARDS/annotations/NAME/
      annotations.json                 the record: what was joined, by which key, counts, sizes and checksums
      it-00000-1a2b3c4d.parquet        a row for each document of one shard

A row has `NAME_matched` and the joined columns, which are null if nothing matched. The row groups are those of the
ledger of the shard. The record is written last, in one step: files that it does not name were left by a killed job. It
names the root of the ledger that each file belongs to; if the ledger has changed since, the file is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.records import Count, Record, check_version, read_record, to_json
from pretok.base.storage import compare_checksum, fingerprint, read_json, reading, write_json
from pretok.read.files import InputFile
from pretok.read.kept import TYPES
from pretok.shards.manifest import Manifest, Shard

FOLDER = "annotations"
RECORD = "annotations.json"
FORMAT, VERSION = "pretok-annotations", 4


class JoinedPart(Record, frozen=True):
    """The rows of one shard: the file `path` in the folder. shard: the path of the `.bin` in the manifest; ledger: the
    root of its ledger; documents, matched: rows, and those with a match."""

    path: str
    shard: str
    source: str
    ledger: str
    documents: Count
    matched: Count
    file_bytes: Count
    checksum: str


class JoinCounts(Record, frozen=True):
    """rows: given rows with different keys; repeated: rows left out because they repeat an earlier one; rows_matched:
    rows whose key a document has; documents, documents_matched: all documents, and those with a match."""

    rows: Count
    repeated: Count
    rows_matched: Count
    documents: Count
    documents_matched: Count


class AnnotationRecord(Record, frozen=True):
    """annotations.json. made: when, UTC; by: the columns of the key, as `pretok query` names them; columns: name ->
    type, a key of `pretok.read.kept.TYPES`; files: what was joined."""

    made: str
    by: tuple[str, ...]
    columns: dict[str, str]
    counts: JoinCounts
    files: tuple[InputFile, ...]
    parts: tuple[JoinedPart, ...]


@dataclass(frozen=True)
class Annotations:
    """A set of joined columns and its folder."""

    folder: Path
    record: AnnotationRecord

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns, `NAME_matched` first."""
        return (matched_column(self.name), *self.record.columns)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Name -> type of its columns."""
        return {matched_column(self.name): pa.bool_()} | {
            name: TYPES[kind] for name, kind in self.record.columns.items()
        }

    @property
    def files(self) -> dict[Path, JoinedPart]:
        """The files that the record names."""
        return {self.folder / part.path: part for part in self.record.parts}

    def check(self) -> None:
        """Raises IntegrityError if one of them was changed."""
        for path, file in self.files.items():
            compare_checksum(path, file.checksum)

    @cached_property
    def _of_shard(self) -> dict[str, JoinedPart]:
        return {part.shard: part for part in self.record.parts}

    def windows(self, shard: Shard, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a shard's documents, one row group at a time; none if the set does not know the shard.

        Raises IntegrityError.
        """
        if part := self._of_shard.get(shard.path):
            path = self.folder / part.path
            with reading(path, pa.ArrowException), pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=list(columns), use_threads=False)
                    yield from table.combine_chunks().to_batches()


def matched_column(name: str) -> str:
    """Name of the column that says whether a document has a match."""
    return f"{name}_matched"


def annotations_folder(shards: Path, name: str) -> Path:
    """Folder of the annotations with a name."""
    return shards / FOLDER / name


def write_annotations(folder: Path, record: AnnotationRecord) -> Annotations:
    """Write the record, which makes its files valid."""
    write_json(folder / RECORD, annotations_data(record))
    return Annotations(folder, record)


def annotations_data(record: AnnotationRecord) -> dict[str, Any]:
    """The file as JSON."""
    body = to_json(record)
    head = {"format": FORMAT, "version": VERSION, "seal": fingerprint(body)}
    return {**head, **body}


def read_annotations(folder: Path) -> Annotations:
    """Read FOLDER/annotations.json. Raises IntegrityError, MismatchError."""
    path = folder / RECORD
    data = read_json(path)
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise IntegrityError(f"{path} is not a record of annotations")
    check_version(data.pop("version", None), VERSION, path, "run pretok annotate again")
    seal = data.pop("seal", None)
    record = read_record(AnnotationRecord, data, path)
    if seal != fingerprint(data):
        raise IntegrityError(f"{path} was edited or damaged: its seal is not that of its contents")
    return Annotations(folder, record)


def find_annotations(shards: Path) -> list[Annotations]:
    """All annotations of the shards, by name. Raises IntegrityError, MismatchError."""
    return [read_annotations(path.parent) for path in sorted((shards / FOLDER).glob(f"*/{RECORD}"))]


def open_annotations(manifest: Manifest) -> list[Annotations]:
    """All annotations of the shards, by name. Raises MismatchError if one was joined to documents that have changed."""
    found = find_annotations(manifest.folder)
    for one in found:
        if outdated := outdated_parts(manifest, one):
            raise MismatchError(outdated[0])
    return found


def outdated_parts(manifest: Manifest, annotations: Annotations) -> list[str]:
    """A sentence for each of its files that belongs to another ledger than the manifest's."""
    ledgers = {shard.path: manifest.roots.get(shard.ledger_path) for shard in manifest.shards}
    return [
        f"{annotations.folder / part.path}: the documents of {part.source} are others than those it was joined to; run "
        f"pretok annotate again, or delete {annotations.folder}"
        for part in annotations.record.parts
        if ledgers.get(part.shard) != part.ledger
    ]


def unknown_sources(manifest: Manifest, annotations: Annotations) -> list[str]:
    """Sources with documents that the annotations do not know, because they were added later."""
    known = Counter[str]()
    for part in annotations.record.parts:
        known[part.source] += part.documents
    return [name for name, counts in manifest.sources.items() if known[name] < counts.documents]
