"""Rows as they come -> few files on disk, by the first bits of their key, so that one file fits in memory.

Enters: tables as `values` gives them. Leaves: Arrow streams. While more rows are read, a column may get a type or
another one; from there on the rows of a bucket go to a further file, and who reads them casts all to the last types.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from pretok.annotate.keys import KEY, OURS, hash_keys, one_array
from pretok.base.storage import writing
from pretok.base.tokens import Hashes, Ints

BUCKET_BYTES = 64 << 20
"""Text of the rows of a bucket, where there are not too many."""
MOST_BUCKETS = 256
"""Files that are open at once."""
HASHES = pa.schema([(f"{OURS}hash{number}", pa.uint64()) for number in (0, 1)])


def buckets_for(size: int) -> int:
    """How many buckets rows of so many bytes go to: a power of two."""
    buckets = 1
    while buckets < MOST_BUCKETS and size > buckets * BUCKET_BYTES:
        buckets *= 2
    return buckets


def bucket_of(hashes: Hashes, buckets: int) -> Ints:
    """(rows,) the bucket of each key."""
    return (hashes[:, 0] >> np.uint64(56)).astype(np.int64) * buckets >> 8


class Spill:
    """Writes rows to `buckets` files in a folder; those without a whole key to a file of their own, bucket -1."""

    def __init__(self, folder: Path, buckets: int) -> None:
        self.rows = 0
        self.paths: dict[int, list[Path]] = {number: [] for number in range(-1, buckets)}
        self._folder, self._buckets = folder, buckets
        self._schema: pa.Schema | None = None
        self._open = ExitStack()
        self._writers: dict[int, pa.RecordBatchStreamWriter] = {}

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def append(self, table: pa.Table) -> None:
        """Add rows."""
        if self._schema is None or table.schema != self._schema:
            self._open.close()
            self._writers, self._schema = {}, table.schema
        hashes, given = hash_keys(
            [one_array(table, name) for name in table.schema.names if name.startswith(KEY)]
        )
        bucket = np.where(given, bucket_of(hashes, self._buckets), -1)
        for number, name in enumerate(HASHES.names):
            table = table.add_column(number, name, pa.array(hashes[:, number]))
        order = np.argsort(bucket, kind="stable")
        numbers, starts = np.unique(bucket[order], return_index=True)
        for one, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            with writing(self._folder):
                self._writer(one, table.schema).write_table(table.take(pa.array(rows)))
        self.rows += len(table)

    def _writer(self, bucket: int, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
        if bucket not in self._writers:
            paths = self.paths[bucket]
            paths.append(self._folder / f"rows-{bucket}-{len(paths)}.arrow")
            file = self._open.enter_context(pa.OSFile(str(paths[-1]), "wb"))
            self._writers[bucket] = self._open.enter_context(pa.ipc.new_stream(file, schema))
        return self._writers[bucket]
