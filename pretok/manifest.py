"""manifest.json: the sealed description of a shards folder, written last.

Enters: the records of all finished parts (from `pretok.jobs.tokenize`) or the file on disk. Leaves: a Manifest,
read by verify, stats, mix, stream and train; standard library only.

    format, version, fingerprint
    tokenizer   {fingerprint, vocab_size, eod_id, dtype}
    totals      counts, as in each source
    sources     {NAME: {tokens, documents, bytes, rejected: {reason: n}, train: {...}, val: {...}}}
    shards      [{path, source, split, tokens, documents, bytes, text_bytes, checksum, index_checksum, ...}]
    files       [{path, source, size, identity, read, written, rejected}]
    failed      [{partition, source, file, error}]
    config, software

`tokens`, `documents` and `bytes` (UTF-8 text) of a source count both splits. `shards[].path` is the `.bin`, relative
to the folder; `shards[].bytes` is its size. Shards are ordered by source name, split and number, and that order is
the order of the source's flat token stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretok.errors import IntegrityError, MismatchError
from pretok.storage import fingerprint, read_json

FORMAT = "pretok-shards"
VERSION = 1
FILE_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as the manifest describes it. `path` is the absolute path of the `.bin`."""

    path: Path
    source: str
    split: str
    tokens: int
    documents: int
    checksum: str
    index_checksum: str

    @property
    def prefix(self) -> Path:
        """Path without suffix, as `ShardReader` takes it."""
        return self.path.with_suffix("")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest read from `folder`. `data` is the whole JSON; the rest are the parts everybody needs."""

    folder: Path
    data: dict[str, Any]
    fingerprint: str
    vocab_size: int
    eod_id: int
    dtype: str
    shards: tuple[Shard, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, sorted."""
        return tuple(sorted(self.data["sources"]))

    def of(self, source: str, split: str = "train") -> tuple[Shard, ...]:
        """The shards of one source and split in stream order."""
        return tuple(s for s in self.shards if s.source == source and s.split == split)


def manifest_fingerprint(data: dict[str, Any]) -> str:
    """What identifies the tokens: the tokenizer and, in order, every shard's path, sizes and checksums."""
    return fingerprint({key: data[key] for key in ("format", "version", "tokenizer", "shards")})


def load_manifest(folder: Path) -> Manifest:
    """Read FOLDER/manifest.json. Raises IntegrityError (missing, damaged) or MismatchError (other format)."""
    path = Path(folder).absolute() / FILE_NAME
    if not path.exists():
        raise IntegrityError(
            f"{path} does not exist: the folder holds no finished shards; run pretok tokenize"
        )
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{path} is not a manifest of shards")
    if data.get("version") != VERSION:
        raise MismatchError(f"{path} has format version {data.get('version')}, this program reads {VERSION}")
    try:
        if data["fingerprint"] != manifest_fingerprint(data):
            raise IntegrityError(
                f"{path} was edited or damaged: it states fingerprint {data['fingerprint']}, "
                f"its contents have {manifest_fingerprint(data)}"
            )
        shards = tuple(
            Shard(
                path=path.parent / entry["path"],
                source=entry["source"],
                split=entry["split"],
                tokens=entry["tokens"],
                documents=entry["documents"],
                checksum=entry["checksum"],
                index_checksum=entry["index_checksum"],
            )
            for entry in data["shards"]
        )
        tokenizer = data["tokenizer"]
        return Manifest(
            folder=path.parent,
            data=data,
            fingerprint=data["fingerprint"],
            vocab_size=tokenizer["vocab_size"],
            eod_id=tokenizer["eod_id"],
            dtype=tokenizer["dtype"],
            shards=shards,
        )
    except KeyError as error:
        raise IntegrityError(f"{path} lacks the key {error}; it was damaged or edited") from None
