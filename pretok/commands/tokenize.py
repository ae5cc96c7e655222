"""`pretok tokenize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import (
    Address,
    Against,
    DropDuplicates,
    DryRun,
    Field,
    Inputs,
    Json,
    MaxRejectShare,
    Out,
    RejectContaminated,
    Workers,
    read_recipe,
    start_engine,
    terminal,
)

Eod = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        help="Token that ends a document. Default: what the tokenizer's files name, or a known one.",
    ),
]
Bos = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        help="Token that begins a document, as <|begin_of_text|> in Llama 3. Default: none.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]FIELD[:TYPE]",
        help="A field to keep beside the tokens of each document, in all sources; repeat it for more.",
    ),
]


def tokenize(
    context: typer.Context,
    inputs: Inputs,
    out: Out = None,
    vocab: Annotated[
        Path | None, typer.Option(help="Folder or tokenizer.json of any byte-level BPE. Default: OUT/vocab.")
    ] = None,
    eod: Eod = None,
    bos: Bos = None,
    val_fraction: Annotated[
        str | None, typer.Option(help="Share of documents held out, such as 0.001.")
    ] = None,
    shard_size: Annotated[str | None, typer.Option(help="Bytes of tokens per shard, such as 512MiB.")] = None,
    field: Field = None,
    keep: Keep = None,
    max_reject_share: MaxRejectShare = None,
    against: Against = None,
    reject_contaminated: RejectContaminated = None,
    drop_duplicates: DropDuplicates = None,
    workers: Workers = None,
    address: Address = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Tokenize sources into memory-mapped shards with exact counts, under OUT/shards.

    Run it again after a kill: what is sealed is kept. A new NAME=GLOB adds a source to a finished output.

        pretok tokenize it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --workers 16
    """
    from pretok.audit.totals import show_stats
    from pretok.base.console import print_json
    from pretok.base.units import counted
    from pretok.commands.steps import tokenize_step
    from pretok.shards.manifest import FILE_NAME, load_manifest

    changes: dict[str, dict[str, object]] = {
        "vocab": {"path": vocab, "eod": eod, "bos": bos},
        "shards": {
            "val_fraction": val_fraction,
            "size": shard_size,
            "max_reject_share": max_reject_share,
            "against": against,
            "reject_contaminated": reject_contaminated,
            "duplicates": {True: "drop", False: "mark", None: None}[drop_duplicates],
        },
    }
    recipe = read_recipe(inputs, out, changes, field, keep or ())
    if dry_run:
        from pretok.commands.dry_run import tell_dry_run

        tell_dry_run("tokenize", inputs, recipe, terminal(context))
        return
    shards = recipe.shards_dir
    before = load_manifest(shards).fingerprint if (shards / FILE_NAME).exists() else None
    tell = terminal(context, recipe.out, recipe)
    with start_engine(workers, address) as engine:
        tokenize_step(recipe, engine, tell)
    manifest = load_manifest(shards)
    totals = manifest.contents.totals
    if manifest.fingerprint == before:
        counts = f"{counted(totals.tokens, 'token')} of {counted(totals.documents, 'document')}"
        tell.notice(f"{shards}: {counts}, complete and unchanged")
    else:
        show_stats(shards, tell)
    if json:
        print_json(totals)
