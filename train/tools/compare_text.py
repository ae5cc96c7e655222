"""The same documents in the same order for every arm of a comparison.

Enters: WORK folders whose shards carry ledgers, weights, a seed. Leaves: files of token ids, a stream for each arm and
seed and one for each arm and validation source, that stand for the same bytes of text.

Documents are known by the hash of their text, so arms that read the same inputs have the same documents whatever their
vocabulary; where they differ, `check_same` refuses. A seed permutes the documents of each source, and the source that
is furthest behind its weight in bytes of text gives the next one: a mix by bytes, as one by tokens would give each
vocabulary another text. Whole documents only, each followed by its end-of-document token.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.errors import MismatchError, UsageError
from pretok.base.storage import atomic_open
from pretok.base.tokens import Ints
from pretok.shards.manifest import Manifest, Shard, load_manifest

_COLUMNS = ["tokens", "bytes", "hash"]


@dataclass(frozen=True, slots=True)
class Texts:
    """The documents of one source and split, sorted by hash: (n,) each.

    hashes: S16; sizes: bytes of text; tokens: EOD included; starts: where the first token lies in the shard numbered
    `shards`; rows: of the ledger.
    """

    hashes: npt.NDArray[np.bytes_]
    sizes: Ints
    tokens: Ints
    shards: Ints
    starts: Ints
    rows: Ints


@dataclass(frozen=True, slots=True)
class Arm:
    """One vocabulary: its shards, and its documents by source and split."""

    name: str
    manifest: Manifest
    texts: dict[tuple[str, str], Texts]

    @property
    def eod(self) -> npt.NDArray[Any]:
        """The end-of-document token, as an array of the dtype of the shards."""
        return np.array([self.manifest.eod_id], self.manifest.dtype)


def open_arm(name: str, work: Path) -> Arm:
    """The arm of WORK. UsageError where its shards have no ledgers."""
    manifest = load_manifest(work / "shards")
    if manifest.contents.materialized is not None:
        raise UsageError(f"arm {name}: {manifest.folder} holds a mix in its order, which has no documents")
    found = {}
    for source in manifest.sources:
        for split in ("train", "val"):
            found[source, split] = _read_texts(name, manifest.of(source, split))
    return Arm(name, manifest, found)


def _read_texts(name: str, shards: Sequence[Shard]) -> Texts:
    from pretok.shards.ledger import ledger_path, ledger_windows  # pyarrow, which no rank of a run needs

    parts: dict[str, list[Any]] = {
        key: [] for key in ("hashes", "sizes", "tokens", "shards", "starts", "rows")
    }
    for number, shard in enumerate(shards):
        path = ledger_path(shard.prefix)
        if not path.exists():
            raise UsageError(
                f"arm {name}: {path} is not there, so nothing says which document is which; tokenize again with this "
                "version"
            )
        windows = list(ledger_windows(path, _COLUMNS))
        tokens = np.concatenate([rows["tokens"].to_numpy() for rows in windows]).astype(np.int64)
        parts["hashes"] += [_sixteen_bytes(rows["hash"]) for rows in windows]
        parts["sizes"] += [rows["bytes"].to_numpy() for rows in windows]
        parts["tokens"].append(tokens)
        parts["shards"].append(np.full(len(tokens), number))
        parts["starts"].append(np.cumsum(tokens) - tokens)
        parts["rows"].append(np.arange(len(tokens)))
    arrays = {key: np.concatenate(values or [np.empty(0, np.int64)]) for key, values in parts.items()}
    arrays["hashes"] = arrays["hashes"].astype("S16")
    order = np.argsort(arrays["hashes"], kind="stable")  # equal texts stay in the order of the shards
    return Texts(**{key: values[order] for key, values in arrays.items()})


def _sixteen_bytes(column: Any) -> npt.NDArray[np.bytes_]:
    """A fixed-size column of Arrow, without a Python object for each."""
    return np.frombuffer(column.buffers()[1], "S16", len(column), 16 * column.offset)


def check_same(arms: Sequence[Arm]) -> None:
    """MismatchError, naming the first text that differs, unless all arms hold the same in each source and split."""
    first = arms[0]
    for arm in arms[1:]:
        if first.manifest.sources != arm.manifest.sources:
            raise MismatchError(
                f"arm {first.name} has the sources {', '.join(first.manifest.sources)}, arm {arm.name} "
                f"{', '.join(arm.manifest.sources)}; all arms must be made of the same inputs"
            )
        for key, texts in first.texts.items():
            if not np.array_equal(texts.hashes, arm.texts[key].hashes):
                _refuse_texts(first, arm, key)


def _refuse_texts(first: Arm, second: Arm, key: tuple[str, str]) -> None:
    pairs = ((first, second), (second, first))
    for one, other in pairs:
        missing = ~np.isin(one.texts[key].hashes, other.texts[key].hashes)
        if missing.any():
            row = int(np.flatnonzero(missing)[0])
            text = f"{missing.sum():,} of arm {one.name} are not in arm {other.name}, such as {_place(one, key, row)}"
            break
    else:
        text = "some are there more often in one than in the other"
    raise MismatchError(
        f"the arms {first.name} and {second.name} hold different documents in source {key[0]}, split {key[1]}: {text}; "
        "make both from the same inputs with the same normalization, limits and --val-fraction"
    )


def _place(arm: Arm, key: tuple[str, str], number: int) -> str:
    from pretok.shards.ledger import ledger_path, ledger_row

    texts = arm.texts[key]
    shard = arm.manifest.of(*key)[int(texts.shards[number])]
    row = ledger_row(ledger_path(shard.prefix), int(texts.rows[number]))
    return f"record {row['record']} of {row['file']}"


def text_weights(arm: Arm, asked: Mapping[str, float] | None) -> dict[str, float]:
    """Shares of each source in the text, of bytes, summing to 1; by default those on disk. UsageError."""
    sizes = {source: float(arm.texts[source, "train"].sizes.sum()) for source in arm.manifest.sources}
    weights = {source: 1.0 * value for source, value in (sizes if asked is None else asked).items()}
    if unknown := set(weights) - set(sizes):
        raise UsageError(f"--weights: no source {', '.join(sorted(unknown))}; there are {', '.join(sizes)}")
    weights = {source: value for source, value in weights.items() if value > 0}
    if empty := [source for source in weights if not sizes[source]] or not weights:
        raise UsageError(f"--weights: nothing to read from {empty if weights else 'any source'}")
    total = sum(weights.values())
    return {source: value / total for source, value in sorted(weights.items())}


@dataclass(frozen=True, slots=True)
class Ordered:
    """Documents in order: (n,) number of the source in `sources` and number of the document in its Texts."""

    sources: tuple[str, ...]
    source: Ints
    document: Ints


def order_documents(arm: Arm, weights: Mapping[str, float], seed: int) -> Ordered:
    """The documents of the train split until a source runs out; the same for arms that `check_same` lets pass."""
    parts, ends = [], []
    for number, (source, weight) in enumerate(weights.items()):
        sizes = arm.texts[source, "train"].sizes
        generator = np.random.default_rng([seed, zlib.crc32(source.encode())])
        chosen = generator.permutation(len(sizes))
        done = np.cumsum(sizes[chosen]) / weight
        parts.append((done - sizes[chosen] / weight, np.full(len(chosen), number), chosen))
        ends.append(done[-1])
    begins, source_numbers, documents = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((source_numbers, begins))
    order = order[begins[order] < min(ends)]
    return Ordered(tuple(weights), source_numbers[order], documents[order])


@dataclass(frozen=True, slots=True)
class Stream:
    """What of an order an arm reads: (n,) tokens and bytes of the documents up to and with each."""

    tokens: Ints
    sizes: Ints

    def text_bytes(self, tokens: int) -> float:
        """Bytes of text that the first `tokens` tokens stand for; of a document begun, its share by tokens."""
        return float(np.interp(tokens, np.r_[0, self.tokens], np.r_[0, self.sizes]))


def read_along(arm: Arm, ordered: Ordered) -> Stream:
    """Tokens and bytes along an order."""
    tokens, sizes = (np.empty(len(ordered.document), np.int64) for _ in range(2))
    for number, source in enumerate(ordered.sources):
        texts, mine = arm.texts[source, "train"], ordered.source == number
        tokens[mine] = texts.tokens[ordered.document[mine]]
        sizes[mine] = texts.sizes[ordered.document[mine]]
    return Stream(np.cumsum(tokens), np.cumsum(sizes))


def write_stream(arm: Arm, ordered: Ordered, count: int, path: Path) -> None:
    """An end-of-document token, then the tokens of the first `count` documents of an order, in the arm's dtype."""
    shards = {source: _Opened(arm, (source, "train")) for source in ordered.sources}
    with atomic_open(path) as file:
        file.write(arm.eod.tobytes())
        for number, document in zip(
            ordered.source[:count].tolist(), ordered.document[:count].tolist(), strict=True
        ):
            file.write(shards[ordered.sources[number]].tokens(document).tobytes())


