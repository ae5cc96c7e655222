"""counts.json: what finished counts hold and what they were made from. This module alone knows the file.

Input: FOLDER/counts.json, or what `counts.job` counted. Output: the file, or `CorpusCounts`, of which all was checked.

    format, version
    sources  {NAME: {read, documents, bytes, heldout_documents, heldout_bytes, unsampled, rejected, errors}}
    failed   [{partition, file, error}]   inputs whose rest could not be read
    buckets  [{path, checksum}]           the files of words
    heldout  {path, checksum}             the file of held-out texts
    config   {pattern, unicode, normalize, sample, holdout, seed, inputs}   what decided them; of a sum also `added`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pretok.base.errors import IntegrityError
from pretok.base.failures import Failure
from pretok.base.records import Count, Record, Signed, check_version, read_record, to_json
from pretok.base.storage import compare_checksum, fingerprint, read_json, write_json
from pretok.counts.task import CountRecord
from pretok.read.changes import SourceInputs
from pretok.read.files import InputFile
from pretok.read.normalize import Normalization

FORMAT = "pretok-counts"
VERSION = 2
FILE_NAME = "counts.json"
HELDOUT_FILE = "heldout.parquet"


class CountSettings(Record, frozen=True):
    """What decides the words of a text. unicode: the first line of the table of classes; sample, holdout: fractions."""

    pattern: str
    unicode: str
    normalize: Normalization
    sample: str
    holdout: str
    seed: Signed

    def settings(self) -> tuple[str, str, Normalization, str, str, int]:
        """These alone, without what they were applied to."""
        return self.pattern, self.unicode, self.normalize, self.sample, self.holdout, self.seed


class CountConfig(CountSettings, frozen=True):
    """All that decides the counts of some text."""

    inputs: dict[str, SourceInputs]

    @property
    def added(self) -> dict[str, str]:
        """Nothing: it is no sum."""
        return {}


class Addends(Record, frozen=True):
    """The settings of each of the counts that were added, as they stood there."""

    added: tuple[object, ...]


class SumConfig(CountSettings, frozen=True):
    """All that decides a sum of counts. added: folder -> fingerprint."""

    inputs: Addends
    added: dict[str, str]


Config = CountConfig | SumConfig


class SealedFile(Record, frozen=True):
    """A file of words, or of held-out texts; path: relative to the folder."""

    path: str
    checksum: str


class _CountsFile(Record, frozen=True):
    """The whole file; see the module."""

    format: str
    version: Count
    sources: dict[str, CountRecord]
    failed: tuple[Failure, ...]
    buckets: tuple[SealedFile, ...]
    heldout: SealedFile
    config: object


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """Finished counts in `folder`. records: source -> what was read of it, in the order of the row groups; fingerprint:
    identifies them by all that counts.json says."""

    folder: Path
    records: dict[str, CountRecord]
    failed: tuple[Failure, ...]
    bucket_files: tuple[SealedFile, ...]
    heldout_file: SealedFile
    config: Config
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
    def buckets(self) -> list[Path]:
        """The files of words."""
        return [self.folder / bucket.path for bucket in self.bucket_files]

    @property
    def sealed(self) -> list[tuple[Path, str]]:
        """The files of words and texts, with their checksums."""
        return [(self.folder / file.path, file.checksum) for file in (*self.bucket_files, self.heldout_file)]

    def check(self) -> None:
        """Raises IntegrityError where a file of words or texts is not as it was sealed."""
        for path, checksum in self.sealed:
            compare_checksum(path, checksum)

    def of(self, source: str) -> CountRecord:
        """What was read of a source."""
        return self.records[source]

    def files(self, source: str) -> tuple[InputFile, ...]:
        """The inputs of a source; none for a sum, which was made from counts."""
        return self.config.inputs[source].files if isinstance(self.config, CountConfig) else ()

    def heldout_texts(self, source: str) -> pa.LargeStringArray:
        """The held-out texts kept of a source."""
        with pq.ParquetFile(self.folder / self.heldout_file.path) as file:
            return file.read_row_group(self.sources.index(source)).column("text").combine_chunks()


def read_config(data: object, where: Path) -> Config:
    """What decides counts, from its JSON. Raises IntegrityError."""
    inputs = data.get("inputs") if isinstance(data, dict) else None
    is_sum = isinstance(inputs, dict) and isinstance(inputs.get("added"), list)
    return read_record(SumConfig, data, where) if is_sum else read_record(CountConfig, data, where)


def load_counts(folder: Path) -> CorpusCounts:
    """Read FOLDER/counts.json. Raises IntegrityError (missing, damaged) or MismatchError (other format)."""
    path = folder / FILE_NAME
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{path} does not describe counts of words")
    check_version(data.get("version"), VERSION, path, "count again with pretok count")
    file = read_record(_CountsFile, data, path)
    config = read_config(file.config, path)
    return CorpusCounts(
        folder, file.sources, file.failed, file.buckets, file.heldout, config, fingerprint(data)
    )


def write_counts(
    folder: Path,
    records: dict[str, CountRecord],
    buckets: Sequence[SealedFile],
    heldout: SealedFile,
    config: Config,
) -> CorpusCounts:
    """Write FOLDER/counts.json atomically: last of all files, for it says that the others are complete."""
    failed = tuple(error for record in records.values() for error in record.errors)
    file = _CountsFile(FORMAT, VERSION, records, failed, tuple(buckets), heldout, to_json(config))
    data = to_json(file)
    write_json(folder / FILE_NAME, data)
    return CorpusCounts(folder, records, failed, file.buckets, heldout, config, fingerprint(data))
