"""`pretok query`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import typer

from pretok.base.errors import UsageError
from pretok.base.visible import visible, visible_json
from pretok.commands.options import terminal

SHOWN = 1000
"""Rows that a table shows."""


def _write(kind: str, names: list[str], batches: Iterator[list[tuple[Any, ...]]]) -> None:
    """Rows on standard output as they come."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    shown = sys.stdout.isatty()  # else the values as they are, for whoever reads them
    if kind == "csv":
        writer.writerow(names)
    for batch in batches:
        if kind == "csv":
            writer.writerows([visible(str(value)) for value in row] if shown else row for row in batch)
        else:
            for row in batch:
                values = dict(zip(names, row, strict=True))
                sys.stdout.write(visible_json(json.dumps(values, ensure_ascii=False, default=str)) + "\n")


def query(
    context: typer.Context,
    work: Annotated[
        Path,
        typer.Argument(metavar="WORK", help="Folder that holds shards/, or that itself.", show_default=False),
    ],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A query of DuckDB.", show_default=False)],
    format: Annotated[
        str | None,
        typer.Option(
            metavar="table|csv|json", help="Default: a table on a terminal, else CSV. json: JSON Lines."
        ),
    ] = None,
) -> None:
    """Ask what is known of documents, shards and rejects in SQL. Needs the extra `query`.

        pretok query work "select source, count(*), sum(tokens) from docs group by all"

    Views: docs, ledger, shards, sources, rejects, words (where WORK holds counts). `describe docs` lists the columns,
    those included that the recipe keeps or pretok annotate joined. COPY (select ...) TO 'file.parquet' writes a file.
    """
    from pretok.audit.query import run_query
    from pretok.base.tell import table

    tell = terminal(context)
    kind = format or ("table" if sys.stdout.isatty() else "csv")
    if kind not in ("table", "csv", "json"):
        raise UsageError(f"--format {kind!r}: known are table, csv and json")
    names, batches = run_query(work, sql, tell)
    if kind != "table":
        tell.shown = True
        _write(kind, names, batches)
        return
    rows = list(islice(chain.from_iterable(batches), SHOWN + 1))
    cells = [["" if value is None else str(value) for value in row] for row in rows[:SHOWN]]
    tell.show(table("", names, cells), result=True)
    if len(rows) > SHOWN:
        tell.notice(f"the first {SHOWN:,} rows; --format csv shows all")
