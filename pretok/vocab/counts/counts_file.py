"""counts.json: what finished counts hold and what they were made from. Only this module knows the file.

Input: FOLDER/counts.json, or what `vocab.counts.count_job` counted. Output: `CorpusCounts`, or the file.

    format, version
    sources  {NAME: {read, documents, bytes, heldout_documents, heldout_bytes, unsampled, rejected, left_out}}
    files    {PATH: checksum}   the files of words, in the order of the buckets, and the file of held-out texts
    config   {pattern, unicode, normalize, sample, holdout, seed}   the settings, and
             {inputs}           the files that were read, or
             {added, leaves}    folder -> fingerprint of the counts that were added up; the counts behind them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from msgspec import Struct, field

from pretok.base.console import Counts
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.failures import LeftOut
from pretok.base.records import (
    Checksum,
    Count,
    Digest,
    Inside,
    Record,
    Signed,
    check_version,
    read_record,
    to_json,
)
from pretok.base.storage import compare_checksum, fingerprint, read_json, write_json
from pretok.base.texts import from_buffers
from pretok.base.units import listed
from pretok.read.normalize import Normalization
from pretok.read.recognise import SourceInputs
from pretok.vocab.counts.buckets import read_group

FORMAT = "pretok-counts"
VERSION = 5
FILE_NAME = "counts.json"
LISTED = 20
"""Most folders that a message lists."""
HELDOUT_FILE = "heldout.parquet"


class CountRecord(Struct, forbid_unknown_fields=True):
    """The contents of a partition."""

    read: Count = 0
    """Records."""
    documents: Count = 0
    bytes: Count = 0
    """Of text counted for training, as are documents."""
    heldout_documents: Count = 0
    heldout_bytes: Count = 0
    unsampled: Count = 0
    """Documents outside the sample."""
    rejected: dict[str, Count] = {}
    """By reason."""
    left_out: tuple[LeftOut, ...] = ()
    """Damaged files of which nothing was counted."""

    def counts(self) -> Counts:
        """Return the counts that were added to the progress when this partition was counted."""
        return {
            "documents": self.documents + self.heldout_documents,
            "bytes": self.bytes + self.heldout_bytes,
            "rejected": sum(self.rejected.values()),
        }

    def add(self, other: CountRecord) -> None:
        """Add another partition."""
        for name in ("read", "documents", "bytes", "heldout_documents", "heldout_bytes", "unsampled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.note_rejects(other.rejected)
        self.left_out += other.left_out

    def note_rejects(self, reasons: Mapping[str, int]) -> None:
        """Add rejects by reason."""
        for reason, number in reasons.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + number


class CountConfig(Record, frozen=True, omit_defaults=True):
    """Everything that decides the counts."""

    pattern: str
    unicode: str
    """First line of the table of character classes."""
    normalize: Normalization
    sample: str
    holdout: str
    """A fraction, as is the sample."""
    seed: Signed
    inputs: dict[str, SourceInputs] = field(default_factory=dict)
    """What was read of each source."""
    added: dict[str, Digest] = field(default_factory=dict)
    """Of a sum: folder -> fingerprint of the counts."""
    leaves: tuple[Digest, ...] = ()
    """Of a sum: the fingerprints of all counts in it that are no sums, ascending."""


class _CountsFile(Record, frozen=True):
    """The whole file; see the module."""

    format: str
    version: Count
    sources: dict[str, CountRecord]
    files: dict[Inside, Checksum]
    config: CountConfig


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """Finished counts in `folder`."""

    folder: Path
    records: dict[str, CountRecord]
    """Source -> what was read of it, in the order of the row groups."""
    checksums: dict[Path, str]
    """Of each file."""
    config: CountConfig
    fingerprint: str
    """Of all of counts.json."""

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in the order of the row groups."""
        return list(self.records)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes counted for training of each source."""
        return {name: record.bytes for name, record in self.records.items()}

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Damaged files of which nothing was counted."""
        return tuple(damaged for record in self.records.values() for damaged in record.left_out)

    @property
    def rejects_paths(self) -> dict[str, Path]:
        """Source -> the file of its rejected records, which exists if there are any and the counts are no sum."""
        return {name: self.folder / "rejects" / f"{name}.jsonl" for name in self.records}

    @property
    def leaves(self) -> tuple[str, ...]:
        """Fingerprints of the counts in these that are no sums: their own if they are none.

        Raises UsageError for a sum that does not name them.
        """
        if self.config.added and not self.config.leaves:
            raise UsageError(
                f"{self.folder} is a sum that does not say what is in it, as earlier versions wrote; add up its parts "
                f"with the others: {listed([*self.config.added], LISTED)}"
            )
        return self.config.leaves or (self.fingerprint,)

    @property
    def heldout_path(self) -> Path:
        """The file of held-out texts."""
        return self.folder / HELDOUT_FILE

    @property
    def buckets(self) -> list[Path]:
        """The files of words."""
        return [path for path in self.checksums if path != self.heldout_path]

    def check(self) -> None:
        """Raise IntegrityError if the checksum of a file has changed."""
        for path, checksum in self.checksums.items():
            compare_checksum(path, checksum)

    def heldout_texts(self, source: str) -> pa.LargeStringArray:
        """Return the held-out texts kept of a source."""
        texts = read_group(self.heldout_path, self.sources.index(source))
        return from_buffers(texts.data, texts.offsets)


def load_counts(folder: Path) -> CorpusCounts:
    """Read FOLDER/counts.json. Raises IntegrityError (missing, damaged) or MismatchError (other format)."""
    path = folder / FILE_NAME
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{path} is not the counts.json of pretok count")
    check_version(data.get("version"), VERSION, path, "count again with pretok count")
    file = read_record(_CountsFile, data, path)
    checksums = {folder / name: checksum for name, checksum in file.files.items()}
    return CorpusCounts(folder, file.sources, checksums, file.config, fingerprint(data))


def write_counts(
    folder: Path, records: dict[str, CountRecord], checksums: dict[str, str], config: CountConfig
) -> CorpusCounts:
    """Write FOLDER/counts.json atomically, after all other files: it says that they are complete."""
    write_json(folder / FILE_NAME, to_json(_CountsFile(FORMAT, VERSION, records, checksums, config)))
    return load_counts(folder)
