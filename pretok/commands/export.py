"""`pretok export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import Address, Shards, Workers, start_engine, terminal


def export(
    context: typer.Context,
    shards: Shards,
    to: Annotated[
        str,
        typer.Option(
            metavar="megatron|olmo|nanotron|litdata|nanogpt|litgpt", help="Whose reader.", show_default=False
        ),
    ],
    mix: Annotated[
        Path | None, typer.Option(metavar="MIX.json", help="Shares and order. Default: natural.")
    ] = None,
    stage: Annotated[
        int | None, typer.Option(min=1, help="Which stage of the mix, where one is wanted.")
    ] = None,
    seq_len: Annotated[int, typer.Option(min=1, help="nanogpt, litgpt: without a mix.")] = 4096,
    out: Annotated[
        Path | None,
        typer.Option(help="File for text (default: standard output), folder for files of tokens."),
    ] = None,
    merge: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Files of tokens up to this size, such as 10GiB. Default: one a shard."
        ),
    ] = None,
    workers: Workers = None,
    address: Address = None,
) -> None:
    """What another trainer needs to read the shards.

        pretok export work/shards --mix work/mix.json --to megatron --out blend.json

        pretok export work/shards --to olmo --merge 10GiB --out olmo

    megatron: the file for --per-split-data-args-path; with --merge larger files and theirs. nanogpt, litgpt: a few
    lines of Python over pretok.stream. olmo, nanotron, litdata: files of their formats, listed in export.json.
    """
    from pretok.base.storage import atomic_open
    from pretok.export.text import READERS, export_text

    if merge is not None or to not in READERS:
        size = _parse_size(merge or "0")
        return _files(context, shards, to, mix, stage, out, size, workers, address)
    text = export_text(shards, to, mix, stage, seq_len)
    if out is None:
        typer.echo(text, nl=False)
        return None
    with atomic_open(out, "w") as file:
        file.write(text)
    terminal(context).notice(f"{out}: what {to} needs to read {shards}")
    return None


def _parse_size(text: str) -> int:
    from pretok.base.errors import UsageError
    from pretok.base.units import parse_count

    try:
        return int(parse_count(text))
    except ValueError as error:
        raise UsageError(f"--merge: {error}") from None


def _files(
    context: typer.Context,
    shards: Path,
    to: str,
    mix: Path | None,
    stage: int | None,
    out: Path | None,
    size: int,
    workers: int | None,
    address: str | None,
) -> None:
    """Write files of tokens."""
    from pretok.base.errors import UsageError
    from pretok.base.units import counted
    from pretok.export.formats import FORMATS
    from pretok.export.job import EXPORT_FILE, run_export
    from pretok.export.text import READERS, source_tokens
    from pretok.shards.manifest import load_manifest

    if to not in FORMATS:
        merged = "; --merge is not for it" if to in READERS else ""
        known = ", ".join(sorted({*FORMATS, *READERS}))
        raise UsageError(f"cannot export to {to!r}{merged}; known are {known}")
    if out is None:
        raise UsageError(f"files for {to} are written into a folder: say which with --out")
    manifest, tell = load_manifest(shards), terminal(context, out)
    wanted = source_tokens(manifest, mix, stage)
    with start_engine(workers, address) as engine:
        export = run_export(manifest, to, out, size, wanted, engine, tell)
    tell.notice(
        f"{out}: {counted(len(export.files), 'file')}, {counted(export.tokens, 'token')}, see {EXPORT_FILE}"
    )
