"""Counts of as many distinct words as wanted: those of the corpus, and new ones made of their halves.

Input: a folder of counts. Output: another with the same texts, in whose buckets are more words: each new one is the
first half of a word and the second half of another, as rare as the rarer of them. So lengths, letters and counts are
those of the corpus.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.storage import checksum
from pretok.base.tokens import Ints
from pretok.counts.buckets import (
    BUCKETS,
    Words,
    concatenate,
    from_arrow,
    read_group,
    split_buckets,
    write_groups,
)

SEED = 0


def widen(counts: Path, out: Path, words: int) -> None:
    """Write counts of about `words` distinct words in each source, more than `counts` has."""
    shutil.copytree(counts, out)
    said = json.loads((counts / "counts.json").read_text(encoding="utf-8"))
    paths = [name for name in said["files"] if name.startswith("bucket")]
    sources = [_widened([counts / name for name in paths], at, words) for at in range(len(said["sources"]))]
    split = [list(split_buckets(source)) for source in sources]
    for number, name in enumerate(paths):
        path = out / name
        with path.open("wb") as file:
            write_groups(file, [source[number] for source in split], None)
        said["files"][name] = checksum(path)
    (out / "counts.json").write_text(json.dumps(said), encoding="utf-8")


def _widened(buckets: list[Path], source: int, words: int) -> Words:
    """The words of a source and new ones, sorted."""
    assert len(buckets) == BUCKETS
    found = concatenate([read_group(bucket, source) for bucket in buckets])
    random = np.random.default_rng(SEED + source)
    # Some of what is joined is there already, or comes twice.
    first, second = random.integers(0, len(found), (2, int(1.1 * max(0, words - len(found)))))
    old = found.words()
    half = _halves(found)
    heads = _slices(found, np.zeros(len(found), np.int64), half).take(pa.array(first))
    tails = _slices(found, half, found.lengths).take(pa.array(second))
    joined = pc.binary_join_element_wise(heads, tails, pa.scalar(b"", pa.large_binary()))
    rarer = np.minimum(found.counts[first], found.counts[second])
    new = pa.table({"word": joined, "count": rarer}).group_by("word").aggregate([("count", "min")])
    new = new.filter(pc.invert(pc.is_in(new["word"], value_set=old))).slice(0, max(0, words - len(found)))
    more = from_arrow(new["word"].combine_chunks(), new["count_min"].to_numpy(), np.zeros(len(new), np.int64))
    return concatenate([found, more]).sorted()


def _halves(words: Words) -> Ints:
    """Where each word is cut: in the middle, or after the character that is there."""
    half = (words.lengths + 1) // 2
    last = words.offsets[1:] - 1
    for _ in range(3):
        inside = (words.data[np.minimum(words.offsets[:-1] + half, last)] & 0xC0) == 0x80
        half += inside & (half < words.lengths)
    return half


def _slices(words: Words, start: Ints, stop: Ints) -> pa.LargeBinaryArray:
    """From `start` to before `stop` of each word."""
    lengths = stop - start
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    data = words.data[np.repeat(words.offsets[:-1] + start, lengths) + within]
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(words), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
