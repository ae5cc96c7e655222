"""Measure how much of each benchmark item documents contain.

Input: a folder of JSON Lines (plain, .gz, .zst), one item per line; batches of documents. Output: a `Benchmark`, also
as a file for workers; for each document the item of which it holds the largest share, and this share; for each item,
how many documents contain a part of it, and the largest part.

Every text in an item, at any depth (question, context, each choice, solution), is a passage of its own; names of fields
do not matter. A passage of `ngrams.GRAM` words or more is searched in grams of that many words, a shorter one as a
whole, and one below `ngrams.SHORTEST` words not at all. An item without a longer passage is listed as not checkable.

A document holds the share of an item's grams that stand in the document. It is a share of the item and not of the
document: a page that quotes one question spoils it, however long the page is; a document that shares a common phrase
with a long item does not.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.errors import UsageError
from pretok.base.records import Count, Record
from pretok.base.storage import atomic_open
from pretok.kernels.compile import I64, njit
from pretok.kernels.ngrams import GRAM, SHORTEST, Grams, find_grams, list_grams
from pretok.read.files import CorruptInputError, raise_passing, read_bytes
from pretok.read.recognise import list_inputs

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_VERSION = 1
"""Part of the fingerprint. Increase it if the same items give other grams."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Items and their grams."""

    fingerprint: str
    """32 hexadecimal digits of the items and how grams are made of them."""
    names: tuple[str, ...]
    """FILE:LINE of each item, the file relative to the folder."""
    grams: Grams
    sizes: npt.NDArray[np.int32]
    """(items,): in how many places an item has a gram, 0 if it is not checkable."""
    starts: npt.NDArray[np.int64]
    """(grams + 1,): where the holders of each gram begin in `holders`."""
    holders: npt.NDArray[np.int32]
    """(places,): the items that hold gram g are holders[starts[g]:starts[g + 1]], an item as often as it holds it."""

    @property
    def not_checkable(self) -> list[str]:
        """Items without a passage of SHORTEST words."""
        return [self.names[item] for item in np.flatnonzero(self.sizes == 0)]


