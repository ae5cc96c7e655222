"""`pretok export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import Shards


def export(
    shards: Shards,
    to: Annotated[
        str, typer.Option(metavar="megatron|nanogpt|litgpt", help="Whose reader.", show_default=False)
    ],
    mix: Annotated[
        Path | None, typer.Option(metavar="MIX.json", help="Shares and order. Default: natural.")
    ] = None,
    stage: Annotated[int | None, typer.Option(min=1, help="megatron: which stage of the mix.")] = None,
    seq_len: Annotated[int, typer.Option(min=1, help="nanogpt, litgpt: without a mix.")] = 4096,
    out: Annotated[Path | None, typer.Option(help="Default: standard output.")] = None,
) -> None:
    """What another trainer needs to read the shards.

        pretok export work/shards --mix work/mix.json --to megatron --out blend.json

    megatron: the file for --per-split-data-args-path. nanogpt, litgpt: a few lines of Python over pretok.stream.
    """
    from pretok.base.storage import atomic_open
    from pretok.stream.foreign import export_text

    text = export_text(shards, to, mix, stage, seq_len)
    if out is None:
        typer.echo(text, nl=False)
        return
    with atomic_open(out, "w") as file:
        file.write(text)
