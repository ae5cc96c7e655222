"""What a job tells of its progress; a Teller shows it.

Counts are increments: documents, tokens, bytes (of text), rejected; `partitions` when one is done; `bytes:NAME` for the
part of bytes that is of source NAME. For display only: a task that is tried again counts again.
"""

from __future__ import annotations

from typing import Protocol

Counts = dict[str, int]


class Progress(Protocol):
    """Where a job reports to."""

    def __call__(self, counts: Counts, /) -> None:
        """Increments since the last call."""

    def expect(self, bytes: int, partitions: int, sources: dict[str, int]) -> None:
        """The whole work, told once: estimated bytes of text, in all and of each source; number of partitions."""

    def start_from(self, counts: Counts) -> None:
        """What an earlier run did of it, which says nothing of this run's speed."""
