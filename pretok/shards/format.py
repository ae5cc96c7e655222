"""Shards: the only module that knows the bytes of `.bin` and `.idx`.

Input: the token ids of documents, each ending with EOD, and beginning with BOS where there is one. Output: a
Megatron-LM indexed dataset.

    .bin  token ids, little-endian, nothing else
    .idx  b"MMIDIDX\\0\\0" | u64 version = 1 | u8 dtype code | u64 sequences S | u64 documents + 1 D
          | i32 lengths[S], in tokens | i64 offsets[S], in bytes | i64 document_indices[D]

Beside them the nodes of the tree that seals the `.bin`, see `pretok.base.tree`.
One sequence is one document, so S = documents and document_indices = 0..S.
Source of the format: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.records import Count, Record
from pretok.base.storage import reading
from pretok.base.tokens import Tokens
from pretok.base.tree import NODES_SUFFIX, TreeFile, compare_root, nodes_path, write_nodes, write_rooted

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
LEDGER_SUFFIX, SPANS_SUFFIX = ".docs.parquet", ".spans"
SHARD_SUFFIXES = (".bin", ".idx", NODES_SUFFIX, LEDGER_SUFFIX, SPANS_SUFFIX)
"""Of all files that a shard may have."""
NOWHERE = Path()
"""The folder of what is not in one yet. It is told from others by identity and never written, see `Manifest.at`."""
DTYPE_CODES: dict[int, np.dtype[Any]] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
"""Megatron-LM's code -> dtype; the two that token ids need."""


def dtype_code(dtype: np.dtype[np.generic]) -> int:
    """Megatron-LM's code of a token dtype."""
    return next(code for code, known in DTYPE_CODES.items() if known == dtype)


class RemovedCounts(Record, frozen=True):
    """Documents that were removed, whose tokens are EOD; bytes: of their texts."""

    documents: Count
    tokens: Count
    bytes: Count


class Shard(Record, frozen=True, omit_defaults=True):
    """One shard. path: of the `.bin`, relative to the folder; file_bytes: its size; root, index_root: of its
    tree and of that of its `.idx`; folder: where the shards are, which stands in no file; kinds: of conversations the
    tokens of each kind; removed: how much of it was removed."""

    path: str
    source: str
    split: str
    tokens: Count
    documents: Count
    file_bytes: Count
    text_bytes: Count
    root: str
    index_root: str
    kinds: dict[str, Count] | None = None
    removed: RemovedCounts | None = None
    folder: Path = NOWHERE

    @property
    def bin_path(self) -> Path:
        """Where the `.bin` is."""
        return self.folder / self.path

    @property
    def index_path(self) -> Path:
        """Where the `.idx` is."""
        return self.bin_path.with_suffix(".idx")

    @property
    def nodes_path(self) -> Path:
        """Where the nodes of its tree are."""
        return nodes_path(self.bin_path)

    @property
    def ledger_path(self) -> Path:
        """Where its ledger is, if it has one."""
        return self.bin_path.with_suffix(LEDGER_SUFFIX)

    @property
    def spans_path(self) -> Path:
        """Where its spans are, if it holds conversations."""
        return self.bin_path.with_suffix(SPANS_SUFFIX)

    @property
    def prefix(self) -> Path:
        """Path without suffix, as `ShardReader` takes it."""
        return self.bin_path.with_suffix("")

    def open(self) -> ShardReader:
        """Its reader. Raises IntegrityError unless its index is as it was sealed; its tokens are not compared."""
        reader = ShardReader(self.prefix)
        compare_root(self.index_path, self.index_root)
        return reader