def choose_validation(arm: Arm, source: str, most: int) -> Ints:
    """Numbers of validation documents of a source, in the order of their hashes, of `most` bytes of text together: one
    that would go beyond is left out. The same for arms that `check_same` lets pass."""
    chosen, total = [], 0
    for number, size in enumerate(arm.texts[source, "val"].sizes.tolist()):
        if total + size <= most:
            chosen.append(number)
            total += size
    return np.array(chosen, np.int64)


def write_validation(arm: Arm, source: str, documents: Ints, path: Path) -> None:
    """An end-of-document token, then the tokens of these validation documents."""
    shards = _Opened(arm, (source, "val"))
    with atomic_open(path) as file:
        file.write(arm.eod.tobytes())
        for document in documents.tolist():
            file.write(shards.tokens(document).tobytes())


class _Opened:
    """The shards of a source and split, mapped into memory."""

    def __init__(self, arm: Arm, key: tuple[str, str]) -> None:
        dtype = np.dtype(arm.manifest.dtype).newbyteorder("<")
        self._texts = arm.texts[key]
        self._shards = [np.memmap(s.path, dtype, "r") if s.tokens else None for s in arm.manifest.of(*key)]

    def tokens(self, document: int) -> npt.NDArray[Any]:
        """Ids of one document, EOD included."""
        texts = self._texts
        shard, start = self._shards[int(texts.shards[document])], int(texts.starts[document])
        assert shard is not None  # it holds this document
        return shard[start : start + int(texts.tokens[document])]
