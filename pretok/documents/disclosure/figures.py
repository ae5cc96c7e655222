"""Ledgers and what is read of each source -> exact sums, in one table of DuckDB.

Input: a manifest and `Extent`s; the columns are the kept ones and those joined by `pretok annotate`. Output: `Sums`.
Every part of the summary is a query of its table:

    sums    of, source, kind, value, documents, document_bytes, tokens, token_bytes

`kind` is what a column tells (KINDS), `removed` (when; null if it was not) or `all`; `value` is the value as text, null
for documents without one. All ledgers are compared with their checksums first. A document counts once if at least one
of its tokens is read. `tokens` are those read, with repetitions, and `token_bytes` their part of the texts;
`document_bytes` are the bytes of the whole texts of the documents that count.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from pretok.base.errors import UsageError
from pretok.base.sql import database, quoted
from pretok.base.tokens import Ints
from pretok.documents.disclosure.read import Extent
from pretok.shards.annotations import open_annotations
from pretok.shards.document_table import chosen_shards, scan
from pretok.shards.ledger import SCHEMA, ledger_schema
from pretok.shards.manifest import Manifest
from pretok.shards.values import host, sum_values

DATE = r"^(\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?)($|[T ])"
"""ISO 8601 to the day, the month or the year. A bare number may be a time in any unit, so it is not a date."""
KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "language": (("language", "lang"), "language"),
    "licence": (("license", "licence"), "licence"),
    "synthetic": (("synthetic", "generator"), "synthetic"),
    "domain": (("url",), host("domain")),
    "date": (("date", "created", "published"), f"regexp_extract(date, {quoted(DATE)}, 1)"),
    "duplicate": (("duplicate_of",), "if(duplicate IS NULL, NULL, 'copy')"),
}
"""What a column may tell -> (its usual names, of which the first one kept is used; of a dotted name the last part
counts; the SQL expression that is counted)."""
AMOUNTS = ("documents", "document_bytes", "tokens", "token_bytes")
Amount = dict[str, int]
"""AMOUNTS -> their sums."""


class Sums:
    """Sums of what is read. columns: source -> kind -> the column that holds it; sources: those of each extent."""

    def __init__(self, sql: Any, manifest: Manifest, named: Mapping[str, str]) -> None:
        self.sql, self.manifest = sql, manifest
        self._joined = open_annotations(manifest)
        for notes in self._joined:
            notes.check()
        for shard in manifest.shards:
            manifest.check(shard.ledger_path)
        kept = {name: self._kept(name) for name in manifest.sources}
        every = sorted({column for columns in kept.values() for column in columns})
        for kind, column in named.items():
            if kind not in KINDS:
                raise UsageError(f"--column {kind}={column}: KIND is one of {', '.join(KINDS)}")
            if column not in every:
                raise UsageError(
                    f"--column {kind}={column}: this column was not kept; kept columns: {', '.join(every) or 'none'}"
                )
        self.columns = {
            name: _usual(columns) | {kind: column for kind, column in named.items() if column in columns}
            for name, columns in kept.items()
        }
        self.sources: dict[str, tuple[str, ...]] = {}
        amounts = ", ".join(f"{name} BIGINT" for name in AMOUNTS)
        sql.execute(f"CREATE TABLE sums (of VARCHAR, source VARCHAR, kind VARCHAR, value VARCHAR, {amounts})")

    def _kept(self, source: str) -> list[str]:
        """Return the kept columns of a source, in the order of its ledgers, and the joined ones."""
        names: dict[str, None] = {}
        for shard in self.manifest.shards:
            if shard.source == source:
                names |= dict.fromkeys(ledger_schema(shard.ledger_path).names)
        of_source = {shard.path for shard in self.manifest.shards if shard.source == source}
        joined = [notes for notes in self._joined if of_source & notes.parts.keys()]
        names |= dict.fromkeys(name for notes in joined for name in notes.columns)
        return [name for name in names if name not in SCHEMA.names]

    def add(self, of: str, extent: Extent) -> None:
        """Count what an extent reads, under a name. Every ledger is read once. Raises IntegrityError."""
        self.sources[of] = tuple(extent.sources)
        for source in extent.sources:
            self._add(of, extent, source)

    def has_column(self, of: str, kind: str, source: str | None = None) -> bool:
        """Return whether a source, or any source, has a column for a kind."""
        return any(kind in self.columns[name] for name in self.sources[of] if source in (None, name))

    def _add(self, of: str, extent: Extent, name: str) -> None:
        manifest, source, columns = self.manifest, extent.sources[name], self.columns[name]
        order = {at: number for number, at in enumerate([*(r.at for r in manifest.removals), None])}
        first = 0  # of the window among the flat tokens of the source
        values = {"all": "NULL", "removed": "removed"}
        values |= {kind: what if kind in columns else "NULL" for kind, (_, what) in KINDS.items()}
        counted = f"""INSERT INTO sums SELECT ?, ?, kind, value, count(*), sum(bytes), sum(read),
            sum(bytes::HUGEINT * read // tokens)  -- of a document read in part, in proportion
            FROM (SELECT bytes, read, tokens, unnest([{", ".join(map(quoted, values))}]) AS kind,
                  unnest([{", ".join(f"({column})::VARCHAR" for column in values.values())}]) AS value
                  FROM rows WHERE read > 0)
            GROUP BY kind, value"""
        wanted = list(dict.fromkeys(["tokens", "bytes", "removed", *columns.values()]))
        for _, _, rows in scan(manifest, wanted, chosen_shards(manifest, name, extent.split), self._joined):
            lengths = np.asarray(rows["tokens"]).astype(np.int64)
            bounds: Ints = first + np.concatenate([[0], np.cumsum(lengths)])
            removed = None
            if rows["removed"].null_count < len(rows):
                removed = np.array([order[at] for at in rows["removed"].to_pylist()])
            read = source.tokens(bounds, removed)
            if source.coverage is None and removed is not None:  # shards are what they are now
                read = np.where(removed < order[None], 0, read)
            first = int(bounds[-1])
            table = pa.table(
                {name: rows[name] for name in ("tokens", "bytes", "removed")}
                | {kind: rows[column].cast(pa.string()) for kind, column in columns.items()}
                | {"read": read}
            )
            # A window at a time: DuckDB adds it up, and only sums stay.
            self.sql.register("rows", table)
            self.sql.execute(counted, [of, name])

    def amount(self, of: str, kind: str = "all", source: str | None = None, where: str = "true") -> Amount:
        """Return the sums of a source, or of all sources."""
        sums = ", ".join(f"coalesce(sum({name}), 0)::BIGINT" for name in AMOUNTS)
        result = self.sql.execute(
            f"SELECT {sums} FROM sums WHERE of = ? AND kind = ? AND source = coalesce(?, source) AND {where}",
            [of, kind, source],
        )
        return dict(zip(AMOUNTS, result.fetchone(), strict=True))

    def by_value(
        self, of: str, kind: str, source: str | None = None, most: int | None = None
    ) -> dict[str, Any]:
        """Return the sums by value, as `sum_values` does; None lists all."""
        rows = "FROM sums WHERE of = ? AND kind = ? AND source = coalesce(?, source)"
        return sum_values(self.sql, rows, AMOUNTS, 1 << 62 if most is None else most, of, kind, source)

    def dates(self, of: str, source: str | None = None) -> dict[str, Any]:
        """Return the first and last date, as written, and how many documents have a date, another value, or none."""
        result = self.sql.execute(
            """SELECT min(value) FILTER (value <> '') AS earliest, max(value) FILTER (value <> '') AS latest,
            coalesce(sum(documents) FILTER (value <> ''), 0)::BIGINT AS dated,
            coalesce(sum(documents) FILTER (value = ''), 0)::BIGINT AS other,
            coalesce(sum(documents) FILTER (value IS NULL), 0)::BIGINT AS none
            FROM sums WHERE of = ? AND kind = 'date' AND source = coalesce(?, source)""",
            [of, source],
        )
        names = [column[0] for column in result.description]
        return {
            name: value for name, value in zip(names, result.fetchone(), strict=True) if value is not None
        }


@contextmanager
def open_figures(manifest: Manifest, named: Mapping[str, str]) -> Iterator[Sums]:
    """Open an empty table of sums. named: kind -> the column that holds it, instead of its usual names.

    Raises UsageError for an unknown kind or a column that no ledger has, IntegrityError, MismatchError.
    """
    folder = manifest.folder.parent / f".disclose-{os.getpid()}"  # made where the sums fit no memory
    with database(folder, 1, shutil.disk_usage(manifest.folder).free // 2) as sql:
        yield Sums(sql, manifest, named)


def _usual(columns: list[str]) -> dict[str, str]:
    by_kind = {}
    for kind, (names, _) in KINDS.items():
        matching = [c for name in names for c in columns if c.rpartition(".")[2].lower() == name]
        if matching:
            by_kind[kind] = matching[0]
    return by_kind
