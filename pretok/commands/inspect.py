"""`pretok inspect`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from pretok.commands.options import Json, Shards, terminal


def inspect(
    context: typer.Context,
    shards: Shards,
    source: Annotated[str, typer.Option(help="Name of the source.", show_default=False)],
    doc: Annotated[int, typer.Option(min=0, help="Number of the document in the source, from 0.")] = 0,
    split: Annotated[str, typer.Option(help="train or val.")] = "train",
    json: Json = False,
) -> None:
    """Show a document as its tokens, and the file and line or row it came from.

    pretok inspect work/shards --source it --doc 17
    """
    from pretok.audit.documents import run_inspect
    from pretok.base.console import print_json
    from pretok.base.units import counted

    found = run_inspect(shards, source, doc, split)
    if json:
        print_json(asdict(found))
        return
    tell = terminal(context)
    tell.show(
        f"{found.file}, line or row {found.position}; document {found.document} of {found.shard}", result=True
    )
    tell.show(f"{counted(len(found.ids), 'token')}, the last is the end-of-document token:", result=True)
    tell.show("".join(f"[{token}]" for token in found.tokens), result=True)
