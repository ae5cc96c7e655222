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
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens per sequence.", show_default="4096")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, another order.", show_default="0")] = None,
    split: Annotated[str | None, typer.Option(help="train or val.", show_default="train")] = None,
    max_epochs: Annotated[float, typer.Option(min=0, help="How often a source may be read.")] = 4.0,
    cap: Annotated[
        bool, typer.Option("--cap", help="Hold sources at --max-epochs; the others fill up.")
    ] = False,
    continued: Annotated[
        Path | None,
        typer.Option(
            "--continue",
            metavar="OLD.json",
            help="Begin as this mix does, up to --at or where --run is; its sources go on from there.",
        ),
    ] = None,
    at: Annotated[
        int | None, typer.Option(min=1, metavar="POSITION", help="How many sequences of OLD.json come first.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="As many as this run's newest checkpoint has read.")
    ] = None,
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

    pretok mix work/shards --out work/mix2.json --continue work/mix.json --run run --stage 300B:it=0.5,en=0.5
    """
    from pretok.base.console import print_json
    from pretok.base.errors import UsageError
    from pretok.base.units import counted
    from pretok.shards.manifest import load_manifest
    from pretok.stream.continued import beginning, run_position
    from pretok.stream.mix_job import MixRequest, plan_mix, run_mix, show_mix
    from pretok.stream.quota import parse_limit, parse_stage

    if stage and (weights, tokens) != ("natural", "all"):
        raise UsageError("give either --stage or --weights and --tokens, not both")
    if materialize and not out:
        raise UsageError("--materialize writes the mix too: say where with --out")
    stages = tuple(parse_stage(text) for text in stage or [f"{tokens}:{weights}"])
    manifest, tell = load_manifest(shards), terminal(context, out and work_of(out))
    limit = parse_limit(max_epochs, cap)
    if continued is None:
        if at or run:
            raise UsageError("--at and --run say where a mix is continued: name it with --continue")
        request = MixRequest(stages, seq_len or 4096, seed or 0, split or "train", limit)
    else:
        if run is not None and at is None:
            at = run_position(run, continued)
        elif at is None or run is not None:
            raise UsageError("--continue needs a position: give either --at or --run")
        if seed is not None or split is not None:
            raise UsageError("a mix that is continued keeps its seed and split: leave --seed and --split out")
        after = beginning(manifest, continued, at, seq_len)
        request = MixRequest(stages, after.seq_len, after.seed, after.split, limit, after)
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
