"""manifest.json: the sealed description of a shards folder, written last.

Input: the `Contents` of a folder (from `pretok.shards.seal`), or the file on disk. Output: the file, or a `Manifest`
whose every value was checked, read by verify, stats, mix, stream and train. `pretok.shards.contents` has the records.

    format, version
    fingerprint  of the tokenizer and the shards: equal ones mean equal tokens, so mixes and runs are bound to it
    seal         of everything below: any change by another hand is seen
    tokenizer    {fingerprint, vocab_size, eod_id, dtype}, and bos_id where documents begin with a token
    totals       counts, as in each source
    sources      {NAME: {tokens, documents, bytes, read, rejected: {reason: n}, train: {...}, val: {...}}}
    failed       [{partition, file, error}]
    shards       [{path, source, split, tokens, documents, file_bytes, text_bytes, checksum, index_checksum}]
    side_files   [{path, source, file_bytes, checksum}]    every other file of the folder: ledgers, inputs, rejects
    mismatches   {NAME: [{column, count, file, position, value}]}    values of kept columns that had another type
    config, software, and materialized (the mix) where the shards hold a mix in its order

`bytes` are of text in UTF-8, `file_bytes` of a file. `tokens`, `documents` and `bytes` of a source count both splits.
`shards[].path` is the `.bin`, relative to the folder. Shards are ordered by source name, split and number, and that
order is the order of the source's flat token stream.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pretok.base.errors import IntegrityError
from pretok.base.html import html_table
from pretok.base.records import check_version, read_record, to_json
from pretok.base.storage import compare_checksum, fingerprint, read_json, reading, write_json
from pretok.shards.contents import FORMAT, Contents
from pretok.shards.format import ShardReader

VERSION = 4
SETTLED = 0.1
"""Seconds after which a file that changes has another time of change."""
FILE_NAME = "manifest.json"
STATE = ".state"
"""Folder inside a shards folder that holds unfinished work; gone when all is sealed."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard where it is. `path` is the absolute path of the `.bin`."""

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

    @property
    def index_path(self) -> Path:
        """Absolute path of the `.idx`."""
        return self.path.with_suffix(".idx")

    def open(self) -> ShardReader:
        """Its reader. Raises IntegrityError unless its index is as it was sealed; its tokens are not compared."""
        reader = ShardReader(self.prefix)
        compare_checksum(self.index_path, self.index_checksum)
        return reader


@dataclass(frozen=True)
class Manifest:
    """What stands in FOLDER/manifest.json."""

    folder: Path
    contents: Contents

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All shards, in the order of the file."""
        return tuple(
            Shard(
                self.folder / entry.path,
                entry.source,
                entry.split,
                entry.tokens,
                entry.documents,
                entry.checksum,
                entry.index_checksum,
            )
            for entry in self.contents.shards
        )

    @cached_property
    def checksums(self) -> dict[Path, str]:
        """Of every file that the manifest names: shards, their indexes, ledgers, the tokenizer and the others."""
        return {
            **{shard.path: shard.checksum for shard in self.shards},
            **{shard.index_path: shard.index_checksum for shard in self.shards},
            **{self.folder / file.path: file.checksum for file in self.contents.side_files},
        }

    def check(self, path: Path) -> bool:
        """Whether a file is there. Raises IntegrityError where the manifest names it and it is not as it was sealed."""
        if path in self.checksums:
            compare_checksum(path, self.checksums[path])
        return path.exists()

    @property
    def numbered(self) -> Iterator[tuple[Shard, int]]:
        """Each shard with the documents of its source and split before it."""
        before: Counter[tuple[str, str]] = Counter()
        for shard in self.shards:
            yield shard, before[shard.source, shard.split]
            before[shard.source, shard.split] += shard.documents

    @property
    def fingerprint(self) -> str:
        """Identifies the tokens, see `Contents`."""
        return self.contents.fingerprint

    @property
    def vocab_size(self) -> int:
        """Every id is less than this."""
        return self.contents.tokenizer.vocab_size

    @property
    def eod_id(self) -> int:
        """The id that ends every document."""
        return self.contents.tokenizer.eod_id

    @property
    def bos_id(self) -> int | None:
        """The id that begins every document, None where none does."""
        return self.contents.tokenizer.bos_id

    @property
    def dtype(self) -> str:
        """Name of the dtype of the ids, which is little-endian."""
        return self.contents.tokenizer.dtype

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, sorted."""
        return tuple(sorted(self.contents.sources))

    @property
    def tokenized(self) -> tuple[str, ...]:
        """Names of the sources of which it is known what inputs they were made of, sorted; see `Contents`."""
        return tuple(sorted(self.contents.tokenized))

    def of(self, source: str, split: str = "train") -> tuple[Shard, ...]:
        """The shards of one source and split in stream order."""
        return tuple(s for s in self.shards if s.source == source and s.split == split)

    def summary(self) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """(names of columns, rows): the counts of each source and of all, for a notebook."""
        columns = ("source", "tokens", "documents", "bytes of text", "bytes per token", "rejected", "shards")
        rows: list[tuple[object, ...]] = []
        for name, c in [*sorted(self.contents.sources.items()), ("all", self.contents.totals)]:
            shards = sum(entry.source == name or name == "all" for entry in self.contents.shards)
            per_token = round(c.bytes / c.tokens, 3) if c.tokens else None
            rows.append((name, c.tokens, c.documents, c.bytes, per_token, sum(c.rejected.values()), shards))
        return columns, rows

    def __repr__(self) -> str:
        totals = self.contents.totals
        return (
            f"<pretok manifest {self.folder}: {totals.tokens:,} tokens, {totals.documents:,} documents, "
            f"{len(self.contents.shards):,} shards of {', '.join(self.sources)}, fingerprint {self.fingerprint}>"
        )

    def _repr_html_(self) -> str:
        return html_table(f"{self.folder}, fingerprint {self.fingerprint}", *self.summary())

    @property
    def data(self) -> dict[str, Any]:
        """The file as JSON: for printing."""
        return _manifest_json(self.contents)


