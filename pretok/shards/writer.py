"""Encoded documents -> the files of one shard.

Input: documents with their token ids, optionally with ledger rows and the kind of each token. Output: `.bin`, `.idx`
and `.nodes` (`format.py`), `.docs.parquet` (`ledger.py`), `.spans` (`spans.py`), and their manifest entry.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.tokens import Bytes, Ints, Tokens
from pretok.base.tree import TreeFile, write_nodes, write_rooted
from pretok.shards.ledger import LedgerWriter, ledger_path, ledger_windows
from pretok.shards.manifest import SideFile
from pretok.shards.shard_file import Shard, ShardReader, index_bytes
from pretok.shards.spans import ShardSpans, find_spans, spans_path, write_spans


class ShardWriter:
    """Writes one shard: `append` or `copy` as often as needed, then `seal`. Nothing has its final name before `seal`.

    prefix: the path without a suffix; schema: the columns of the ledger, None for a shard without one. Leaving the
    context without `seal` removes the temporary files.
    """

    def __init__(self, prefix: Path, dtype: np.dtype[Any], schema: pa.Schema | None = None) -> None:
        self.prefix = prefix
        self.dtype = dtype
        self.tokens = self.documents = self.text_bytes = 0
        self._lengths: list[npt.NDArray[np.int32]] = [np.empty(0, np.int32)]
        self._spans: list[tuple[Ints, Bytes]] = []
        self._stack = ExitStack()
        self._file = self._stack.enter_context(TreeFile(prefix.with_name(prefix.name + ".bin")))
        self._ledger = (
            None if schema is None else self._stack.enter_context(LedgerWriter(ledger_path(prefix), schema))
        )

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def append(
        self,
        tokens: Tokens,
        lengths: npt.NDArray[np.int32],
        kinds: Bytes | None = None,
        rows: pa.RecordBatch | None = None,
    ) -> None:
        """Add whole documents.

        tokens: all their ids in a row, with BOS and EOD; lengths: tokens per document; kinds: for conversations, the
        kind of each token; rows: their ledger rows.
        """
        if tokens.dtype != self.dtype:
            raise TypeError(f"shard {self.prefix} holds {self.dtype}, got tokens of {tokens.dtype}")
        # As bytes: `NewFile` counts the length of what it gets.
        self._file.write(np.ascontiguousarray(tokens).view(np.uint8).data)
        self._lengths.append(np.ascontiguousarray(lengths, dtype=np.int32))
        if kinds is not None and len(kinds):
            ends, kinds = find_spans(kinds, lengths)
            # The ends count from the first token of the shard.
            self._spans.append((ends + self.tokens, kinds))
        if self._ledger and rows is not None:
            self._ledger.append(rows)
            self.text_bytes += pc.sum(rows["bytes"]).as_py() or 0
        self.tokens += len(tokens)
        self.documents += len(lengths)

    def copy(self, prefix: Path) -> None:
        """Add the documents of another shard, one row group of its ledger at a time."""
        reader, spans, at = ShardReader(prefix), spans_path(prefix), 0
        kinds = ShardSpans(spans).of_tokens if spans.exists() else None
        # A row group at a time, so that memory does not grow with the shard.
        for rows in ledger_windows(ledger_path(prefix)):
            here = slice(reader.offsets[at], reader.offsets[at + len(rows)])
            lengths = reader.lengths[at : at + len(rows)]
            self.append(reader.tokens[here], lengths, None if kinds is None else kinds[here], rows)
            at += len(rows)

    def seal(self, source: str, split: str) -> tuple[Shard, tuple[SideFile, ...]]:
        """Flush everything, rename the files, and return their manifest entries.

        Raises AssertionError if the lengths do not add up to the tokens.
        """
        lengths = np.concatenate(self._lengths)
        if int(lengths.sum(dtype=np.int64)) != self.tokens:
            raise AssertionError(
                f"{self.prefix}: lengths add up to {lengths.sum()}, tokens are {self.tokens}"
            )
        # The .bin is renamed last: a shard that is seen has all its files, and files without a .bin are leftovers.
        # A kill between two of these lines needs no repair: the next try writes all of them again.
        files, kinds = [], None
        if self._ledger:
            files.append(self._ledger.seal(source))
        if self._spans:
            spans, kinds = write_spans(
                self.prefix, source, *map(np.concatenate, zip(*self._spans, strict=True))
            )
            files.append(spans)
        index = index_bytes(lengths, self.dtype)
        index_root = write_rooted(self.prefix.with_name(self.prefix.name + ".idx"), index)
        write_nodes(self._file.path, self._file.nodes)
        self._file.seal()
        shard = Shard(
            path=f"{source}/{self._file.path.name}",
            source=source,
            split=split,
            tokens=self.tokens,
            documents=self.documents,
            file_bytes=self._file.size,
            text_bytes=self.text_bytes,
            root=self._file.root,
            index_root=index_root,
            kinds=kinds,
        )
        return shard, tuple(files)
