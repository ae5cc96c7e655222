"""counts.json: what finished counts hold and what they were made from. This module alone knows the file.

Input: FOLDER/counts.json, or what `counts.job` counted. Output: the file, or `CorpusCounts`, of which all was checked.

    format, version
    sources  {NAME: {read, documents, bytes, heldout_documents, heldout_bytes, unsampled, rejected, errors}}
    files    {PATH: checksum}   the files of words, in the order of the buckets, and the one of held-out texts
    config   {pattern, unicode, normalize, sample, holdout, seed}   what decided them, and
             {inputs}           the files that were read, or
             {added}            folder -> fingerprint of the counts of which these are the sum
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field

from pretok.base.console import Counts
from pretok.base.errors import IntegrityError
from pretok.base.failures import Failure
from pretok.base.records import Count, Record, Signed, check_version, read_record, to_json
from pretok.base.storage import compare_checksum, fingerprint, read_json, write_json
from pretok.read.changes import SourceInputs
from pretok.read.normalize import Normalization

FORMAT = "pretok-counts"
VERSION = 3
FILE_NAME = "counts.json"
HELDOUT_FILE = "heldout.parquet"


class CountRecord(Struct, forbid_unknown_fields=True):
    """What a partition held.

    read: records; documents, bytes: counted for training; heldout_documents, heldout_bytes: counted apart; unsampled:
    documents outside of the sample; rejected: by reason; errors: inputs whose rest could not be read.
    """

    read: Count = 0
    documents: Count = 0
    bytes: Count = 0
    heldout_documents: Count = 0
    heldout_bytes: Count = 0
    unsampled: Count = 0
    rejected: dict[str, Count] = {}
    errors: tuple[Failure, ...] = ()

    def counts(self) -> Counts:
        """What was reported of this partition when it was counted."""
        return {
            "documents": self.documents + self.heldout_documents,
            "bytes": self.bytes + self.heldout_bytes,
            "rejected": sum(self.rejected.values()),
        }

    def add(self, other: CountRecord) -> None:
        """Add what another partition held."""
        for name in ("read", "documents", "bytes", "heldout_documents", "heldout_bytes", "unsampled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.note_rejects(other.rejected)
        self.errors += other.errors

    def note_rejects(self, reasons: Mapping[str, int]) -> None:
        """Add rejects by reason."""
        for reason, number in reasons.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + number


class CountConfig(Record, frozen=True, omit_defaults=True):
    """All that decides counts. unicode: the first line of the table of classes; sample, holdout: fractions; inputs:
    what was read of each source; added: of a sum, folder -> fingerprint of the counts."""

    pattern: str
    unicode: str
    normalize: Normalization
    sample: str
    holdout: str
    seed: Signed
    inputs: dict[str, SourceInputs] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)


class _CountsFile(Record, frozen=True):
    """The whole file; see the module."""

    format: str
    version: Count
    sources: dict[str, CountRecord]
    files: dict[str, str]
    config: CountConfig


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """Finished counts in `folder`. records: source -> what was read of it, in the order of the row groups; checksums:
    of each file; fingerprint: identifies them by all that counts.json says."""

    folder: Path
    records: dict[str, CountRecord]
    checksums: dict[Path, str]
    config: CountConfig
    fingerprint: str

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in the order of the row groups."""
        return list(self.records)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes counted for training of each source."""
        return {name: record.bytes for name, record in self.records.items()}

    @property
    def failed(self) -> tuple[Failure, ...]:
        """Inputs whose rest could not be read."""
        return tuple(error for record in self.records.values() for error in record.errors)

    @property
    def heldout_path(self) -> Path:
        """The file of held-out texts."""
        return self.folder / HELDOUT_FILE

    @property
    def buckets(self) -> list[Path]:
        """The files of words."""
        return [path for path in self.checksums if path != self.heldout_path]

    def check(self) -> None:
        """Raises IntegrityError where a file of words or texts is not as it was sealed."""
        for path, checksum in self.checksums.items():
            compare_checksum(path, checksum)

    def heldout_texts(self, source: str) -> pa.LargeStringArray:
        """The held-out texts kept of a source."""
        with pq.ParquetFile(self.heldout_path) as file:
            return file.read_row_group(self.sources.index(source)).column("text").combine_chunks()


def load_counts(folder: Path) -> CorpusCounts:
    """Read FOLDER/counts.json. Raises IntegrityError (missing, damaged) or MismatchError (other format)."""
    path = folder / FILE_NAME
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{path} does not describe counts of words")
    check_version(data.get("version"), VERSION, path, "count again with pretok count")
    file = read_record(_CountsFile, data, path)
    checksums = {folder / name: checksum for name, checksum in file.files.items()}
    return CorpusCounts(folder, file.sources, checksums, file.config, fingerprint(data))


def write_counts(
    folder: Path, records: dict[str, CountRecord], checksums: dict[str, str], config: CountConfig
) -> CorpusCounts:
    """Write FOLDER/counts.json atomically: last of all files, for it says that the others are complete."""
    write_json(folder / FILE_NAME, to_json(_CountsFile(FORMAT, VERSION, records, checksums, config)))
    return load_counts(folder)
