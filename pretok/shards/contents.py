"""The parts of a manifest: one typed record for each thing that stands in manifest.json.

Input: shards as their writer left them, and the counts of inputs. Output: the records of which `shards.manifest` makes
a manifest, and the counts of sources. numpy, msgspec and the standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pretok.base.records import Count, Record
from pretok.base.storage import compare_checksum
from pretok.shards.format import SealedShard, ShardReader

SPLITS = ("train", "val")
INPUTS_SUFFIX, LEDGER_SUFFIX = ".files.parquet", ".docs.parquet"
NOWHERE = Path()
"""The folder of what is not in one yet. It is told from others by identity and never written, see `Manifest.at`."""


class TokenizerEntry(Record, frozen=True, omit_defaults=True):
    """The tokenizer of all shards; dtype: of their token ids, uint16 or int32; bos_id: of the token that begins every
    document, None where none does."""

    fingerprint: str
    vocab_size: Count
    eod_id: Count
    dtype: str
    bos_id: Count | None = None


class SplitCounts(Record, frozen=True):
    """What a split of a source holds; bytes: of text."""

    tokens: Count
    documents: Count
    bytes: Count


class SourceCounts(Record, frozen=True):
    """What a source holds; read: records, of which `documents` were written and the others rejected, by reason."""

    tokens: Count
    documents: Count
    bytes: Count
    read: Count
    rejected: dict[str, Count]
    train: SplitCounts
    val: SplitCounts


class Shard(Record, frozen=True, omit_defaults=True):
    """One shard. path: of the `.bin`, relative to the folder; file_bytes: its size; index_checksum: of the `.idx`;
    folder: where the shards are, which stands in no file."""

    path: str
    source: str
    split: str
    tokens: Count
    documents: Count
    file_bytes: Count
    text_bytes: Count
    checksum: str
    index_checksum: str
    folder: Path = NOWHERE

    @property
    def bin_path(self) -> Path:
        """Where the `.bin` is."""
        return self.folder / self.path

    @property
    def index_path(self) -> Path:
        """Where the `.idx` is."""
        return self.bin_path.with_suffix(".idx")

    @property
    def prefix(self) -> Path:
        """Path without suffix, as `ShardReader` takes it."""
        return self.bin_path.with_suffix("")

    def open(self) -> ShardReader:
        """Its reader. Raises IntegrityError unless its index is as it was sealed; its tokens are not compared."""
        reader = ShardReader(self.prefix)
        compare_checksum(self.index_path, self.index_checksum)
        return reader


class SideFile(Record, frozen=True):
    """A file that is no shard: a ledger, a table of inputs, rejects (of `source`), the tokenizer (of none)."""

    path: str
    source: str | None
    file_bytes: Count
    checksum: str


class MismatchEntry(Record, frozen=True):
    """Values of a kept column that are null in the ledgers because they were of another type: how many, and of the
    first the file, its line or row from 1, and what stands there."""

    column: str
    count: Count
    file: str
    position: Count
    value: str


def inputs_name(source: str) -> str:
    """Path of the table of a source's inputs in a folder of shards."""
    return f"{source}/{source}{INPUTS_SUFFIX}"


def shard_entry(path: str, source: str, split: str, sealed: SealedShard, text_bytes: int) -> Shard:
    """What the manifest says of a shard that was written."""
    return Shard(
        path=path,
        source=source,
        split=split,
        tokens=sealed.tokens,
        documents=sealed.documents,
        file_bytes=sealed.bin_bytes,
        text_bytes=text_bytes,
        checksum=sealed.bin_checksum,
        index_checksum=sealed.idx_checksum,
    )


def count_source(shards: Sequence[Shard], read: int, rejected: dict[str, int]) -> SourceCounts:
    """The counts of a source from all its shards."""
    train, val = (
        SplitCounts(
            tokens=sum(shard.tokens for shard in shards if shard.split == split),
            documents=sum(shard.documents for shard in shards if shard.split == split),
            bytes=sum(shard.text_bytes for shard in shards if shard.split == split),
        )
        for split in SPLITS
    )
    both = _add_splits([train, val])
    return SourceCounts(both.tokens, both.documents, both.bytes, read, rejected, train, val)


def sum_sources(sources: Iterable[SourceCounts]) -> SourceCounts:
    """The totals of sources."""
    sources = list(sources)
    rejected: Counter[str] = Counter()
    for counts in sources:
        rejected.update(counts.rejected)
    return SourceCounts(
        tokens=sum(counts.tokens for counts in sources),
        documents=sum(counts.documents for counts in sources),
        bytes=sum(counts.bytes for counts in sources),
        read=sum(counts.read for counts in sources),
        rejected=dict(rejected),
        train=_add_splits([counts.train for counts in sources]),
        val=_add_splits([counts.val for counts in sources]),
    )


def _add_splits(splits: Sequence[SplitCounts]) -> SplitCounts:
    return SplitCounts(
        tokens=sum(split.tokens for split in splits),
        documents=sum(split.documents for split in splits),
        bytes=sum(split.bytes for split in splits),
    )
