"""The same documents in the same order for every arm of a comparison.

Input: WORK folders whose shards carry ledgers, weights, a seed. Output: files of token ids, a stream for each arm and
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
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.errors import MismatchError, UsageError
from pretok.base.storage import atomic_open
from pretok.base.tokens import Ints
from pretok.shards.format import ShardReader
from pretok.shards.manifest import Manifest, Shard, load_manifest


@dataclass(frozen=True, slots=True)
class Texts:
    """The documents of one source and split, sorted by hash: (n,) each.

    hashes: S16; sizes: bytes of text; tokens: EOD included; shards, rows: the number of the shard and of the document
    in it.
    """

    hashes: npt.NDArray[np.bytes_]
    sizes: Ints
    tokens: Ints
    shards: Ints
    rows: Ints


@dataclass(frozen=True, slots=True)
class Arm:
    """One vocabulary: its shards, and its documents by source and split."""

    name: str
    manifest: Manifest
    texts: dict[tuple[str, str], Texts]


def open_arm(name: str, work: Path) -> Arm:
    """The arm of WORK. UsageError where its shards hold a mix."""
    manifest = load_manifest(work / "shards")
    if manifest.materialized is not None:
        raise UsageError(f"arm {name}: {manifest.folder} holds a mix in its order, which has no documents")
    keys = [(source, split) for source in manifest.sources for split in ("train", "val")]
    return Arm(name, manifest, {key: _read_texts(manifest.of(*key)) for key in keys})


def _read_texts(shards: Sequence[Shard]) -> Texts:
    from pretok.shards.ledger import ledger_column  # pyarrow, which no rank of a run needs

    none = np.empty(0, np.int64)
    parts: list[tuple[npt.NDArray[Any], ...]] = [(np.empty(0, "S16"), none, none, none, none)]
    for number, shard in enumerate(shards):
        path = shard.ledger_path
        count = shard.documents
        if count:
            hashes, sizes, tokens = (ledger_column(path, column) for column in ("hash", "bytes", "tokens"))
            known = np.frombuffer(hashes.buffers()[1], "S16", count, 16 * hashes.offset)
            rows = (np.full(count, number), np.arange(count))
            parts.append((known, sizes.to_numpy(), tokens.to_numpy().astype(np.int64), *rows))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")  # equal texts stay in the order of the shards
    return Texts(*(column[order] for column in columns))


def check_same(arms: Sequence[Arm]) -> None:
    """MismatchError, naming the first text that differs, unless all arms hold the same in each source and split."""
    first = arms[0]
    for arm in arms[1:]:
        if first.manifest.sources.keys() != arm.manifest.sources.keys():
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
    from pretok.shards.ledger import ledger_row

    texts = arm.texts[key]
    shard = arm.manifest.of(*key)[int(texts.shards[number])]
    row = ledger_row(shard.ledger_path, int(texts.rows[number]))
    return f"record {row['record']} of {row['file']}"


def text_weights(arm: Arm, asked: Mapping[str, Fraction] | None) -> dict[str, float]:
    """Shares of each source in the text, of bytes, summing to 1; by default those on disk. UsageError."""
    sizes = {source: int(arm.texts[source, "train"].sizes.sum()) for source in arm.manifest.sources}
    if not any(sizes.values()):
        raise UsageError(f"arm {arm.name}: there is no text to learn from")
    weights = asked or {source: Fraction(size, sum(sizes.values())) for source, size in sizes.items()}
    for source, weight in weights.items():
        if source not in sizes:
            raise UsageError(f"--weights: no source {source}; there are {', '.join(sizes)}")
        if weight and not sizes[source]:
            raise UsageError(f"--weights: source {source} has no text to learn from")
    return {source: float(weight) for source, weight in sorted(weights.items()) if weight}


@dataclass(frozen=True, slots=True)
class Ordered:
    """Documents of a split in order: (n,) number of the source in `sources` and number of the document in its Texts."""

    split: str
    sources: tuple[str, ...]
    source: Ints
    document: Ints


def order_documents(arm: Arm, weights: Mapping[str, float], seed: int) -> Ordered:
    """The documents of the train split until a source runs out; the same for arms that `check_same` lets pass."""
    parts, ends = [], []
    for number, (source, weight) in enumerate(weights.items()):
        sizes = arm.texts[source, "train"].sizes
        chosen = np.random.default_rng([seed, zlib.crc32(source.encode())]).permutation(len(sizes))
        done = np.cumsum(sizes[chosen]) / weight
        parts.append((done - sizes[chosen] / weight, np.full(len(chosen), number), chosen))
        ends.append(done[-1])
    begins, source_numbers, documents = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((source_numbers, begins))
    order = order[begins[order] < min(ends)]
    return Ordered("train", tuple(weights), source_numbers[order], documents[order])


def choose_validation(arm: Arm, source: str, most: int) -> Ordered:
    """Validation documents of a source, in the order of their hashes, of `most` bytes of text together: one that would
    go beyond is left out. The same for arms that `check_same` lets pass. UsageError where there is none."""
    chosen, total = [], 0
    for number, size in enumerate(arm.texts[source, "val"].sizes.tolist()):
        if total + size <= most:
            chosen.append(number)
            total += size
    if not chosen:
        raise UsageError(
            f"source {source} has no validation document of at most {most:,} bytes: tokenize with --val-fraction, or "
            "raise --val-bytes"
        )
    return Ordered("val", (source,), np.zeros(len(chosen), np.int64), np.array(chosen, np.int64))


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
        texts, mine = arm.texts[source, ordered.split], ordered.source == number
        tokens[mine] = texts.tokens[ordered.document[mine]]
        sizes[mine] = texts.sizes[ordered.document[mine]]
    return Stream(np.cumsum(tokens), np.cumsum(sizes))


def write_documents(arm: Arm, ordered: Ordered, path: Path, count: int | None = None) -> None:
    """An end-of-document token, then the tokens of the first `count` documents of an order, in the arm's dtype."""
    manifest, split = arm.manifest, ordered.split
    shards = [[ShardReader(s.prefix) for s in manifest.of(source, split)] for source in ordered.sources]
    texts = [arm.texts[source, split] for source in ordered.sources]
    with atomic_open(path) as file:
        file.write(np.array([manifest.tokenizer.eod_id], manifest.tokenizer.dtype).tobytes())
        for source, document in zip(ordered.source[:count], ordered.document[:count], strict=True):
            shard = shards[source][texts[source].shards[document]]
            file.write(shard[texts[source].rows[document]].tobytes())
