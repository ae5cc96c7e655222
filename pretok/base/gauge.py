"""How far a step is: counts that arrive and an estimate of the whole -> one line for a log, a terminal or the end.

Input: increments (bytes of text, refused bytes, documents, tokens, rejected, partitions, bytes:SOURCE, which is of
both, or any other count), what an earlier run had done, and the estimate. Output: text. Nothing is printed here. The
job itself shows it, and who watches the job from what it left.

    12:03:10 tokenize 41/108 38% 2.98 GB 120 MB/s ETA 4m rejects 0 it 40% en 35%
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import field
from rich.cells import cell_len

from pretok.base.compiling import COMPILING
from pretok.base.records import Count, Record
from pretok.base.units import duration, human_bytes, plural

NEARLY = 99
"""Most percent shown before the end: the whole is an estimate, and may be too small."""
SOURCES_SHOWN, LEAST_BAR = 6, 10
"""Sources with a bar of their own, and columns below which a bar is left out."""
ORDER = ("partitions", "documents", "tokens", "rejected")
REFUSED = "refused bytes"
"""Bytes of records that are no documents: they are read too."""
OF_SOURCE = "bytes:"
"""How the bytes of one source are named among the counts."""


class _Field(NamedTuple):
    text: str
    essential: bool
    """Whether it stays where a terminal has no room for all."""


class Gauge(Record, frozen=True):
    """One step at one time; COMMAND-DATE.now.json holds it as it is here.

    seconds: since it began; counts: of this run; before: of earlier ones; expected_bytes: of text of the whole step,
    earlier runs included, 0 while unknown; partitions: their number; sources: bytes of text of each. Rates and times
    left are those of this run: `before` does not enter.
    """

    title: str
    seconds: float = 0.0
    counts: dict[str, Count] = field(default_factory=dict)
    before: dict[str, Count] = field(default_factory=dict)
    expected_bytes: Count = 0
    partitions: Count = 0
    sources: dict[str, Count] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Bytes a second in this run."""
        return _read(self.counts) / max(self.seconds, 1e-9)

    @property
    def read(self) -> int:
        """Bytes of this run and the earlier ones, refused ones included."""
        return _read(self.before) + _read(self.counts)

    def done(self, key: str) -> int:
        """A count of this run and the earlier ones."""
        return self.before.get(key, 0) + self.counts.get(key, 0)

    @property
    def percent(self) -> int | None:
        """How much of the text is done, at most NEARLY; None without an estimate."""
        return _percent(self.read, self.expected_bytes)

    def line(self) -> str:
        """All that is known, as one line of a log."""
        return " ".join([self.title, *(part.text for part in self._fields())])

    def bar(self, width: int) -> str:
        """At most `width` cells: a bar, and as much of `line` as fits; percentage, rate and time left always do."""
        fields = list(self._fields())
        percent = self.percent
        least = 0 if percent is None else LEAST_BAR + 1
        while _width(self.title, fields) + least > width and not all(part.essential for part in fields):
            fields.remove([part for part in fields if not part.essential][-1])
        text = [self.title, *(part.text for part in fields)]
        if percent is not None and (room := width - _width(self.title, fields) - 1) > 0:
            full = room * percent // 100
            text.insert(1, "━" * full + "╌" * (room - full))
        return " ".join(text)

    def summary(self) -> str:
        """What this run did, for the end; empty when that is nothing and took no time."""
        counts = [
            f"{number:,} {_noun(key, number)}"
            for key in dict.fromkeys([*ORDER, *self.counts])
            if (number := self.counts.get(key, 0))
            and key not in ("bytes", REFUSED, COMPILING)
            and not key.startswith(OF_SOURCE)
        ]
        if size := self.counts.get("bytes", 0):
            counts.append(f"{human_bytes(size)} of text, {human_bytes(size / max(self.seconds, 1e-9))}/s")
        before = ""
        if partitions := self.before.get("partitions", 0):
            before = f" ({plural(partitions, 'partition')} done before)"
        if not counts and not before and self.seconds < 0.1:
            return ""
        return f"{self.title}: {', '.join(counts)}{' in ' if counts else ''}{self.seconds:.1f} s{before}"

    def _fields(self) -> Iterator[_Field]:
        done, percent = self.read, self.percent
        if self.counts.get(COMPILING):
            yield _Field("(compiling)", True)
        if self.partitions:
            yield _Field(f"{self.done('partitions')}/{self.partitions}", False)
        if percent is not None:
            yield _Field(f"{percent}%", True)
        if not done and not self.expected_bytes:
            yield from self._other_counts()
            return
        yield _Field(human_bytes(done), False)
        if self.rate:
            yield _Field(f"{human_bytes(self.rate)}/s", True)
            if self.expected_bytes > done:
                yield _Field(f"ETA {duration((self.expected_bytes - done) / self.rate)}", True)
        yield _Field(f"rejects {self.done('rejected'):,}", False)
        if len(self.sources) > 1:
            yield _Field(self._sources(), False)

    def _other_counts(self) -> Iterator[_Field]:
        """Of a step that reads no text."""
        for key in dict.fromkeys([*self.before, *self.counts]):
            if key != COMPILING and (number := self.done(key)):
                yield _Field(f"{number:,} {_noun(key, number)}", False)
        yield _Field(f"{self.seconds:.0f} s", True)

    def _sources(self) -> str:
        """Those with most left to do, in their order: of very many only some fit into a line."""
        left = {name: size - self.done(OF_SOURCE + name) for name, size in self.sources.items()}
        largest = sorted(left, key=lambda name: -left[name])[:SOURCES_SHOWN]
        shares = [
            (name, _percent(self.done(OF_SOURCE + name), self.sources[name]))
            for name in left
            if name in largest
        ]
        text = " ".join(f"{name} {NEARLY if share is None else share}%" for name, share in shares)
        more = len(left) - len(largest)
        return text + (f" and {plural(more, 'source')} more" if more else "")


def _read(counts: Mapping[str, int]) -> int:
    return counts.get("bytes", 0) + counts.get(REFUSED, 0)


def _percent(done: int, whole: int) -> int | None:
    return min(NEARLY, 100 * done // whole) if whole else None


def _noun(key: str, number: int) -> str:
    """The counts' keys are plurals, but for `rejected`."""
    return key.removesuffix("s") if number == 1 else key


def _width(title: str, fields: list[_Field]) -> int:
    return cell_len(title) + sum(1 + cell_len(part.text) for part in fields)
