"""Columns joined to documents after they became tokens: a second ledger, in a folder of its own beside the shards.

Input: a manifest, and what `pretok annotate` left. Output: `Annotations`, whose rows stand in the order of the shards.

    SHARDS/annotations/NAME/
      annotations.json                 the record: what was joined, by which key, counts, sizes and checksums
      it-00000-1a2b3c4d.parquet        a row for each document of one shard

A row holds `NAME_matched` and the joined columns, null where nothing matched. Row groups are the windows of the ledger
of the shard. The record is written last and at once: files it does not name are what a killed job left. A file is bound
to the ledger of its shard by the root; where a source was made anew since, its file is refused.
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
from pretok.read.kept import TYPES
from pretok.shards.manifest import Manifest, Shard

FOLDER = "annotations"
RECORD = "annotations.json"
FORMAT, VERSION = "pretok-annotations", 3


class JoinedColumn(Record, frozen=True):
    """A joined column; type: a key of `pretok.read.kept.TYPES`."""

    name: str
    type: str


class GivenFile(Record, frozen=True):
    """A file that was joined, as it was then; identity as of any input."""

    path: str
    size: Count
    identity: str


class JoinedPart(Record, frozen=True):
    """The file of rows of one shard, `path` in the folder; shard: the path of its `.bin` in the manifest; ledger: the
    root of its ledger; documents, matched: rows, and those to which something was joined."""

    path: str
    shard: str
    source: str
    ledger: str
    documents: Count
    matched: Count
    file_bytes: Count
    checksum: str


class JoinCounts(Record, frozen=True):
    """rows: given, without repetitions; repeated: rows left out that say again what an earlier row says; rows_matched:
    those that a document has the key of; documents, documents_matched: looked at, and those with a row."""

    rows: Count
    repeated: Count
    rows_matched: Count
    documents: Count
    documents_matched: Count


class AnnotationRecord(Record, frozen=True):
    """annotations.json; made: when, UTC; by: the key, columns of the view `documents` of `pretok query`."""

    made: str
    by: tuple[str, ...]
    columns: tuple[JoinedColumn, ...]
    counts: JoinCounts
    files: tuple[GivenFile, ...]
    parts: tuple[JoinedPart, ...]


@dataclass(frozen=True)
class Annotations:
    """A set of joined columns and where it is."""

    folder: Path
    record: AnnotationRecord

    @property
    def name(self) -> str:
        """The name it was given."""
        return self.folder.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns, `NAME_matched` first."""
        return (matched_column(self.name), *(column.name for column in self.record.columns))

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Name -> type of its columns."""
        return {matched_column(self.name): pa.bool_()} | {c.name: TYPES[c.type] for c in self.record.columns}

    @property
    def files(self) -> dict[Path, JoinedPart]:
        """Every file that the record names."""
        return {self.folder / part.path: part for part in self.record.parts}

    def check(self) -> None:
        """Raises IntegrityError where one of them is not as it was sealed."""
        for path, file in self.files.items():
            compare_checksum(path, file.checksum)

    @cached_property
    def _of_shard(self) -> dict[str, JoinedPart]:
        return {part.shard: part for part in self.record.parts}

    def windows(self, shard: Shard, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows of a shard's documents, a window of its ledger at a time. No window where the set has no such documents.

        Raises IntegrityError."""
        if part := self._of_shard.get(shard.path):
            path = self.folder / part.path
            with reading(path, pa.ArrowException), pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=list(columns), use_threads=False)
                    yield from table.combine_chunks().to_batches()


def matched_column(name: str) -> str:
    """The column that says of each document whether a row was joined to it."""
    return f"{name}_matched"


def annotations_folder(shards: Path, name: str) -> Path:
    """Where the annotations of a name are."""
    return shards / FOLDER / name


def write_annotations(folder: Path, record: AnnotationRecord) -> Annotations:
    """Write the record, which makes its files count."""
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
        raise IntegrityError(f"{path} is no record of annotations")
    check_version(data.pop("version", None), VERSION, path, "run pretok annotate again")
    seal = data.pop("seal", None)
    record = read_record(AnnotationRecord, data, path)
    if seal != fingerprint(data):
        raise IntegrityError(f"{path} was edited or damaged: its seal is not that of its contents")
    return Annotations(folder, record)


def find_annotations(shards: Path) -> list[Annotations]:
    """Those beside these shards, by name. Raises IntegrityError, MismatchError."""
    return [read_annotations(path.parent) for path in sorted((shards / FOLDER).glob(f"*/{RECORD}"))]


def open_annotations(manifest: Manifest) -> list[Annotations]:
    """The same. Raises MismatchError too where one was joined to other documents than those that are there now."""
    found = find_annotations(manifest.folder)
    for one in found:
        if outdated := outdated_parts(manifest, one):
            raise MismatchError(outdated[0])
    return found


def outdated_parts(manifest: Manifest, annotations: Annotations) -> list[str]:
    """A sentence for each of its files that is bound to other ledgers than the manifest's."""
    ledgers = {shard.path: manifest.roots.get(shard.ledger_path) for shard in manifest.shards}
    return [
        f"{annotations.folder / part.path}: the documents of {part.source} are others than those it was joined to; run "
        f"pretok annotate again, or delete {annotations.folder}"
        for part in annotations.record.parts
        if ledgers.get(part.shard) != part.ledger
    ]


def unknown_sources(manifest: Manifest, annotations: Annotations) -> list[str]:
    """Sources with documents of which the annotations know nothing: they came later, or were appended."""
    known = Counter[str]()
    for part in annotations.record.parts:
        known[part.source] += part.documents
    return [name for name, counts in manifest.sources.items() if known[name] < counts.documents]