def write_manifest(folder: Path, contents: Contents) -> Manifest:
    """Write FOLDER/manifest.json atomically."""
    write_json(folder / FILE_NAME, _manifest_json(contents))
    return Manifest(folder.absolute(), contents)


def _manifest_json(contents: Contents) -> dict[str, Any]:
    head = {"format": FORMAT, "version": VERSION, "fingerprint": contents.fingerprint}
    body = to_json(contents)
    return {**head, "seal": fingerprint(body), **body}


def has_manifest(folder: Path) -> bool:
    """Whether a manifest stands in `folder`."""
    return os.path.exists(folder / FILE_NAME)  # noqa: PTH110 - False, not PermissionError, in a closed folder


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest in FOLDER, or in its shards, once while it stays as it is: a command looks into it often.

    Raises IntegrityError (missing, damaged, edited) or MismatchError (other version).
    """
    path = shards_of(Path(folder).absolute()) / FILE_NAME
    if not has_manifest(path.parent):
        raise IntegrityError(_missing(path))
    with reading(path):
        found = path.stat()
    stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    # Within a tick of the file system's clock two writes look alike.
    settled = time.time() - max(found.st_mtime, found.st_ctime) > SETTLED
    return _load(path, stamp) if settled else _load.__wrapped__(path, stamp)


@lru_cache(maxsize=2)
def _load(path: Path, _stamp: tuple[int, ...]) -> Manifest:
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{path} is not a manifest of shards")
    check_version(data.pop("version", None), VERSION, path, "make the shards again with pretok tokenize")
    stated = {key: data.pop(key, None) for key in ("format", "fingerprint", "seal")}
    contents = read_record(Contents, data, path)
    if problem := contents.problem():
        raise IntegrityError(f"{path}: {problem}; the file was damaged or edited")
    for key, value in (("fingerprint", contents.fingerprint), ("seal", fingerprint(data))):
        if stated[key] != value:
            raise IntegrityError(
                f"{path} was edited or damaged: it states {key} {stated[key]!r}, its contents have {value}"
            )
    return Manifest(path.parent, contents)


def _missing(path: Path) -> str:
    """Why there is no manifest at `path`, as far as one can see, and what to do."""
    folder = path.parent
    if os.path.isfile(folder):  # noqa: PTH113 - as above
        return f"{folder} is a file; name the folder of shards, which holds {FILE_NAME}"
    if not os.path.isdir(folder):  # noqa: PTH112
        return f"{folder} does not exist; name another folder, or run pretok tokenize"
    if os.path.isdir(folder / STATE):  # noqa: PTH112
        return f"{folder} holds no finished shards yet: run the same command again, which goes on where it stopped"
    return f"{path} does not exist: the folder holds no finished shards; run pretok tokenize"


def shards_of(folder: Path) -> Path:
    """The folder of shards that `folder` means: itself, or the one in a WORK folder."""
    inside = folder / "shards"
    if has_manifest(folder) or os.path.isdir(folder / STATE):  # noqa: PTH112 - as above
        return folder
    return inside if has_manifest(inside) or os.path.isdir(inside / STATE) else folder  # noqa: PTH112
