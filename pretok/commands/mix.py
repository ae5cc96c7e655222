"""`pretok mix`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import Address, Json, Shards, Workers, start_engine, terminal, work_of


def mix(
    context: typer.Context,
    shards: Shards,
    out: Annotated[
        Path | None,
        typer.Option(metavar="MIX.json", help="Where the mix goes. Without it nothing is written."),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Share of each source, as it=0.9,en=0.1, or `natural`.")
    ] = "natural",
    tokens: Annotated[
        str, typer.Option(help="Budget, as 1.2T or 300B; `all` is one epoch of the scarcest source.")
    ] = "all",
    stage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOKENS:WEIGHTS", help="A stage of a curriculum, instead of both; may be repeated."
        ),
    ] = None,
    seq_len: Annotated[int, typer.Option(min=1, help="Tokens per sequence.")] = 4096,
    seed: Annotated[int, typer.Option(help="Another seed, another order.")] = 0,
    split: Annotated[str, typer.Option(help="train or val.")] = "train",
    max_epochs: Annotated[float, typer.Option(min=0, help="How often a source may be read.")] = 4.0,
    cap: Annotated[
        bool, typer.Option("--cap", help="Hold sources at --max-epochs; the others fill up.")
    ] = False,
    materialize: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the sequences as shards in their order.")
    ] = None,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Fix which sequences of which source come in which order, exactly. The file is small, whatever the budget.

    pretok mix work/shards --out work/mix.json --weights it=0.9,en=0.1 --tokens 1.2T

    pretok mix work/shards --out work/mix.json --stage 1.2T:it=0.9,en=0.1 --stage 3T:it=0.5,en=0.5
    """
    from pretok.base.console import print_json
    from pretok.base.errors import UsageError
    from pretok.base.units import counted
    from pretok.shards.manifest import load_manifest
    from pretok.stream.mix_job import MixRequest, plan_mix, run_mix, show_mix
    from pretok.stream.quota import parse_limit, parse_stage

    if stage and (weights, tokens) != ("natural", "all"):
        raise UsageError("give either --stage or --weights and --tokens, not both")
    if materialize and not out:
        raise UsageError("--materialize writes the mix too: say where with --out")
    stages = tuple(parse_stage(text) for text in stage or [f"{tokens}:{weights}"])
    request = MixRequest(stages, seq_len, seed, split, parse_limit(max_epochs, cap))
    manifest, tell = load_manifest(shards), terminal(context, out and work_of(out))
    report = run_mix(shards, out, request) if out else plan_mix(manifest, request)[1]
    if json:
        print_json(report)
    else:
        show_mix(manifest, request, report, tell)
    if out:
        tell.notice(
            f"{out}: {counted(report['sequences'], 'sequence')}, {counted(report['tokens'], 'token')}"
        )
    if materialize and out:
        from pretok.stream.materialize import run_materialize

        with start_engine(workers, address) as engine:
            run_materialize(shards, out, materialize, engine, tell)
