"""manifest.json: what a folder of shards holds. It is written last, so that what it lists is complete.

    format, version
    fingerprint  of the tokenizer and the shards: equal ones mean equal tokens, so mixes and runs name it
    seal         of everything below, so that any edit is detected
    tokenizer    {fingerprint, vocab_size, eod_id, dtype}, and bos_id where documents begin with a token
    totals       counts, as in each source
    sources      {NAME: {tokens, documents, bytes, read, rejected: {reason: n}, train: {...}, val: {...},
                 mismatches: {column: n}    values of kept columns that had another type
                 compared: n                documents that `tokenizers` encoded again
                 encoded_again: [text]}}    partitions that it encoded as a whole, because one differed
    shards       [{path, source, split, tokens, documents, file_bytes, text_bytes, root, index_root}]
    side_files   [{path, source, file_bytes, root}]    all other files: ledgers, inputs, rejects
    history      [{fingerprint, shards: {NAME: {train, val}}}]    what the folder was before, the oldest first: its
                 fingerprint and the number of shards of each source and split. Then the folder grew, or documents were
                 removed: `removal`: {at, reason, documents, tokens, former: {PATH: root of the `.bin` before}}
    config, software; materialized (the mix) if the shards hold a mix in its order

A root is that of the hash tree over a file (`pretok.base.tree`); the nodes beside a `.bin` follow from its tokens and
are not listed. `bytes` are of text in UTF-8, `file_bytes` of a file. `tokens`, `documents` and `bytes` of a source
count both splits, and also removed documents, which keep their places; `removed` of a shard and a split says how many.
`shards[].path` is the `.bin`, relative to the folder. Shards are in the order of source name, split and number, which
is the order of the token stream of each source and split. A folder grows by shards after those of the same source and
split, so the old stream is the beginning of the new one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec

from pretok.base.errors import IntegrityError
from pretok.base.failures import LeftOut
from pretok.base.records import (
    MANY,
    Count,
    Digest,
    Inside,
    Name,
    Record,
    Root,
    check_version,
    decode_many,
    decode_record,
    replace,
    to_json,
)
from pretok.base.storage import (
    canonical_json,
    digest,
    read_file,
    read_json_lines,
    reading,
    write_json,
)
from pretok.base.tree import compare_root, entry_hash, fold
from pretok.base.units import unit_name
from pretok.shards.shard_file import LEDGER_SUFFIX as LEDGER_SUFFIX
from pretok.shards.shard_file import NOWHERE, SPANS_SUFFIX, check_size, index_size
from pretok.shards.shard_file import RemovedCounts as RemovedCounts
from pretok.shards.shard_file import Shard as Shard
from pretok.tokenizer.kinds import KINDS, LEARNED, TEXT

T = TypeVar("T", bound=Record)
FORMAT = "pretok-shards"
VERSION = 8
FILE_NAME = "manifest.json"
INPUTS_SUFFIX = ".files.json"
STATE = ".state"
"""Folder of unfinished work inside a shards folder; removed when everything is sealed."""
SPLITS = ("train", "val")
UNFINISHED_REMOVAL = ".removal/log.json"
"""File that exists while a removal is written (`pretok.documents.removal`)."""


class TokenizerEntry(Record, frozen=True, omit_defaults=True):
    """The tokenizer of all shards."""

    fingerprint: Digest
    vocab_size: Count
    eod_id: Count
    dtype: str
    """Of the token ids, uint16 or int32."""
    bos_id: Count | None = None
    """The token that begins every document, or None."""


class SplitCounts(Record, frozen=True, omit_defaults=True):
    """The contents of a split of a source."""

    tokens: Count
    documents: Count
    bytes: Count
    """Of text."""
    kinds: dict[str, Count] | None = None
    """For conversations, the number of tokens of each kind."""
    removed: RemovedCounts | None = None
    """What was removed from it."""

    @property
    def learned(self) -> int:
        """Tokens that are learned by default: all of plain text, and the assistant's in conversations."""
        if self.kinds is None:
            return self.tokens
        return sum(self.kinds.get(kind, 0) for kind in (*LEARNED, KINDS[TEXT]))


