"""`pretok inspect`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from pretok.base.errors import UsageError
from pretok.commands.options import Json, Shards, terminal

MOST = 10
"""Documents that are named where several match."""


def inspect(
    context: typer.Context,
    shards: Shards,
    source: Annotated[
        str | None, typer.Option(help="Name of the source; needed without one of the four below.")
    ] = None,
    doc: Annotated[int, typer.Option(min=0, help="Number of the document in the source, from 0.")] = 0,
    split: Annotated[str, typer.Option(help="train or val.")] = "train",
    id: Annotated[str | None, typer.Option(help="Find it by the kept column `id`.")] = None,
    url: Annotated[str | None, typer.Option(help="Find it by the kept column `url`.")] = None,
    hash: Annotated[str | None, typer.Option(help="Find it by the hash of its text.")] = None,
    text: Annotated[str | None, typer.Option(help="Find it by words in it: reads all shards.")] = None,
    json: Json = False,
) -> None:
    """Show a document as its tokens, and the file and line or row it came from.

    pretok inspect work/shards --source it --doc 17

    pretok inspect work/shards --id doc-00017
    """
    from pretok.audit.documents import run_inspect
    from pretok.audit.find import find_documents
    from pretok.base.console import print_json
    from pretok.base.units import counted
    from pretok.shards.manifest import load_manifest

    tell = terminal(context)
    given = {"id": id, "url": url, "hash": hash, "text": text}
    wanted = [(column, value) for column, value in given.items() if value is not None]
    if len(wanted) > 1 or not (wanted or source):
        raise UsageError("name a document by --source and --doc, or by one of --id, --url, --hash and --text")
    if wanted:
        found_at = find_documents(load_manifest(shards), source, *wanted[0], MOST)
        if not found_at:
            raise UsageError(f"no document with the {wanted[0][0]} {wanted[0][1]!r}")
        (source, split, doc), *others = found_at
        if others:
            places = ", ".join(f"{name} {part} {number}" for name, part, number in others)
            more = " and maybe more" if len(found_at) == MOST else ""
            tell.notice(f"{source} {split} {doc} is shown; there are also {places}{more}")
    found = run_inspect(shards, str(source), doc, split)
    if json:
        print_json(asdict(found))
        return
    tell.show(
        f"{found.file}, line or row {found.position}; document {found.document} of {found.shard}", result=True
    )
    for name, value in found.kept.items():
        tell.show(f"{name}: {value}", result=True)
    tell.show(f"{counted(len(found.ids), 'token')}, the last is the end-of-document token:", result=True)
    tell.show("".join(f"[{token}]" for token in found.tokens), result=True)
