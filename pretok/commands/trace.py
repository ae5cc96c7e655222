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

    It is computed from the order, not replayed. `done` are the steps up to the newest checkpoint; what the run will
    never get to is not listed.

        pretok trace run --doc data/it/a.jsonl.zst:1742

        pretok trace run --step 81
    """
    from pretok.audit.find import find_in
    from pretok.audit.trace import document_rows, open_traced, passage_rows, positions_of_step, reading_at
    from pretok.base.console import print_json
    from pretok.base.tell import table
    from pretok.base.units import counted

    if sum(given is not None for given in (doc, position, step)) != 1:
        raise UsageError("give one of --doc, --position and --step")
    legs = open_traced(target, shards)
    if doc is not None:
        places = find_in([traced.manifest for traced in legs], doc, MOST)
        rows = [
            row
            for traced, found in zip(legs, places, strict=True)
            for place in found
            for row in document_rows(traced, *place)
        ]
    elif position is not None:
        rows = [row for traced in reading_at(legs, position) for row in passage_rows(traced, position)]
    else:
        traced, positions = positions_of_step(legs, step or 0)
        rows = [row for one in positions for row in passage_rows(traced, one)]
    if late := sum(row.done is False for row in rows):
        terminal(context).notice(
            f"{late:,} of {counted(len(rows), 'reading')} lie ahead: the newest checkpoint is of step "
            f"{legs[-1].steps:,}, the run ends with step {legs[-1].last:,}"
        )
    if json:
        print_json([asdict(row) for row in rows])
    elif not rows:
        terminal(context).notice(f"{doc} is in the shards, but {target} never reads it")
    else:
        columns = tuple(asdict(rows[0]))
        shown = [tuple("" if value is None else str(value) for value in asdict(row).values()) for row in rows]
        terminal(context).show(table("trace", columns, shown), result=True)
