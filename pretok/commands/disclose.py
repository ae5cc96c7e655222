"""`pretok disclose`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pretok.base.errors import UsageError
from pretok.commands.options import terminal


def disclose(
    context: typer.Context,
    work: Annotated[
        Path,
        typer.Argument(metavar="WORK", help="Folder that holds shards/, or that itself.", show_default=False),
    ],
    mix: Annotated[
        Path | None,
        typer.Option(metavar="MIX", help="Of this mix.json; with --run, where the run's mix is now."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Of what this training run read up to its last step.")
    ] = None,
    format: Annotated[
        str, typer.Option(metavar="json|html|croissant", help="croissant: JSON-LD of Croissant 1.1.")
    ] = "json",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where it goes. Default: standard output.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=COLUMN",
            help="The kept column that tells the language, licence, domain (an address), date or duplicate, where it "
            "has no usual name. May be repeated.",
        ),
    ] = None,
    domains: Annotated[int, typer.Option(min=0, help="Domains that are listed, by tokens.")] = 1000,
) -> None:
    """Say what was trained on, laid out by the EU AI Act's public summary of training content.

    pretok disclose work --run runs/italia-v01 --format html --out summary.html

    pretok disclose work --mix work/mix.json --column language=lang_id

    Of the shards, of a mix, or of the steps of a run that are on record: tokens, documents, bytes and epochs of each
    source, and by language, licence, domain and date where kept columns tell them. What no file knows is null.
    """
    from pretok.base.storage import atomic_open
    from pretok.disclosure.job import DisclosureRequest, run_disclose

    tell = terminal(context)
    text = run_disclose(DisclosureRequest(work, mix, run, _columns(column or []), domains), format)
    if out is None:
        sys.stdout.write(text)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_open(out, "w") as file:
        file.write(text)
    tell.show(f"{out}", result=True)


def _columns(given: list[str]) -> dict[str, str]:
    columns = {}
    for text in given:
        kind, equals, name = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--column {text}: write KIND=COLUMN, as in language=lang_id")
        columns[kind] = name
    return columns
