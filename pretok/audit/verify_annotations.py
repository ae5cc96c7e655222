"""What was joined to documents, against its records and the manifest: a part of `pretok verify`.

Input: a manifest; a JoinedFile, which a worker looks at. Output: sentences that name the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pretok.base.errors import IntegrityError, PretokError
from pretok.base.storage import checksum, reading
from pretok.shards.annotations import (
    FOLDER,
    RECORD,
    Annotations,
    JoinedPart,
    ListedRows,
    outdated_parts,
    read_annotations,
    unknown_sources,
)
from pretok.shards.manifest import Manifest


@dataclass(frozen=True, slots=True)
class JoinedFile:
    """A file of a record; matched: the column that says whether a row was joined."""

    path: Path
    sealed: JoinedPart | ListedRows
    matched: str


def check_records(manifest: Manifest) -> tuple[list[Annotations], list[str]]:
    """All annotations that can be read; what is wrong with records, and files that are in none."""
    found, problems = [], []
    for folder in sorted(path for path in (manifest.folder / FOLDER).glob("*") if path.is_dir()):
        named: set[Path] = set()
        if (folder / RECORD).exists():
            try:
                one = read_annotations(folder)
            except PretokError as error:
                problems.append(str(error))
                continue
            found.append(one)
            problems += outdated_parts(manifest, one)
            named = {folder / RECORD, *one.files}
        problems += [
            f"{path} is not in the record of {folder}: left by a killed pretok annotate, which removes it when it runs "
            "again, or put there by hand"
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path not in named
        ]
    return found, problems


def verify_joined(task: JoinedFile, report: Callable[[dict[str, int]], None]) -> list[str]:
    """Problems of one file: its checksum; a row for each document, of which as many have a row joined as the record
    says."""
    sealed = task.sealed
    try:
        with reading(task.path, pa.ArrowException):
            found = checksum(task.path)
            if (found, task.path.stat().st_size) != (sealed.checksum, sealed.file_bytes):
                return [f"{task.path}: checksum {found}, its record says {sealed.checksum}"]
            if not isinstance(sealed, JoinedPart):
                return []
            with pq.ParquetFile(task.path) as file:
                column = file.read([task.matched], use_threads=False)[task.matched]
    except IntegrityError as error:
        return [str(error)]
    report({"annotated": len(column)})
    if (len(column), pc.sum(column, min_count=0).as_py()) != (sealed.documents, sealed.matched):
        return [f"{task.path}: its rows are not those that its record counts"]
    return []


def annotation_notes(manifest: Manifest) -> list[str]:
    """Sentences on sources of which annotations know nothing."""
    return [
        f"the annotations {one.name} know nothing of {', '.join(unknown)}: run pretok annotate again"
        for one in check_records(manifest)[0]
        if (unknown := unknown_sources(manifest, one))
    ]
