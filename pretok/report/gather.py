"""What tokenize, build-vocab and mix left on disk -> typed facts, nothing of which is estimated.

Input: a WORK folder. Output: `Facts`: of every source its counts, the lengths of its documents, its rejects with
examples and what its kept columns hold most; the input files; the vocabulary's report; the mix. What is not there (no
mix yet) is None or empty, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.storage import read_json
from pretok.report.frequencies import TokenUse, count_tokens, never_used
from pretok.shards.inputs import load_inputs
from pretok.shards.ledger import SCHEMA, ledger_schema, ledger_windows
from pretok.shards.manifest import Manifest, SourceCounts, load_manifest
from pretok.shards.values import ValueCounts, domains
from pretok.stream.mix_file import Mix, load_mix

EXAMPLES = 3
"""Rejects shown of each reason."""
VALUES = 15
"""Values shown of a kept column."""
MOST_VALUES = 100_000
"""Different values of a kept column that are counted; one with more names documents, it does not sort them."""
BINS = 33
"""Powers of two: no document has 2^32 tokens."""


@dataclass(slots=True)
class Rejects:
    """Of one reason: how many, and the first few as (file, line or row from 1, detail)."""

    count: int
    examples: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Column:
    """A kept column. values: (value, documents, tokens) of those with most tokens, documents without one among them as
    `(none)`; distinct: how many values there are, None: too many; documents: how many have one; more: whether not all
    of the values are in `values`."""

    values: list[tuple[str, int, int]]
    distinct: int | None
    documents: int
    more: bool

    @property
    def names_documents(self) -> bool:
        """Whether fewer than two documents on average have the same value, of more values than a table shows, or no two
        of several: then a list of them says nothing."""
        if self.distinct is None:
            return True
        nearly = 2 * self.distinct > self.documents and self.more
        return nearly or self.distinct == self.documents > 1


@dataclass(slots=True)
class SourceFacts:
    """One source. files: of its inputs, see `SealedInputs.files`; lengths, sizes: (BINS,) documents whose
    tokens, and the bytes of whose texts, have so many binary digits (those of 2^32 bytes and more with the last);
    longest: tokens; columns: the kept ones, `domain` in the place of `url`; ledger: whether there is one, as a mix in
    its order has none."""

    name: str
    counts: SourceCounts
    files: list[tuple[str, int, int, int]]
    rejects: dict[str, Rejects]
    ledger: bool
    lengths: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    longest: int
    columns: dict[str, Column]

    @property
    def share_rejected(self) -> float:
        """Of the records read."""
        return sum(self.counts.rejected.values()) / max(1, self.counts.read)

    def quantile(self, share: float) -> int:
        """A length that at least `share` of the documents do not exceed: a power of two less one."""
        total = np.cumsum(self.lengths)
        return int(2 ** int(np.searchsorted(total, share * total[-1])) - 1) if total[-1] else 0


@dataclass(slots=True)
class Facts:
    """All of WORK. vocabulary: the report of build-vocab; mix_report: that of the mix; uses: of the entries of the
    vocabulary in the shards; unused: (id, text) of those that no source uses, None where their texts are not known."""

    work: Path
    manifest: Manifest
    sources: list[SourceFacts]
    vocabulary: dict[str, Any] | None
    mix: Mix | None
    mix_report: dict[str, Any] | None
    uses: list[TokenUse]
    unused: list[tuple[int, str]] | None

    @property
    def files(self) -> list[tuple[str, str, int, int, int]]:
        """(source, path, size, records read, records rejected) of all inputs."""
        return [(source.name, *file) for source in self.sources for file in source.files]


def gather(work: Path) -> Facts:
    """Read everything once. Raises IntegrityError for what is there and broken."""
    manifest = load_manifest(work / "shards")
    uses = count_tokens(manifest)
    report, mix = work / "vocab" / "report.json", work / "mix.json"
    return Facts(
        work=work,
        manifest=manifest,
        sources=[_source(manifest, name) for name in manifest.sources],
        vocabulary=read_json(report) if report.exists() else None,
        mix=load_mix(mix) if mix.exists() else None,
        mix_report=read_json(mix)["report"] if mix.exists() else None,
        uses=uses,
        unused=never_used(manifest, uses),
    )


def _source(manifest: Manifest, name: str) -> SourceFacts:
    facts = SourceFacts(
        name=name,
        counts=manifest.sources[name],
        files=load_inputs(manifest, name).files() if name in manifest.tokenized else [],
        rejects=_rejects(manifest, name),
        ledger=name in manifest.tokenized,
        lengths=np.zeros(BINS, np.int64),
        sizes=np.zeros(BINS, np.int64),
        longest=0,
        columns={},
    )
    counters: dict[str, ValueCounts] = {}
    for shard in (*manifest.of(name), *manifest.of(name, "val")) if facts.ledger else ():
        path = shard.ledger_path
        manifest.check(path)
        for rows in _windows(path):
            tokens = np.asarray(rows["tokens"])
            facts.lengths += _by_digits(tokens)
            facts.sizes += _by_digits(np.asarray(rows["bytes"]))
            facts.longest = max(facts.longest, int(tokens.max(initial=0)))
            _add_columns(counters, rows)
    facts.columns = {column: _most(counted) for column, counted in counters.items()}
    return facts


def _by_digits(numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """(BINS,) how many of the numbers have so many binary digits."""
    return np.bincount(np.minimum(np.frexp(numbers.astype(np.float64))[1], BINS - 1), minlength=BINS)


def _windows(path: Path) -> Iterator[pa.RecordBatch]:
    kept = [column for column in ledger_schema(path).names if column not in SCHEMA.names]
    return ledger_windows(path, ["tokens", "bytes", *kept])


def _add_columns(counters: dict[str, ValueCounts], rows: pa.RecordBatch) -> None:
    """Count documents and tokens of each value of each kept column."""
    columns = {name: rows[name] for name in rows.schema.names if name not in ("tokens", "bytes")}
    for name in list(columns):
        if name.rpartition(".")[2] == "url" and pa.types.is_string(columns[name].type):
            columns[name.removesuffix("url") + "domain"] = domains(columns.pop(name))
    for name, values in columns.items():
        counters.setdefault(name, ValueCounts(MOST_VALUES)).add(values, rows["tokens"])


def _most(counted: ValueCounts) -> Column:
    if counted.sums is None:
        return Column([], None, 0, True)
    shown = [
        ("(none)" if value is None else value, documents, tokens)
        for value, (documents, tokens) in counted.largest()[:VALUES]
    ]
    documents = sum(sums[0] for value, sums in counted.sums.items() if value is not None)
    return Column(shown, counted.distinct, documents, len(counted.sums) > VALUES)


def _rejects(manifest: Manifest, source: str) -> dict[str, Rejects]:
    """Counts are the manifest's; examples come from the ledger of rejects."""
    counts = manifest.sources[source].rejected
    found = {reason: Rejects(count) for reason, count in counts.items()}
    missing = sum(min(EXAMPLES, reject.count) for reject in found.values())
    for entry in manifest.reject_lines(source):
        if not missing:
            break
        reject = found[entry["reason"]]
        if len(reject.examples) < EXAMPLES:
            reject.examples.append((entry["file"], entry["position"], entry.get("detail", "")))
            missing -= 1
    return found
