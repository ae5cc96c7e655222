"""Columns of ledgers -> how many documents, and how much of what they are made of, each value has.

Input: a column of a window of documents beside whole numbers of each. Output: exact sums by value; the host of an
address stands for it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

Sums = tuple[int, ...]
"""Documents, and the sum of each amount that was added beside."""


class ValueCounts:
    """Sums by value, the value None (null in the column) among them. `sums` is None once there were more than `most`
    different values: then they name documents, they do not sort them."""

    def __init__(self, most: int) -> None:
        self.sums: dict[str | None, Sums] | None = {}
        self._most = most

    def add(self, values: pa.Array, *amounts: pa.Array) -> None:
        """Count documents. values: (n,) of any type; amounts: whole numbers, each (n,), the same number of them in
        every call."""
        if self.sums is None:
            return
        names = [f"amount{number}" for number in range(len(amounts))]
        table = pa.table([values.cast(pa.string()), *amounts], ["value", *names])
        # A thread of Arrow that is the last to hold an array of numpy could not free it while the interpreter ends.
        grouped = table.group_by("value", use_threads=False).aggregate(
            [([], "count_all"), *((name, "sum") for name in names)]
        )
        columns = ["count_all", *(f"{name}_sum" for name in names)]
        sums = [grouped[column].to_pylist() for column in columns]
        self.merge(dict(zip(grouped["value"].to_pylist(), zip(*sums, strict=True), strict=True)))

    def merge(self, other: dict[str | None, Sums] | None) -> None:
        """Add the sums of another; None: it had too many."""
        if self.sums is None:
            return
        for value, sums in (other or {}).items():
            before = self.sums.get(value)
            self.sums[value] = sums if before is None else tuple(map(sum, zip(before, sums, strict=True)))
        if other is None or len(self.sums) > self._most:
            self.sums = None

    @property
    def distinct(self) -> int | None:
        """How many different values there are; null is none. None: too many."""
        return None if self.sums is None else len(self.sums) - (None in self.sums)

    def largest(self, by: int = 1) -> list[tuple[str | None, Sums]]:
        """All values, by their sum number `by` from the largest down, equal ones by name."""
        items = (self.sums or {}).items()
        return sorted(items, key=lambda item: (-item[1][by], item[0] or "", item[0] is None))


def domains(urls: pa.Array) -> pa.Array:
    """The hosts of addresses, `www.` left off; null for what is no address."""
    found = pc.extract_regex(urls, r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/@]*@)?(?:www\.)?(?P<host>[^/:?#]+)")
    return pc.struct_field(found, "host")
