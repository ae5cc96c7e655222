"""The files of tokenize, build-vocab and mix -> typed facts, none of them estimated.

Input: a WORK folder. Output: `Facts`: for each source its counts, the lengths of its documents, its rejects with
examples, and the most frequent values of its kept columns; the input files; the report of the vocabulary; the mix. What
does not exist (no mix yet) is None or empty, and the page says so.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.sql import database
from pretok.base.storage import read_json
from pretok.overview.report.frequencies import TokenUse, count_tokens, never_used
from pretok.shards.document_table import identifier, make_views
from pretok.shards.inputs import load_inputs
from pretok.shards.ledger import SCHEMA, ledger_schema
from pretok.shards.manifest import Manifest, SourceCounts, load_manifest
from pretok.shards.unfinished import incomplete
from pretok.shards.values import host, sum_values
from pretok.stream.mix_file import Mix, load_mix

EXAMPLES = 3
"""Rejects shown for each reason."""
VALUES = 15
"""Values shown for a kept column."""
MOST_VALUES = 100_000
"""Most different values of a kept column that are counted; a column with more identifies documents."""
BINS = 33
"""Powers of two: no document has 2^32 tokens."""


@dataclass(slots=True)
class Rejects:
    """The rejects of one reason: their number, and the first few as (file, line or row from 1, detail)."""

    count: int
    examples: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass(slots=True)
class SourceFacts:
    """One source."""

    name: str
    counts: SourceCounts
    files: list[tuple[str, int, int, int]]
    """Of its inputs, see `SourcePlan.files`."""
    rejects: dict[str, Rejects]
    ledger: bool
    """Whether there is one, which a materialized mix has not."""
    lengths: npt.NDArray[np.int64]
    """(BINS,) int64, the number of documents by the binary digits of their tokens."""
    sizes: npt.NDArray[np.int64]
    """(BINS,) int64, the same by the bytes of their texts; 2^32 bytes and more count with the last."""
    longest: int
    """In tokens."""
    columns: dict[str, dict[str, Any] | None]
    """The values of the kept ones (`count_values`), with `domain` instead of `url`."""

    @property
    def share_rejected(self) -> float:
        """The share of the records read that were rejected."""
        return sum(self.counts.rejected.values()) / max(1, self.counts.read)

    def quantile(self, share: float) -> int:
        """Return a length, a power of two less one, that at least `share` of the documents do not exceed."""
        total = np.cumsum(self.lengths)
        return int(2 ** int(np.searchsorted(total, share * total[-1])) - 1) if total[-1] else 0


@dataclass(slots=True)
class Facts:
    """The facts of a WORK folder."""

    work: Path
    manifest: Manifest
    incomplete: list[str]
    """What is missing from the shards, as sentences."""
    sources: list[SourceFacts]
    vocabulary: dict[str, Any] | None
    """The report of build-vocab."""
    mix: Mix | None
    mix_report: dict[str, Any] | None
    """That of the mix."""
    uses: list[TokenUse]
    """The entries of the vocabulary in each source."""
    unused: list[tuple[int, str]] | None
    """(id, text) of the entries in no source, None if their texts are not known."""

    @property
    def files(self) -> list[tuple[str, str, int, int, int]]:
        """Return (source, path, size, records read, records rejected) of all inputs."""
        return [(source.name, *file) for source in self.sources for file in source.files]


def gather(work: Path) -> Facts:
    """Read everything once. Raises IntegrityError for files that are damaged."""
    manifest = load_manifest(work / "shards")
    uses = count_tokens(manifest)
    report, mix = work / "vocab" / "report.json", work / "mix.json"
    folder = work / f".report-{os.getpid()}"  # DuckDB makes it if the values of a column do not fit in memory
    with database(folder, 1, shutil.disk_usage(work).free // 2) as sql:
        if manifest.tokenized:  # a materialized mix has no ledger
            for shard in manifest.shards:
                manifest.check(shard.ledger_path)
            make_views(sql, manifest, ())
        sources = [_source(sql, manifest, name) for name in manifest.sources]
    return Facts(
        work=work,
        manifest=manifest,
        incomplete=incomplete(manifest),
        sources=sources,
        vocabulary=read_json(report) if report.exists() else None,
        mix=load_mix(mix) if mix.exists() else None,
        mix_report=read_json(mix)["report"] if mix.exists() else None,
        uses=uses,
        unused=never_used(manifest, uses),
    )


def _source(sql: Any, manifest: Manifest, name: str) -> SourceFacts:
    shards = [shard for shard in manifest.shards if shard.source == name and name in manifest.tokenized]
    kinds = {field.name: field.type for shard in shards for field in ledger_schema(shard.ledger_path)}
    columns, longest = {}, 0
    for column, kind in kinds.items():
        if column.rpartition(".")[2] == "url" and pa.types.is_string(kind):
            columns[column.removesuffix("url") + "domain"] = count_values(sql, name, host(identifier(column)))
        elif column not in SCHEMA.names:
            columns[column] = count_values(sql, name, identifier(column))
    if shards:
        found = sql.execute("SELECT coalesce(max(tokens), 0) FROM ledger WHERE source = ?", [name])
        longest = found.fetchone()[0]
    return SourceFacts(
        name=name,
        counts=manifest.sources[name],
        files=load_inputs(manifest, name).files() if name in manifest.tokenized else [],
        rejects=_rejects(manifest, name),
        ledger=name in manifest.tokenized,
        lengths=_by_digits(sql, name, "tokens") if shards else np.zeros(BINS, np.int64),
        sizes=_by_digits(sql, name, "bytes") if shards else np.zeros(BINS, np.int64),
        longest=longest,
        columns=columns,
    )


def _by_digits(sql: Any, source: str, column: str) -> npt.NDArray[np.int64]:
    """Return (BINS,) int64: how many numbers of a column have 0, 1, 2, ... binary digits."""
    counts = np.zeros(BINS, np.int64)
    digits = f"if({column} = 0, 0, least(length(bin({column})), {BINS - 1}))"
    query = f"SELECT {digits} AS digits, count(*) FROM ledger WHERE source = ? GROUP BY digits"
    for number, documents in sql.execute(query, [source]).fetchall():
        counts[number] = documents
    return counts


def count_values(sql: Any, source: str, value: str) -> dict[str, Any] | None:
    """Sum documents and tokens by the value of an expression over the view `ledger` (`sum_values`).

    None if a table would say nothing, as the values identify documents: no two have the same one, or there are more
    values than a table shows and fewer than two documents for each on average.
    """
    rows = f"SELECT ({value})::VARCHAR AS value, 1 AS documents, tokens FROM ledger WHERE source = ?"
    query = f"SELECT approx_count_distinct(value), count(value) FROM ({rows})"
    # An estimate first: exact counts of a column of all different values may take more than memory.
    about, documents = sql.execute(query, [source]).fetchone()
    if about > MOST_VALUES:
        return None
    sums = sum_values(sql, rows, ("documents", "tokens"), VALUES, source)
    distinct = sums["distinct"]
    nearly = 2 * distinct > documents and distinct > VALUES
    return None if nearly or distinct == documents > 1 else sums


def _rejects(manifest: Manifest, source: str) -> dict[str, Rejects]:
    """Take the counts from the manifest and examples from the lists of rejects."""
    counts = manifest.sources[source].rejected
    rejects = {reason: Rejects(count) for reason, count in counts.items()}
    missing = sum(min(EXAMPLES, reject.count) for reject in rejects.values())
    for entry in manifest.reject_lines(source):
        if not missing:
            break
        reject = rejects[entry["reason"]]
        if len(reject.examples) < EXAMPLES:
            reject.examples.append((entry["file"], entry["position"], entry.get("detail", "")))
            missing -= 1
    return rejects
