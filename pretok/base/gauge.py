"""How far a step is: its counts and an estimate of the whole -> one line for a log, a terminal or the end.

Input: counts (bytes of text, refused bytes, documents, tokens, rejected, partitions, or any other), those of earlier
runs, and the estimate. Output: text. The job shows it, and `pretok status` makes it again from a line of the job's log.

    12:03:10 tokenize 41/108 38% 2.98 GB 120 MB/s ETA 4m rejects 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import field

from pretok.base.records import Count, Record
from pretok.base.units import duration, human_bytes, plural

NEARLY = 99
"""Highest percentage before the end: the estimate of the whole may be too low."""
ORDER = ("partitions", "documents", "tokens", "rejected")
TEXT = ("bytes", "refused bytes")
"""Counts of text that was read; the second is that of rejected records."""


class Gauge(Record, frozen=True, forbid_unknown_fields=False):
    """A step at one time; a `progress` line of the log has these fields and those of every line.

    seconds: since the step began; counts: of this run; before: of earlier runs; expected_bytes: text of the whole
    step, earlier runs included, 0 while unknown; partitions: of the whole step. Speed and time left are of this run.
    """

    title: str
    seconds: float = 0.0
    counts: dict[str, Count] = field(default_factory=dict)
    before: dict[str, Count] = field(default_factory=dict)
    expected_bytes: Count = 0
    partitions: Count = 0

    @property
    def total(self) -> Counter[str]:
        """The counts of this run and earlier ones."""
        return Counter(self.before) + Counter(self.counts)

    @property
    def percent(self) -> int | None:
        """Percentage of the text that is done, at most NEARLY; None without an estimate."""
        return min(NEARLY, 100 * _read(self.total) // self.expected_bytes) if self.expected_bytes else None

    def line(self) -> str:
        """Title, progress and rejects, as one line of a log."""
        rejects = [f"rejects {self.total['rejected']:,}"] if _read(self.total) or self.expected_bytes else []
        return " ".join([self.title, *self.short(), *rejects])

    def short(self) -> Iterator[str]:
        """The parts shown next to a bar: how much is done, speed, time left."""
        total = self.total
        done, rate = _read(total), _read(self.counts) / max(self.seconds, 1e-9)
        if self.partitions:
            yield f"{total['partitions']}/{self.partitions}"
        if self.percent is not None:
            yield f"{self.percent}%"
        if not done and not self.expected_bytes:  # a step that reads no text
            yield from _counted(total)
            yield f"{self.seconds:.0f} s"
            return
        yield human_bytes(done)
        if rate:
            yield f"{human_bytes(rate)}/s"
            if self.expected_bytes > done:
                yield f"ETA {duration((self.expected_bytes - done) / rate)}"

    def summary(self) -> str:
        """What this run did, for the end; empty if it did nothing in no time."""
        counts = list(_counted(self.counts))
        if size := self.counts.get("bytes", 0):
            counts.append(f"{human_bytes(size)} of text, {human_bytes(size / max(self.seconds, 1e-9))}/s")
        partitions = self.before.get("partitions", 0)
        if not counts and not partitions and self.seconds < 0.1:
            return ""
        before = f" ({plural(partitions, 'partition')} done before)" if partitions else ""
        return f"{self.title}: {', '.join(counts)}{' in ' if counts else ''}{self.seconds:.1f} s{before}"


def _read(counts: Mapping[str, int]) -> int:
    """Bytes of text, refused ones included."""
    return sum(counts.get(key, 0) for key in TEXT)


def _counted(counts: Mapping[str, int]) -> Iterator[str]:
    """Each count but those of text. Their keys are plurals, except `rejected`."""
    for key in dict.fromkeys([*ORDER, *counts]):
        if (number := counts.get(key, 0)) and key not in TEXT:
            yield f"{number:,} {key.removesuffix('s') if number == 1 else key}"
