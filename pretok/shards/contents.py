"""What a manifest says: one typed record for each thing that stands in manifest.json.

Input: shards as their writer left them, and the counts of inputs. Output: `Contents`, whose fields are the keys of the
file (`shards.manifest` lists and writes them) and which knows what identifies the tokens and what cannot be true.
numpy and the standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from pretok.base.failures import Failure
from pretok.base.records import Count, Record, to_json
from pretok.base.storage import fingerprint
from pretok.base.tokens import token_dtype
from pretok.shards.format import SealedShard

FORMAT = "pretok-shards"
SPLITS = ("train", "val")
INPUTS_SUFFIX, LEDGER_SUFFIX = ".files.parquet", ".docs.parquet"
MAX_TOKENS = 1 << 62
"""More than any shards hold together; below it no address of a token leaves 64 bits."""


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


class ShardEntry(Record, frozen=True):
    """One shard. path: of the `.bin`, relative to the folder; file_bytes: its size; index_checksum: of the `.idx`."""

    path: str
    source: str
    split: str
    tokens: Count
    documents: Count
    file_bytes: Count
    text_bytes: Count
    checksum: str
    index_checksum: str


class SideFile(Record, frozen=True):
    """A file that is no shard: a ledger, a table of inputs, rejects (of `source`), the tokenizer (of none)."""

    path: str
    source: str | None
    file_bytes: Count
    checksum: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One input file of a source: what it was when it was planned, and how many of its records were written."""

    path: str
    format: str
    compression: str
    size: int
    identity: str
    source: str
    read: int
    written: int
    rejected: int


class MismatchEntry(Record, frozen=True):
    """Values of a kept column that are null in the ledgers because they were of another type: how many, and of the
    first the file, its line or row from 1, and what stands there."""

    column: str
    count: Count
    file: str
    position: Count
    value: str


class Contents(Record, frozen=True, dict=True, omit_defaults=True):
    """All that manifest.json says, see `shards.manifest`; what follows from it (version, fingerprint, seal) is no
    field."""

    tokenizer: TokenizerEntry
    totals: SourceCounts
    sources: dict[str, SourceCounts]
    failed: tuple[Failure, ...]
    shards: tuple[ShardEntry, ...]
    side_files: tuple[SideFile, ...]
    config: dict[str, object]
    software: dict[str, str]
    materialized: dict[str, object] | None = None
    mismatches: dict[str, tuple[MismatchEntry, ...]] | None = None

    @cached_property
    def fingerprint(self) -> str:
        """What identifies the tokens: the tokenizer and, in order, every shard's path, sizes and checksums.

        Taken of a form of its own, so that a mix of the same tokens stays valid where the manifest's keys change.
        """
        shards = [to_json(shard) for shard in self.shards]
        for shard in shards:
            shard["bytes"] = shard.pop("file_bytes")
        return fingerprint(
            {"format": FORMAT, "version": 1, "tokenizer": to_json(self.tokenizer), "shards": shards}
        )

    @cached_property
    def tokenized(self) -> frozenset[str]:
        """The sources of which it is known what inputs they were made of; none where the shards hold a mix."""
        tables = {file.path for file in self.side_files}
        return frozenset(name for name in self.sources if inputs_name(name) in tables)

    def problem(self) -> str | None:
        """What cannot be true whatever is in the folder, or None."""
        tokenizer = self.tokenizer
        dtype = token_dtype(tokenizer.vocab_size)
        if tokenizer.dtype != dtype.name:
            return f"tokenizer.dtype is {tokenizer.dtype!r}; ids below {tokenizer.vocab_size} are kept as {dtype.name}"
        for name, token in (("eod_id", tokenizer.eod_id), ("bos_id", tokenizer.bos_id)):
            if token is not None and token >= tokenizer.vocab_size:
                return f"tokenizer.{name} is {token}; the vocabulary has {tokenizer.vocab_size} entries"
        if tokenizer.bos_id == tokenizer.eod_id:
            return f"tokenizer.bos_id and eod_id are both {tokenizer.eod_id}"
        if sum(shard.tokens for shard in self.shards) >= MAX_TOKENS:
            return f"the shards have more than {MAX_TOKENS} tokens"
        listed = [*(shard.path for shard in self.shards), *(file.path for file in self.side_files)]
        names = [PurePosixPath(path) for path in listed]
        if outside := [
            name for name in names if name.is_absolute() or ".." in name.parts or "\0" in str(name)
        ]:
            return f"{str(outside[0])!r} is not a path inside the folder"
        known = set(names)
        if len(known) != len(names):
            return f"{Counter(names).most_common(1)[0][0]} is listed twice"
        for number, shard in enumerate(self.shards):
            if shard.source not in self.sources or shard.split not in SPLITS:
                return f"shards[{number}] belongs to {shard.source!r}, {shard.split!r}, which is no source and split"
            if shard.file_bytes != shard.tokens * dtype.itemsize or not shard.path.endswith(".bin"):
                return f"shards[{number}]: {shard.path} of {shard.file_bytes} bytes cannot hold {shard.tokens} tokens"
            ledger = PurePosixPath(shard.path.removesuffix(".bin") + LEDGER_SUFFIX)
            if shard.source in self.tokenized and ledger not in known:
                return f"shards[{number}]: its ledger {ledger} is not listed"
        return None


def inputs_name(source: str) -> str:
    """Path of the table of a source's inputs in a folder of shards."""
    return f"{source}/{source}{INPUTS_SUFFIX}"


def shard_entry(path: str, source: str, split: str, sealed: SealedShard, text_bytes: int) -> ShardEntry:
    """What the manifest says of a shard that was written."""
    return ShardEntry(
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


def count_source(shards: Sequence[ShardEntry], read: int, rejected: dict[str, int]) -> SourceCounts:
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
