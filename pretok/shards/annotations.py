"""Columns that were joined to documents after tokenizing: further ledger files, in a folder next to the shards.

`pretok annotate` writes them. Their rows are in the order of the documents of each shard.

    SHARDS/annotations/NAME/
      annotations.json                 the record: what was joined, by which key, counts, sizes and roots
      it-00000-1a2b3c4d.parquet        a row for each document of one shard, written as a ledger is

A row has `NAME_matched` and the joined columns, which are null if nothing matched. The row groups are those of the
ledger of the shard. The record is written last, in one step: files that it does not name were left by a killed job. It
names the root of the ledger that each file belongs to; if the ledger has changed since, the file is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.records import (
    Count,
    Inside,
    Record,
    Root,
    check_version,
    read_record,
    replace,
    to_json,
)
from pretok.base.storage import fingerprint, read_json, write_json
from pretok.base.tree import compare_root
from pretok.read.files import InputFile
from pretok.read.kept import TYPES
from pretok.shards.ledger import MATCHED, ledger_windows
from pretok.shards.manifest import Manifest, Shard
from pretok.shards.shard_file import NOWHERE

FOLDER = "annotations"
RECORD = "annotations.json"
FORMAT, VERSION = "pretok-annotations", 5


class JoinedPart(Record, frozen=True):
    """The rows of one shard: the file `path` in the folder."""

    path: Inside
    ledger: Root
    """The root of the ledger of the shard."""
    documents: Count
    """Rows."""
    matched: Count
    """Rows with a match."""
    file_bytes: Count
    root: Root


class Annotations(Record, frozen=True, omit_defaults=True):
    """annotations.json."""

    made: str
    """When, UTC."""
    by: tuple[str, ...]
    """The columns of the key, as `pretok query` names them."""
    columns: dict[str, str]
    """Name -> type, a key of `pretok.read.kept.TYPES`."""
    rows: Count
    """Given rows with different keys."""
    repeated: Count
    """Rows left out because they repeat an earlier one."""
    rows_matched: Count
    """Rows whose key a document has."""
    files: tuple[InputFile, ...]
    """What was joined."""
    parts: dict[Inside, JoinedPart]
    """Path of the `.bin` of each shard -> its rows."""
    folder: Path = NOWHERE
    """Where the files are, which is not written."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Name -> Arrow type of its columns, `NAME_matched` first."""
        return {matched_column(self.name): pa.bool_()} | {
            name: TYPES[kind] for name, kind in self.columns.items()
        }

    @property
    def documents(self) -> int:
        """The number of documents that it knows."""
        return sum(part.documents for part in self.parts.values())

    @property
    def matched(self) -> int:
        """The number of documents with a match."""
        return sum(part.matched for part in self.parts.values())

    @property
    def roots(self) -> dict[Path, str]:
        """The root of every file that the record names."""
        return {self.folder / part.path: part.root for part in self.parts.values()}

    def check(self) -> None:
        """Raise IntegrityError if one of them was changed."""
        for path, root in self.roots.items():
            compare_root(path, root)

    def windows(self, shard: Shard, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a shard's documents, one row group at a time; none if the set does not know the shard.

        Raises IntegrityError.
        """
        if part := self.parts.get(shard.path):
            yield from ledger_windows(self.folder / part.path, list(columns))


def matched_column(name: str) -> str:
    """Name of the column that says whether a document has a match."""
    return name + MATCHED


def annotations_folder(shards: Path, name: str) -> Path:
    """Folder of the annotations with a name."""
    return shards / FOLDER / name


def annotations_data(annotations: Annotations) -> dict[str, Any]:
    """Return the record as JSON."""
    body = to_json(replace(annotations, folder=NOWHERE))
    return {"format": FORMAT, "version": VERSION, "seal": fingerprint(body), **body}


def write_annotations(annotations: Annotations) -> None:
    """Write the record, which makes its files valid."""
    write_json(annotations.folder / RECORD, annotations_data(annotations))


def read_annotations(folder: Path) -> Annotations:
    """Read FOLDER/annotations.json. Raises IntegrityError, MismatchError."""
    path = folder / RECORD
    data = read_json(path)
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise IntegrityError(f"{path} is not a record of annotations")
    check_version(data.pop("version", None), VERSION, path, "run pretok annotate again")
    seal = data.pop("seal", None)
    if seal != fingerprint(data):
        raise IntegrityError(f"{path} was edited or damaged: its seal is not that of its contents")
    return replace(read_record(Annotations, data, path), folder=folder)


def find_annotations(shards: Path) -> list[Annotations]:
    """Return all annotations of the shards, by name. Raises IntegrityError, MismatchError."""
    return [read_annotations(path.parent) for path in sorted((shards / FOLDER).glob(f"*/{RECORD}"))]


def open_annotations(manifest: Manifest) -> list[Annotations]:
    """Return all annotations of the shards, by name.

    Raises MismatchError if one was joined to documents that have changed.
    """
    annotations = find_annotations(manifest.folder)
    for found in annotations:
        if outdated := outdated_parts(manifest, found):
            raise MismatchError(outdated[0])
    return annotations


def outdated_parts(manifest: Manifest, annotations: Annotations) -> list[str]:
    """Return a sentence for each of its files that belongs to another ledger than the manifest's."""
    ledgers = {shard.path: manifest.roots.get(shard.ledger_path) for shard in manifest.shards}
    return [
        f"{annotations.folder / part.path}: the documents of {Path(shard).parent} are others than those it was joined "
        f"to; run pretok annotate again, or delete {annotations.folder}"
        for shard, part in annotations.parts.items()
        if ledgers.get(shard) != part.ledger
    ]


def unknown_sources(manifest: Manifest, annotations: Annotations) -> list[str]:
    """Return the sources with documents that the annotations do not know, because they were added later."""
    unknown = (s.source for s in manifest.shards if s.documents and s.path not in annotations.parts)
    return list(dict.fromkeys(unknown))