class ShardWriter:
    """Writes one shard: `append` as often as needed, then `seal`. Nothing is visible under `prefix` before `seal`.

    `prefix` is the path without suffix. Leaving the context without `seal` removes the temporary file.
    """

    def __init__(self, prefix: Path, dtype: np.dtype[np.generic]) -> None:
        self.prefix = prefix
        self.dtype = dtype
        self.tokens = 0
        self.documents = 0
        self._lengths: list[npt.NDArray[np.int32]] = []
        self._file = TreeFile(prefix.with_name(prefix.name + ".bin"))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.__exit__()

    def append(self, tokens: Tokens, lengths: npt.NDArray[np.int32]) -> None:
        """Add whole documents. tokens: all their ids in a row, BOS and EOD included; lengths: tokens per document."""
        if tokens.dtype != self.dtype:
            raise TypeError(f"shard {self.prefix} holds {self.dtype}, got tokens of {tokens.dtype}")
        self._file.write(np.ascontiguousarray(tokens).view(np.uint8).data)
        self._lengths.append(np.ascontiguousarray(lengths, dtype=np.int32))
        self.tokens += len(tokens)
        self.documents += len(lengths)

    def seal(self, source: str, split: str, text_bytes: int, kinds: dict[str, int] | None = None) -> Shard:
        """Flush, write index and nodes, rename all; what the manifest says of it. Raises if the lengths do not add up
        to the tokens written."""
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, np.int32)
        if int(lengths.sum(dtype=np.int64)) != self.tokens:
            raise AssertionError(
                f"{self.prefix}: lengths add up to {lengths.sum()}, tokens are {self.tokens}"
            )
        index = index_bytes(lengths, self.dtype)
        # These go first: a .bin without them is never seen, and they without .bin are only leftovers.
        index_root = write_rooted(self.prefix.with_name(self.prefix.name + ".idx"), index)
        write_nodes(self._file.path, self._file.nodes)
        self._file.seal()
        path = f"{source}/{self.prefix.name}.bin"
        counts = self.tokens, self.documents, self._file.size, text_bytes
        return Shard(path, source, split, *counts, self._file.root, index_root, kinds)


def index_bytes(lengths: npt.NDArray[np.int32], dtype: np.dtype[np.generic]) -> bytes:
    """The whole `.idx` file for documents of `lengths` tokens."""
    count = len(lengths)
    ends = np.cumsum(lengths, dtype=np.int64) * dtype.itemsize
    offsets = np.concatenate([np.zeros(1, np.int64), ends])[:count]
    return b"".join(
        [
            HEADER.pack(MAGIC, VERSION, dtype_code(dtype), count, count + 1),
            lengths.astype("<i4").tobytes(),
            offsets.astype("<i8").tobytes(),
            np.arange(count + 1, dtype="<i8").tobytes(),
        ]
    )


def index_size(documents: int) -> int:
    """Bytes of the `.idx` of so many documents."""
    return HEADER.size + 12 * documents + 8 * (documents + 1)


class ShardReader:
    """One shard by memory map. Raises IntegrityError that names a file of another size or whose
    index is not what its lengths say.

    tokens: (tokens,) ids of all documents in a row; lengths: (documents,) int32; offsets: (documents + 1,) int64,
    where each document starts in `tokens`.
    """

    def __init__(self, prefix: Path) -> None:
        index_path = prefix.with_name(prefix.name + ".idx")
        bin_path = prefix.with_name(prefix.name + ".bin")
        with reading(index_path):
            index = np.fromfile(index_path, np.uint8)
        # Of what is shorter than a header the missing bytes count as zeros, and then the size is wrong.
        _, _, code, documents, _ = HEADER.unpack(index[: HEADER.size].tobytes().ljust(HEADER.size, b"\0"))
        if len(index) != (expected := index_size(documents)):
            raise IntegrityError(f"{index_path} has {len(index)} bytes, its header says {expected}")
        self.lengths: npt.NDArray[np.int32] = index[HEADER.size : HEADER.size + 4 * documents].view("<i4")
        self.dtype = DTYPE_CODES.get(code, DTYPE_CODES[8])
        # All else follows from the lengths, so that no offset leads anywhere else.
        whole = np.frombuffer(index_bytes(self.lengths, self.dtype), np.uint8)
        if (self.lengths < 0).any() or not np.array_equal(index, whole):
            raise IntegrityError(
                f"{index_path} is no index of version {VERSION} that fits its lengths; it was damaged or edited"
            )
        self.offsets: npt.NDArray[np.int64] = np.zeros(documents + 1, np.int64)
        np.cumsum(self.lengths, dtype=np.int64, out=self.offsets[1:])
        self.tokens = map_tokens(bin_path, self.dtype, int(self.offsets[-1]))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> Tokens:
        """Ids of one document, BOS and EOD included, as a view of the map."""
        view: Tokens = self.tokens[self.offsets[document] : self.offsets[document + 1]]
        return view


def check_size(path: Path, size: int) -> None:
    """IntegrityError unless a file is there and has so many bytes."""
    with reading(path):
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            raise IntegrityError(f"{path} is missing") from None
    if found != size:
        raise IntegrityError(f"{path} has {found:,} bytes, {size:,} expected")


def map_tokens(bin_path: Path, dtype: np.dtype[np.generic], tokens: int) -> Tokens:
    """Memory-map a `.bin` of `tokens` ids; IntegrityError when its size is another."""
    check_size(bin_path, tokens * dtype.itemsize)
    if tokens == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    with reading(bin_path):
        return np.memmap(bin_path, dtype, mode="r", shape=(tokens,))