def read_benchmark(folder: Path) -> Benchmark:
    """Read the items of all JSON Lines files in a folder and its subfolders.

    Raises UsageError for a line that is not an item.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is not a folder; against ([shards]) takes one with benchmark items as JSON Lines"
        )
    # Sorted: items are numbered in this order, and the first of equals wins, so every machine must see the same.
    paths = sorted(path for path in folder.rglob("*") if path.name.endswith(SUFFIXES) and path.is_file())
    if not paths:
        raise UsageError(f"{folder} holds no file named {', '.join(f'*{suffix}' for suffix in SUFFIXES)}")
    names: list[str] = []
    passages: list[bytes] = []
    item_of: list[int] = []
    for file in list_inputs([glob.escape(str(path)) for path in paths], "jsonl")[0]:
        name = Path(file.path).relative_to(folder)
        try:
            lines = b"".join(read_bytes(file.path, file.compression)).split(b"\n")
        except CorruptInputError as error:
            raise_passing(error)
            raise UsageError(f"{file.path} cannot be read: {error}") from None
        for number, line in enumerate(lines, 1):
            if line.strip():
                # JSON can spell half a surrogate pair, which UTF-8 has no bytes for; no document holds one.
                texts = [text.encode("utf-8", "replace") for text in _texts(_item(line, file.path, number))]
                item_of += [len(names)] * len(texts)
                passages += texts
                names.append(f"{name}:{number}")
    return _index(names, passages, np.array(item_of, np.int64))


def _item(line: bytes, path: str, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}, line {number} is not JSON: {error}; JSON Lines has one item per line"
        ) from None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _index(names: list[str], passages: list[bytes], item_of: npt.NDArray[np.int64]) -> Benchmark:
    digest = hashlib.blake2b(f"{_VERSION}\0{GRAM}\0{SHORTEST}\0".encode(), digest_size=16)
    for name in names:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    # With the length: else "ab", "c" and "a", "bc" would have one fingerprint.
    for item, passage in zip(item_of.tolist(), passages, strict=True):
        digest.update(b"%d\0%d\0%b" % (item, len(passage), passage))
    data = np.frombuffer(b"".join(passages), np.uint8)
    offsets = np.cumsum([0, *map(len, passages)], dtype=np.int64)
    grams, gram, passage_of = list_grams(data, offsets)
    item = item_of[passage_of].astype(np.int32)
    # The places of each gram in a row, so that a hit reads its holders as one stretch.
    order = np.argsort(gram, kind="stable")
    starts = np.searchsorted(gram[order], np.arange(len(grams.keys) + 1))
    sizes = np.bincount(item, minlength=len(names)).astype(np.int32)
    return Benchmark(digest.hexdigest(), tuple(names), grams, sizes, starts, item[order])


_ARRAYS = ("sizes", "starts", "holders")
_GRAM_ARRAYS = tuple(field.name for field in fields(Grams))


def save_benchmark(benchmark: Benchmark, path: Path) -> None:
    """Write a file that `load_benchmark` opens."""
    arrays = {name: getattr(benchmark, name) for name in _ARRAYS}
    arrays |= {f"gram_{name}": getattr(benchmark.grams, name) for name in _GRAM_ARRAYS}
    about = json.dumps([benchmark.fingerprint, benchmark.names]).encode()
    with atomic_open(path) as file:
        np.savez(file, about=np.frombuffer(about, np.uint8), **arrays)


@cache
def load_benchmark(path: Path, fingerprint: str) -> Benchmark:
    """Load the file once per process. `fingerprint` distinguishes different benchmarks at one path."""
    with np.load(path) as file:
        kept, names = json.loads(file["about"].tobytes())
        if kept != fingerprint:
            raise AssertionError(f"{path} holds the benchmark {kept}, not {fingerprint}")
        grams = Grams(**{name: file[f"gram_{name}"] for name in _GRAM_ARRAYS})
        return Benchmark(kept, tuple(names), grams, *(file[name] for name in _ARRAYS))


_I32 = types.Array(types.int32, 1, "C", readonly=True)
_NEW_I32, _NEW_I64 = (types.Array(kind, 1, "C") for kind in (types.int32, types.int64))


@njit(types.void(I64, _I32, I64, _I32, _I32, _NEW_I32, _NEW_I32, _NEW_I64, _NEW_I32))
def _count(
    at: Any, hits: Any, starts: Any, holders: Any, sizes: Any, best: Any, held: Any, documents: Any, most: Any
) -> Any:
    """Set (best, held) of each document, and add to (documents, most) of each item.

    best: the item of which it holds the largest share, the first of equals; held: how many of its grams.
    """
    # Scratch for one document after the other: only what a document touched is cleared, so the cost follows its hits
    # and not the number of items.
    counts = np.zeros(len(sizes), np.int32)
    touched = np.empty(len(sizes), np.int32)
    for d in range(len(at) - 1):
        n = 0
        for k in range(at[d], at[d + 1]):
            for place in range(starts[hits[k]], starts[hits[k] + 1]):
                item = holders[place]
                if counts[item] == 0:
                    touched[n] = item
                    n += 1
                counts[item] += 1
        for k in range(n):
            item = touched[k]
            count, documents[item] = counts[item], documents[item] + 1
            counts[item] = 0
            most[item] = max(most[item], count)
            # Shares are compared as fractions, each times the other's size: exact, where a division would round two
            # equal shares apart. The product needs 64 bits.
            ours = 0 if best[d] < 0 else np.int64(held[d]) * sizes[item]
            theirs = np.int64(count) * (1 if best[d] < 0 else sizes[best[d]])
            if theirs > ours or (theirs == ours and item < best[d]):
                best[d], held[d] = item, count


class ItemCount(Record, frozen=True):
    """The matches of one item."""

    item: str
    size: Count
    documents: Count
    """Documents that hold a part of it."""
    grams: Count
    """Most of its grams in one document."""


class ContaminationFinder:
    """Search batch after batch, and add up the matches of each item until `take` is called."""

    def __init__(self, benchmark: Benchmark) -> None:
        self.benchmark = benchmark
        self._documents = np.zeros(len(benchmark.names), np.int64)
        self._most = np.zeros(len(benchmark.names), np.int32)

    def search(
        self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
        """Search the documents data[offsets[d]:offsets[d + 1]] for items.

        Returns, for each document, the largest share of an item that it holds, and the number of that item, -1 if it
        holds none; both (documents,).
        """
        benchmark = self.benchmark
        at, hits = find_grams(benchmark.grams, data, offsets)
        best, held = np.full(len(offsets) - 1, -1, np.int32), np.zeros(len(offsets) - 1, np.int32)
        if len(hits):
            _count(
                at,
                hits,
                benchmark.starts,
                benchmark.holders,
                benchmark.sizes,
                best,
                held,
                self._documents,
                self._most,
            )
        # Where `best` is -1 it indexes the last item, and `held` is 0: the share is 0 whatever that item's size.
        return held / np.maximum(benchmark.sizes[best], 1), best

    def take(self) -> tuple[ItemCount, ...]:
        """Return the matches since the last call, for items that have some, in their order."""
        found = tuple(
            ItemCount(
                self.benchmark.names[item],
                *(int(x[item]) for x in (self.benchmark.sizes, self._documents, self._most)),
            )
            for item in np.flatnonzero(self._documents)
        )
        self._documents[:] = self._most[:] = 0
        return found


def sum_items(counts: Iterable[ItemCount]) -> tuple[ItemCount, ...]:
    """Combine counts by item: documents are added up, and the largest number of grams is kept."""
    summed: dict[str, ItemCount] = {}
    for count in counts:
        before = summed.get(count.item, ItemCount(count.item, count.size, 0, 0))
        documents, grams = before.documents + count.documents, max(before.grams, count.grams)
        summed[count.item] = ItemCount(count.item, count.size, documents, grams)
    return tuple(summed[item] for item in sorted(summed))
