"""`pretok annotate`."""

from __future__ import annotations

from typing import Annotated

import typer

from pretok.commands.options import Address, Json, Shards, Workers, start_engine, terminal, work_of


def annotate(
    context: typer.Context,
    shards: Shards,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES ...",
            help="JSON Lines or Parquet (.zst, .gz), or globs: the key and other columns.",
            show_default=False,
        ),
    ],
    by: Annotated[
        str,
        typer.Option(
            metavar="COLUMN,...",
            help="The key, as the view `docs` of pretok query names it: id, hash, url, file,position, source,id.",
        ),
    ],
    name: Annotated[
        str, typer.Option(help="Of these annotations; those of the same name are replaced.")
    ] = "notes",
    columns: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Columns to join. Default: all that are not of the key."),
    ] = None,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Join columns that were made afterwards to the documents, as a second ledger beside the first.

        pretok annotate work/shards scores/*.parquet --by id --name quality

        pretok annotate work/shards topics.jsonl.zst --by file,position --name topics --columns topic

    No token and no ledger is rewritten. Documents without a row have null there and `NAME_matched` false; rows without
    a document are listed in a file.
    """
    from pretok.annotate.job import run_annotate, tell_summary
    from pretok.annotate.request import Request
    from pretok.base.console import print_json

    tell = terminal(context, work_of(shards))
    wanted = None if columns is None else tuple(columns.split(","))
    request = Request(shards, tuple(files), tuple(by.split(",")), name, wanted)
    with start_engine(workers, address) as engine:
        summary = run_annotate(request, engine, tell)
    if json:
        print_json(summary)
    else:
        tell_summary(summary, tell)
