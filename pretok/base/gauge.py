"""How far a step is: its counts and an estimate of the whole -> one line for a log, a terminal or the end.

Input: counts (bytes of text, refused bytes, documents, tokens, rejected, partitions, or any other), those of earlier
runs, and the estimate. Output: text. The job shows it, and `pretok status` makes it again from a line of the job's log.

    12:03:10 tokenize 41/108 38% 2.98 GB 120 MB/s ETA 4m rejects 0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import field

from pretok.base.records import Count, Record
from pretok.base.units import duration, human_bytes, plural

NEARLY = 99
"""Highest percentage before the end: the estimate of the whole may be too low."""
ORDER = ("partitions", "documents", "tokens", "rejected")
REFUSED = "refused bytes"
"""Bytes of rejected records: they were read too."""


class Gauge(Record, frozen=True, forbid_unknown_fields=False):
    """A step at one time; a `progress` line of the log has these fields besides those of every line.

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
    def rate(self) -> float:
        """Bytes per second in this run."""
        return _read(self.counts) / max(self.seconds, 1e-9)

    @property
    def read(self) -> int:
        """Bytes of this run and earlier ones, refused ones included."""
        return _read(self.before) + _read(self.counts)

    def done(self, key: str) -> int:
        """A count of this run and earlier ones."""
        return self.before.get(key, 0) + self.counts.get(key, 0)

    @property
    def percent(self) -> int | None:
        """Percentage of the text that is done, at most NEARLY; None without an estimate."""
        return min(NEARLY, 100 * self.read // self.expected_bytes) if self.expected_bytes else None

    def line(self) -> str:
        """Title, progress and rejects, as one line of a log."""
        rejects = [f"rejects {self.done('rejected'):,}"] if self.read or self.expected_bytes else []
        return " ".join([self.title, *self.short(), *rejects])

    def short(self) -> Iterator[str]:
        """The parts shown beside a bar: how much is done, speed, time left."""
        done = self.read
        if self.partitions:
            yield f"{self.done('partitions')}/{self.partitions}"
        if self.percent is not None:
            yield f"{self.percent}%"
        if not done and not self.expected_bytes:  # a step that reads no text
            for key in dict.fromkeys([*self.before, *self.counts]):
                if number := self.done(key):
                    yield f"{number:,} {_noun(key, number)}"
            yield f"{self.seconds:.0f} s"
            return
        yield human_bytes(done)
        if self.rate:
            yield f"{human_bytes(self.rate)}/s"
            if self.expected_bytes > done:
                yield f"ETA {duration((self.expected_bytes - done) / self.rate)}"

    def summary(self) -> str:
        """What this run did, for the end; empty if it did nothing in no time."""
        counts = [
            f"{number:,} {_noun(key, number)}"
            for key in dict.fromkeys([*ORDER, *self.counts])
            if (number := self.counts.get(key, 0)) and key not in ("bytes", REFUSED)
        ]
        if size := self.counts.get("bytes", 0):
            counts.append(f"{human_bytes(size)} of text, {human_bytes(size / max(self.seconds, 1e-9))}/s")
        before = ""
        if partitions := self.before.get("partitions", 0):
            before = f" ({plural(partitions, 'partition')} done before)"
        if not counts and not before and self.seconds < 0.1:
            return ""
        return f"{self.title}: {', '.join(counts)}{' in ' if counts else ''}{self.seconds:.1f} s{before}"


def _read(counts: Mapping[str, int]) -> int:
    return counts.get("bytes", 0) + counts.get(REFUSED, 0)


def _noun(key: str, number: int) -> str:
    """Singular or plural; the keys of counts are plurals, except `rejected`."""
    return key.removesuffix("s") if number == 1 else key
