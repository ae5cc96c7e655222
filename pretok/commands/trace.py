"""`pretok trace`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pretok.base.errors import UsageError
from pretok.commands.options import Json, terminal

MOST = 100
"""Documents that are traced where several have the name."""


def trace(
    context: typer.Context,
    target: Annotated[
        Path, typer.Argument(metavar="RUN | MIX", help="Folder of a run, or a mix.json.", show_default=False)
    ],
    doc: Annotated[
        str | None,
        typer.Option(
            metavar="ID | HASH | FILE:LINE",
            help="Where is it read? Its kept `id`, the hash in its ledger, or where it came from.",
        ),
    ] = None,
    position: Annotated[int | None, typer.Option(help="What is read at this position, from 0?")] = None,
    step: Annotated[int | None, typer.Option(help="What is read in this step of the run, from 1?")] = None,
    shards: Annotated[
        Path | None,
        typer.Option(help="Folder with the documents. Default: where the run read them, or beside the mix."),
    ] = None,
    json: Json = False,
) -> None:
    """Say at which positions of a mix, and in which steps of a run, a document is read; or what is read there.

    It is computed from the order, not replayed. `done` are the steps up to the newest checkpoint.

        pretok trace run --doc data/it/a.jsonl.zst:1742

        pretok trace run --step 81
    """
    from pretok.audit.find import find_named
    from pretok.audit.trace import document_rows, open_traced, passage_rows, positions_of_step
    from pretok.base.console import print_json
    from pretok.base.tell import table

    if sum(given is not None for given in (doc, position, step)) != 1:
        raise UsageError("give one of --doc, --position and --step")
    traced = open_traced(target, shards)
    if doc is not None:
        rows = [
            row for place in find_named(traced.manifest, doc, MOST) for row in document_rows(traced, *place)
        ]
    else:
        positions = [position] if position is not None else positions_of_step(traced, step or 0)
        rows = [row for one in positions for row in passage_rows(traced, one)]
    if json:
        print_json([asdict(row) for row in rows])
    elif not rows:
        terminal(context).notice(f"{doc} is in the shards, but {target} never reads it")
    else:
        columns = tuple(asdict(rows[0]))
        shown = [tuple("" if value is None else str(value) for value in asdict(row).values()) for row in rows]
        terminal(context).show(table("trace", columns, shown), result=True)
