r"""A shard: its entry in the manifest, and the only module that writes the bytes of `.bin` and `.idx`.

A shard is a Megatron-LM indexed dataset of documents, each of which ends with EOD and begins with BOS if there is one.

    .bin  token ids, little-endian, nothing else
    .idx  b"MMIDIDX\0\0" | u64 version = 1 | u8 dtype code | u64 sequences S | u64 documents + 1 D
          | i32 lengths[S], in tokens | i64 offsets[S], in bytes | i64 document_indices[D]

One sequence is one document, so S = documents and document_indices = 0..S. `.nodes` holds the inner hashes of the tree
over the `.bin` (`pretok.base.tree`). The format is that of megatron/core/datasets/indexed_dataset.py in Megatron-LM.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.records import Count, Inside, Name, Record, Root, Split
from pretok.base.storage import reading
from pretok.base.tokens import (
    DTYPE_CODES,
    INDEX_HEADER,
    INDEX_MAGIC,
    INDEX_VERSION,
    Tokens,
)
from pretok.base.tree import NODES_SUFFIX, compare_root, nodes_path

LEDGER_SUFFIX, SPANS_SUFFIX = ".docs.parquet", ".spans"
SHARD_SUFFIXES = (".bin", ".idx", NODES_SUFFIX, LEDGER_SUFFIX, SPANS_SUFFIX)
"""The files that a shard may have."""
NOWHERE = Path()
"""The folder of a record that is in none yet. It is never written, see `Manifest.at`."""


class RemovedCounts(Record, frozen=True):
    """Documents that were removed: their tokens are now EOD."""

    documents: Count
    tokens: Count
    bytes: Count
    """Of their texts, in UTF-8."""


class Shard(Record, frozen=True, omit_defaults=True, gc=False):
    """A shard."""

    path: Inside
    """The `.bin`, relative to the folder."""
    source: Name
    split: Split
    tokens: Count
    documents: Count
    file_bytes: Count
    """Its size."""
    text_bytes: Count
    root: Root
    """Hash tree root of the `.bin`."""
    index_root: Root
    """Hash tree root of the `.idx`."""
    kinds: dict[str, Count] | None = None
    """For conversations, the number of tokens of each kind."""
    removed: RemovedCounts | None = None
    """What was removed from it."""
    folder: Path = NOWHERE
    """Where the shards are, which is not written to the manifest."""

    @property
    def bin_path(self) -> Path:
        """Path of the `.bin`."""
        return self.folder / self.path

    @property
    def index_path(self) -> Path:
        """Path of the `.idx`."""
        return self.bin_path.with_suffix(".idx")

    @property
    def nodes_path(self) -> Path:
        """Path of the inner hashes over the `.bin`."""
        return nodes_path(self.bin_path)

    @property
    def ledger_path(self) -> Path:
        """Path of its ledger, if it has one."""
        return self.bin_path.with_suffix(LEDGER_SUFFIX)

    @property
    def spans_path(self) -> Path:
        """Path of its spans, if it holds conversations."""
        return self.bin_path.with_suffix(SPANS_SUFFIX)

    @property
    def prefix(self) -> Path:
        """Its path without a suffix, as `ShardReader` takes it."""
        return self.bin_path.with_suffix("")

    def open(self) -> ShardReader:
        """Open it for reading. Raises IntegrityError if the index was changed; the tokens are not checked."""
        reader = ShardReader(self.prefix)
        compare_root(self.index_path, self.index_root)
        return reader


def index_bytes(lengths: npt.NDArray[np.int32], dtype: np.dtype[np.generic]) -> bytes:
    """Return the whole `.idx` file for documents of `lengths` tokens."""
    count = len(lengths)
    code = next(code for code, known in DTYPE_CODES.items() if known == dtype)
    ends = np.cumsum(lengths, dtype=np.int64) * dtype.itemsize
    offsets = np.concatenate([np.zeros(1, np.int64), ends])[:count]
    return b"".join(
        [
            INDEX_HEADER.pack(INDEX_MAGIC, INDEX_VERSION, code, count, count + 1),
            lengths.astype("<i4").tobytes(),
            offsets.astype("<i8").tobytes(),
            np.arange(count + 1, dtype="<i8").tobytes(),
        ]
    )


def index_size(documents: int) -> int:
    """Size in bytes of the `.idx` of a number of documents."""
    return INDEX_HEADER.size + 12 * documents + 8 * (documents + 1)


class ShardReader:
    """Reads one shard through a memory map.

    Raises IntegrityError if a file has a wrong size, or an index does not follow from its lengths.

    tokens: (tokens,) the ids of all documents in a row; lengths: (documents,) int32; offsets: (documents + 1,) int64,
    where each document starts in `tokens`.
    """

    def __init__(self, prefix: Path) -> None:
        index_path = prefix.with_name(prefix.name + ".idx")
        bin_path = prefix.with_name(prefix.name + ".bin")
        with reading(index_path):
            index = np.fromfile(index_path, np.uint8)
        # A file shorter than a header is filled up with zeros; then its size is wrong.
        _, _, code, documents, _ = INDEX_HEADER.unpack(
            index[: INDEX_HEADER.size].tobytes().ljust(INDEX_HEADER.size, b"\0")
        )
        if len(index) != (expected := index_size(documents)):
            raise IntegrityError(f"{index_path} has {len(index)} bytes, its header says {expected}")
        self.lengths: npt.NDArray[np.int32] = index[
            INDEX_HEADER.size : INDEX_HEADER.size + 4 * documents
        ].view("<i4")
        self.dtype = DTYPE_CODES.get(code, DTYPE_CODES[8])
        # Everything else follows from the lengths. Comparing it means that no offset can lead to wrong tokens.
        whole = np.frombuffer(index_bytes(self.lengths, self.dtype), np.uint8)
        if (self.lengths < 0).any() or not np.array_equal(index, whole):
            raise IntegrityError(
                f"{index_path} is not an index of version {INDEX_VERSION} that fits its lengths; it was damaged or "
                "edited"
            )
        self.offsets: npt.NDArray[np.int64] = np.zeros(documents + 1, np.int64)
        np.cumsum(self.lengths, dtype=np.int64, out=self.offsets[1:])
        self.tokens = map_tokens(bin_path, self.dtype, int(self.offsets[-1]))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> Tokens:
        """Return the ids of one document, with BOS and EOD, as a view of the memory map."""
        view: Tokens = self.tokens[self.offsets[document] : self.offsets[document + 1]]
        return view


def check_size(path: Path, size: int) -> None:
    """Raise IntegrityError unless a file exists and has this size in bytes."""
    with reading(path):
        try:
            size_now = path.stat().st_size
        except FileNotFoundError:
            raise IntegrityError(f"{path} is missing") from None
    if size_now != size:
        raise IntegrityError(f"{path} has {size_now:,} bytes, {size:,} expected")


def map_tokens(bin_path: Path, dtype: np.dtype[np.generic], tokens: int) -> Tokens:
    """Memory-map a `.bin` of `tokens` ids. Raises IntegrityError if it has another size."""
    check_size(bin_path, tokens * dtype.itemsize)
    if tokens == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    with reading(bin_path):
        return np.memmap(bin_path, dtype, mode="r", shape=(tokens,))