NOTHING = SplitCounts(0, 0, 0)


class SourceCounts(Record, frozen=True, omit_defaults=True):
    """The contents of a source."""

    tokens: Count
    documents: Count
    bytes: Count
    read: Count
    """Records, of which `documents` were written and the others rejected."""
    rejected: dict[str, Count]
    """By reason."""
    train: SplitCounts
    val: SplitCounts
    mismatches: dict[str, Count] = msgspec.field(default_factory=dict)
    """By kept column, values that are null in the ledgers because they had another type."""
    remarks: dict[str, Count] = msgspec.field(default_factory=dict)
    """Documents of files of tokens, by what was found in them."""
    compared: Count = 0
    """Documents that `tokenizers` encoded again before their shards were sealed."""
    encoded_again: tuple[str, ...] = ()
    """Partitions that `tokenizers` encoded as a whole because the fast engine gave other tokens for a document, each
    with that document."""
    left_out: tuple[LeftOut, ...] = ()
    """Damaged files of which no document was written; each counts as a record that was rejected."""

    @property
    def removed(self) -> RemovedCounts | None:
        """The removals from both splits."""
        return add_counts([self.train, self.val]).removed


UNCOUNTED = SourceCounts(0, 0, 0, 0, {}, NOTHING, NOTHING)
"""All counts are 0. `Manifest.counted` computes those of the shards."""


class SideFile(Record, frozen=True, gc=False):
    """A file that is not a shard: a ledger, inputs or rejects of `source`, or a file of no source, as the tokenizer."""

    path: Inside
    source: Name | None
    file_bytes: Count
    root: Root


class Removal(Record, frozen=True, omit_defaults=True):
    """Documents that were removed together."""

    at: str
    """When, UTC, different for each removal."""
    reason: str
    documents: Count
    tokens: Count
    former: dict[Inside, Root]
    """Path of each changed shard -> the root of its `.bin` before."""
    request: Digest | None = None
    """Equal for the same command."""


class Event(Record, frozen=True, omit_defaults=True):
    """The state of a folder before it changed: its fingerprint, and the number of shards of each source and split.

    Without a `removal` the folder has grown: it has the same shards and more.
    """

    fingerprint: Digest
    shards: dict[str, dict[str, Count]]
    removal: Removal | None = None


