"""Counted words: in memory as arrays, on disk as Parquet with one row group per bucket or per source.

Input and output: `Words`. A bucket is a range of the words' hashes. So all counts of a word, of any partition or
corpus, are in row groups of the same bucket, and no step needs all words at once. Held-out texts are kept in files of
the same form: each is a word that occurs once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pretok.base.errors import IntegrityError
from pretok.base.storage import reading
from pretok.base.texts import buffers
from pretok.base.tokens import Bytes, Ints
from pretok.kernels.hashing import hash_documents

BUCKET_BITS = 6
BUCKETS = 1 << BUCKET_BITS
"""Fixed, so that the counts of any two corpora can be added bucket by bucket."""

SCHEMA = pa.schema([("word", pa.large_binary()), ("count", pa.int64()), ("heldout", pa.int64())])
_METADATA = "pretok"


@dataclass(frozen=True, slots=True)
class Words:
    """Distinct words and two sums of each: word w is data[offsets[w]:offsets[w + 1]]."""

    data: Bytes
    offsets: Ints
    """(words + 1,) int64, from 0."""
    counts: Ints
    """(words,) int64, occurrences in training documents; of weighted words, times the weights."""
    others: Ints
    """(words,) int64, occurrences in held-out documents; of weighted words, those in training documents, unweighted."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Bytes of each word, (words,) int64."""
        return np.diff(self.offsets)

    def words(self) -> pa.LargeBinaryArray:
        """Return the words as an Arrow array, without a copy."""
        array: Any = pa.LargeBinaryArray.from_buffers(
            # No validity buffer: no word is null.
            pa.large_binary(),
            len(self),
            [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)],
        )
        return array

    def take(self, order: Ints) -> Words:
        """Return the words at `order`, in that order."""
        return from_arrow(self.words().take(pa.array(order)), self.counts[order], self.others[order])

    def sorted(self) -> Words:
        """Return the same words, ordered by their bytes."""
        return self.take(pc.array_sort_indices(self.words()).to_numpy().astype(np.int64))


def from_arrow(words: pa.LargeBinaryArray, counts: Ints, others: Ints) -> Words:
    """Make words from an Arrow array and their sums."""
    return Words(*buffers(words), counts, others)


def concatenate(parts: Sequence[Words]) -> Words:
    """Return all words of the parts, at least one, in a row."""
    counts, others = ([getattr(part, name) for part in parts] for name in ("counts", "others"))
    words = pa.concat_arrays([part.words() for part in parts])
    return from_arrow(words, np.concatenate(counts), np.concatenate(others))


def split_buckets(words: Words) -> Iterator[Words]:
    """Yield the words of each bucket, BUCKETS times, in their order."""
    # Always by the same seed and the highest bits, so that a word of any corpus is in the same bucket.
    bucket = (hash_documents(words.data, words.offsets, 0) >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)
    order = np.argsort(bucket, kind="stable")
    borders = np.searchsorted(bucket[order], np.arange(BUCKETS + 1))
    ordered = words.take(order)
    texts = ordered.words()
    for start, stop in pairwise(borders.tolist()):
        yield from_arrow(texts[start:stop], ordered.counts[start:stop], ordered.others[start:stop])


def whole_texts(texts: pa.ChunkedArray) -> Words:
    """Return texts of type large_string as words that occur once."""
    data, offsets = buffers(texts.combine_chunks())
    return Words(data, offsets, np.ones(len(texts), np.int64), np.zeros(len(texts), np.int64))


def write_groups(file: Any, groups: Iterable[Words], metadata: Callable[[], object] = dict) -> None:
    """Write row groups, empty ones too, to an open binary file. metadata: gives any JSON, after the last group."""
    # The words of a group are distinct, so a dictionary would only repeat them.
    with pq.ParquetWriter(
        file, SCHEMA, compression="zstd", use_dictionary=False, write_statistics=False
    ) as writer:
        for group in groups:
            columns = [group.words(), pa.array(group.counts), pa.array(group.others)]
            # One row group per table, also for an empty one: readers find a bucket by its number.
            writer.write_table(pa.table(columns, schema=SCHEMA), row_group_size=max(1, len(group)))
        writer.add_key_value_metadata({_METADATA: json.dumps(metadata())})


def read_group(path: Path, *groups: int) -> Words:
    """Read the words of a row group, or of several in a row, where one may occur more than once.

    Raises IntegrityError if the file is damaged.
    """
    # A row group is small: threads and pre-buffering of Arrow took a third of the time.
    with reading(path, pa.ArrowException, ValueError), pq.ParquetFile(path, pre_buffer=False) as file:
        if file.schema_arrow.remove_metadata() != SCHEMA:
            raise IntegrityError(f"{path} is not a table of words of this version; it was damaged or edited")
        table = file.read_row_groups(groups, use_threads=False)
    words = table.column("word").combine_chunks()
    return from_arrow(words, table.column("count").to_numpy(), table.column("heldout").to_numpy())


def read_metadata(path: Path) -> Any:
    """Read the metadata that `write_groups` wrote. Raises IntegrityError if the file is damaged."""
    with (
        reading(path, pa.ArrowException, KeyError, TypeError, ValueError, RecursionError),
        pq.ParquetFile(path) as file,
    ):
        return json.loads(file.metadata.metadata[_METADATA.encode()])