class Manifest(Record, frozen=True, dict=True, omit_defaults=True):
    """FOLDER/manifest.json. The fingerprint and the seal are computed. `folder` holds the files and is not written."""

    tokenizer: TokenizerEntry
    totals: SourceCounts
    sources: dict[Name, SourceCounts]
    shards: tuple[Shard, ...]
    side_files: tuple[SideFile, ...]
    config: dict[str, object]
    software: dict[str, str]
    materialized: dict[str, object] | None = None
    history: tuple[Event, ...] = ()
    folder: Path = NOWHERE

    def at(self, folder: Path) -> Manifest:
        """Return this manifest with its files in `folder`; on disk the folder is NOWHERE."""
        return replace(
            self, folder=folder, shards=tuple(replace(shard, folder=folder) for shard in self.shards)
        )

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the tokens: a digest of the tokenizer and of every shard's path, sizes and roots, in order.

        It has a format of its own, so that a mix stays valid if the keys of the manifest change.
        """
        # What was removed from a shard follows from its tokens.
        shards = tuple(
            replace(shard, folder=NOWHERE, removed=None)
            if shard.removed or shard.folder is not NOWHERE
            else shard
            for shard in self.shards
        )
        known = {"format": FORMAT, "version": 2, "tokenizer": self.tokenizer, "shards": shards}
        return digest(_sorted_json(known))

    @cached_property
    def root(self) -> str:
        """The root over everything: of the hash tree (`pretok.base.tree`) whose leaves are the `entries`."""
        return fold([entry_hash(entry) for entry in self.entries]).hex()

    @cached_property
    def entries(self) -> tuple[bytes, ...]:
        """The leaves of the root over everything, as canonical JSON.

        First the manifest without its files, but with the fingerprint and the number of files; then each shard, with
        `first`, the tokens of its source and split before it, and the roots of its ledger and spans; then each other
        file.
        """
        body = to_json(self.at(NOWHERE))
        shards, others = body.pop("shards"), body.pop("side_files")
        roots = {file.path: file.root for file in self.side_files}
        before: Counter[tuple[str, str]] = Counter()
        for entry, shard in zip(shards, self.shards, strict=True):
            entry["first"] = before[shard.source, shard.split]
            before[shard.source, shard.split] += shard.tokens
            for key, suffix in (("ledger", LEDGER_SUFFIX), ("spans", SPANS_SUFFIX)):
                name = shard.path.removesuffix(".bin") + suffix
                entry |= {key: roots.pop(name)} if name in roots else {}
        others = [file for file in others if file["path"] in roots]
        head = {"format": FORMAT, "version": VERSION, "fingerprint": self.fingerprint, **body}
        head |= {"shards": len(shards), "side_files": len(others)}
        # msgspec writes the same bytes as `canonical_json` in a tenth of the time: files hold no number with a point.
        files = (msgspec.json.encode(entry, order="sorted") for entry in (*shards, *others))
        return (canonical_json(head), *files)

    @cached_property
    def former(self) -> Manifest | None:
        """The manifest before the last change, without counts; None if nothing has changed.

        Raises IntegrityError if the history does not give the fingerprint that it states: runs rely on that.
        """
        if not self.history:
            return None
        *earlier, event = self.history
        former = event.removal.former if event.removal else {}
        seen: Counter[tuple[str, str]] = Counter()
        shards = []
        for shard in self.shards:  # new shards follow those of the same source and split
            seen[shard.source, shard.split] += 1
            if seen[shard.source, shard.split] <= event.shards.get(shard.source, {}).get(shard.split, 0):
                changed = shard.path in former
                shards.append(replace(shard, root=former[shard.path]) if changed else shard)
        sources = dict.fromkeys(event.shards, UNCOUNTED)
        old = replace(self, shards=tuple(shards), sources=sources, history=tuple(earlier))
        if old.fingerprint != event.fingerprint:
            raise IntegrityError(
                f"{self.folder / FILE_NAME}: history[{len(earlier)}] does not fit the shards; the file was damaged or "
                "edited"
            )
        return old

    def versions(self) -> Iterator[Manifest]:
        """Yield this manifest, then the earlier ones, the latest first, which have no counts. Raises IntegrityError."""
        one: Manifest | None = self
        while one is not None:
            yield one
            one = one.former

    def was(self, fingerprint: str) -> Manifest | None:
        """Return the manifest that the folder had under this fingerprint, or None; an older one has no counts.

        Raises IntegrityError.
        """
        return next((one for one in self.versions() if one.fingerprint == fingerprint), None)

    def as_of(self, fingerprint: str) -> Manifest | None:
        """As `was`, but an older manifest has the counts of its shards, not those of records read and rejected."""
        old = self.was(fingerprint)
        return old if old is None or old is self else old.counted()

    @property
    def removals(self) -> tuple[Removal, ...]:
        """All removals, in order."""
        return tuple(event.removal for event in self.history if event.removal is not None)

    @cached_property
    def but_for_removals(self) -> dict[str, str]:
        """Each fingerprint that the folder has or had -> the last one with the same shards, apart from removals."""
        last = {self.fingerprint: self.fingerprint}
        later = self.fingerprint
        for event in reversed(self.history):
            last[event.fingerprint] = last[later] if event.removal else event.fingerprint
            later = event.fingerprint
        return last

    def removal_number(self, at: str | None) -> int:
        """Return the number of the removal at a time, from 0; for None (not removed) the number of removals."""
        return [*(removal.at for removal in self.removals), None].index(at)

    def counted(self) -> Manifest:
        """Return this manifest with the counts of its sources and the totals computed from the shards."""
        sources = {}
        for name, known in self.sources.items():
            train, val = (add_counts([NOTHING, *map(_counts_of, self.of(name, split))]) for split in SPLITS)
            of_both = add_counts([train, val])
            tokens, documents, size = of_both.tokens, of_both.documents, of_both.bytes
            sources[name] = replace(
                known, tokens=tokens, documents=documents, bytes=size, train=train, val=val
            )
        # Kinds of tokens and kept columns mean nothing over several sources.
        both = add_counts(
            [UNCOUNTED, *(replace(counts, mismatches={}, remarks={}) for counts in sources.values())]
        )
        train, val = (replace(split, kinds=None) for split in (both.train, both.val))
        return replace(self, sources=sources, totals=replace(both, train=train, val=val))

    def event(self, removal: Removal | None = None) -> Event:
        """Return the entry for this manifest in the history of the next one.

        It is made after documents were removed, or the folder has grown.
        """
        counts = Counter((shard.source, shard.split) for shard in self.shards)
        shards = {name: {split: counts[name, split] for split in SPLITS} for name, _ in counts}
        return Event(self.fingerprint, shards, removal)

    @cached_property
    def units(self) -> frozenset[str]:
        """The sources and appends that are sealed, `it` and `it.1`: each has a table of inputs.

        None if the shards hold a mix.
        """
        tables = (file.path for file in self.side_files if file.path.endswith(INPUTS_SUFFIX))
        return frozenset(PurePosixPath(path).name.removesuffix(INPUTS_SUFFIX) for path in tables)

    def appends(self, source: str) -> int:
        """Return the number of appends to a source."""
        return sum(unit.startswith(f"{source}.") for unit in self.units)

    def rejects(self, source: str) -> list[Path]:
        """Return the files of rejects of a source."""
        of_source = (file.path for file in self.side_files if file.source == source)
        return [self.folder / path for path in of_source if path.startswith("rejects/")]

    def reject_lines(self, source: str) -> Iterator[dict[str, Any]]:
        """Yield the rejects of a source. Raises IntegrityError if a file was changed."""
        for path in self.rejects(source):
            self.check(path)
            yield from read_json_lines(path)

    @cached_property
    def tokenized(self) -> tuple[str, ...]:
        """The sources that have a table of inputs; none if the shards hold a mix."""
        return tuple(name for name in self.sources if name in self.units)

    @cached_property
    def roots(self) -> dict[Path, str]:
        """The root of every file that the manifest names."""
        return {
            **{shard.bin_path: shard.root for shard in self.shards},
            **{shard.index_path: shard.index_root for shard in self.shards},
            **{self.folder / file.path: file.root for file in self.side_files},
        }

    def check(self, path: Path) -> bool:
        """Whether a file exists. Raises IntegrityError if the manifest names it and it was changed."""
        if path in self.roots:
            compare_root(path, self.roots[path])
        return path.exists()

    def sized(self) -> Manifest:
        """Check the sizes of all shards, and return this manifest.

        Raises IntegrityError if a `.bin` or `.idx` is missing or has another size.
        """
        for shard in self.shards:
            name = f"{self.folder}/{shard.path}"  # a Path of each would take most of the time
            sizes = shard.file_bytes, index_size(shard.documents)
            with suppress(OSError):
                found = [os.stat(path).st_size for path in (name, name.removesuffix(".bin") + ".idx")]  # noqa: PTH116
                if tuple(found) == sizes:
                    continue
            for path, size in zip((shard.bin_path, shard.index_path), sizes, strict=True):
                try:
                    check_size(path, size)
                except IntegrityError as error:
                    raise IntegrityError(f"{error}; run pretok verify {self.folder}") from None
        return self

    @property
    def numbered(self) -> Iterator[tuple[Shard, int]]:
        """(shard, number of documents of its source and split before it) for each shard."""
        before: Counter[tuple[str, str]] = Counter()
        for shard in self.shards:
            yield shard, before[shard.source, shard.split]
            before[shard.source, shard.split] += shard.documents

    def of(self, source: str, split: str = "train") -> tuple[Shard, ...]:
        """Return the shards of one source and split in stream order."""
        return self._by_source.get((source, split), ())

    @cached_property
    def _by_source(self) -> dict[tuple[str, str], tuple[Shard, ...]]:
        found: dict[tuple[str, str], list[Shard]] = {}
        for shard in self.shards:
            found.setdefault((shard.source, shard.split), []).append(shard)
        return {key: tuple(shards) for key, shards in found.items()}

    @property
    def conversations(self) -> tuple[str, ...]:
        """The sources that hold conversations, of which not every token is learned."""
        return tuple(dict.fromkeys(shard.source for shard in self.shards if shard.kinds is not None))

    @property
    def data(self) -> dict[str, Any]:
        """The file as JSON."""
        bare = self.at(NOWHERE)
        head = {"format": FORMAT, "version": VERSION, "fingerprint": self.fingerprint}
        return {**head, "seal": bare.seal, **to_json(bare)}

    @property
    def seal(self) -> str:
        """The `fingerprint` of a manifest that is NOWHERE as JSON."""
        left_out = {"folder"} | ({"materialized"} if self.materialized is None else set())
        left_out |= set() if self.history else {"history"}
        values = {name: getattr(self, name) for name in {*self.__struct_fields__} - left_out}
        # These two may hold numbers with a point, which msgspec writes in another way.
        free = {name: canonical_json(to_json(values[name])) for name in {"config", "materialized"} - left_out}
        return digest(_sorted_json(values | {name: msgspec.Raw(form) for name, form in free.items()}))


def _sorted_json(table: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield in parts what `canonical_json` gives for a table of records: msgspec needs a tenth of its time."""
    for number, (name, value) in enumerate(sorted(table.items())):
        yield f'{"," if number else "{"}"{name}":'.encode()
        if isinstance(value, tuple) and value:
            for at in range(0, len(value), MANY):
                some = msgspec.json.encode(value[at : at + MANY], order="sorted")
                yield (b"," if at else b"[") + some[1:-1]
            yield b"]"
        else:
            yield msgspec.json.encode(value, order="sorted")
    yield b"}"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write FOLDER/manifest.json atomically."""
    write_json(folder / FILE_NAME, manifest.data)


def has_manifest(folder: Path) -> bool:
    """Whether `folder` has a manifest."""
    return os.path.exists(folder / FILE_NAME)  # noqa: PTH110 - False, not PermissionError, in a closed folder


def load_manifest(folder: Path, *, unfinished: bool = True) -> Manifest:
    """Read the manifest in FOLDER, or in the shards folder inside it. It is cached while the file does not change.

    unfinished: refuse a folder with an unfinished removal. Raises IntegrityError (missing, damaged, edited, being
    changed) or MismatchError (other version).
    """
    path = shards_of(Path(folder).absolute()) / FILE_NAME
    if not has_manifest(path.parent):
        raise IntegrityError(_missing(path))
    if unfinished and os.path.exists(path.parent / UNFINISHED_REMOVAL):  # noqa: PTH110 - as above
        raise IntegrityError(
            f"{path.parent}: documents are being removed, or that was stopped: wait for it, or run the same pretok "
            "remove again, which finishes it"
        )
    with reading(path):
        file = path.stat()
    # With the time of its last change, which no program can set: a copy that keeps size and time is another file too.
    return _load(path, (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns))


class _Stated(msgspec.Struct):
    """What a manifest says of itself."""

    format: Any = None
    version: Any = None
    fingerprint: Any = None
    seal: Any = None


_Head: Any = _Stated | list[Any] | str | float | bool | None


class _File(Manifest, frozen=True, kw_only=True):
    """A whole manifest as it is in the file: decoded at once, without a table of Python objects in between."""

    format: Any = None
    version: Any = None
    fingerprint: Any = None
    seal: Any = None


class _Quick(_File, frozen=True, kw_only=True):
    """A `_File` of which many parts are not decoded yet."""

    shards: list[msgspec.Raw]  # type: ignore[assignment]
    side_files: list[msgspec.Raw]  # type: ignore[assignment]


def _read(path: Path) -> _File:
    """Return what a file holds, if it is sound. Anything else is decoded in the order of what there is to say of it."""
    data = read_file(path)
    with suppress(ValueError, RecursionError):
        quick = msgspec.json.decode(data, type=_Quick)
        if quick.format == FORMAT and type(quick.version) is int and quick.version == VERSION:
            shards, others = decode_many(Shard, quick.shards), decode_many(SideFile, quick.side_files)
            return replace(quick, shards=shards, side_files=others)
    stated = decode_record(_Head, data, path)
    if not isinstance(stated, _Stated) or stated.format != FORMAT:
        raise IntegrityError(f"{path} is not a manifest of shards")
    check_version(stated.version, VERSION, path, "make the shards again with pretok tokenize")
    return decode_record(_File, data, path)


@lru_cache(maxsize=2)
def _load(path: Path, _stamp: tuple[int, ...]) -> Manifest:
    read = _read(path)
    manifest = Manifest(*(getattr(read, name) for name in Manifest.__struct_fields__))
    with reading(path, RecursionError):  # `config` holds any value
        seal = manifest.seal
    for key, now in (("fingerprint", manifest.fingerprint), ("seal", seal)):
        if (said := getattr(read, key)) != now:
            raise IntegrityError(
                f"{path} was edited or damaged: it states {key} {said!r}, its contents have {now}"
            )
    # Nothing else knows these records yet, and a copy of each would take as long as reading them.
    folder = path.parent
    for record in (manifest, *manifest.shards):
        msgspec.structs.force_setattr(record, "folder", folder)
    return manifest


def _missing(path: Path) -> str:
    """Say why there is no manifest at `path`, and what to do."""
    folder = path.parent
    if os.path.isfile(folder):  # noqa: PTH113 - as above
        return f"{folder} is a file; name the folder of shards, which holds {FILE_NAME}"
    named = folder if folder.name != "shards" else folder.parent
    if not os.path.lexists(named):
        return f"{named} does not exist: name a folder of results (WORK) or of shards"
    with suppress(FileNotFoundError, NotADirectoryError):  # PermissionError: it may be there
        os.lstat(path)
    return f"{path} does not exist: the folder holds no finished shards; run pretok tokenize, which resumes its work"


def shards_of(folder: Path) -> Path:
    """Return the folder of shards that `folder` means: itself, or the one inside a WORK folder."""
    inside = folder / "shards"
    if has_manifest(folder) or os.path.isdir(folder / STATE):  # noqa: PTH112 - as above
        return folder
    return inside if has_manifest(inside) or os.path.isdir(inside / STATE) else folder  # noqa: PTH112


def inputs_name(source: str, append: int = 0) -> str:
    """Path of the table of inputs of a source or an append, relative to the shards folder."""
    return f"{source}/{unit_name(source, append)}{INPUTS_SUFFIX}"


def _counts_of(shard: Shard) -> SplitCounts:
    return SplitCounts(shard.tokens, shard.documents, shard.text_bytes, shard.kinds, shard.removed)


def add_counts(parts: Sequence[T]) -> T:
    """Add up records of one type, at least one, field by field.

    Numbers, tables of numbers and records are added, tuples are concatenated, and None counts nothing.
    """

    def both(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        if isinstance(a, int | tuple):
            return a + b
        if isinstance(a, dict):
            return {**a, **{key: a.get(key, 0) + count for key, count in b.items()}}
        return add_counts([a, b])

    first, *rest = parts
    for part in rest:
        names = type(part).__struct_fields__
        first = type(part)(*(both(getattr(first, name), getattr(part, name)) for name in names))
    return first
