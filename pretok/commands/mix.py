"""`pretok mix`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import Address, Json, Shards, Workers, start_engine, terminal, work_of

Out = Annotated[
    Path | None, typer.Option(metavar="MIX.json", help="Where the mix goes. Without it nothing is written.")
]
Weights = Annotated[str, typer.Option(help="Share of each source, as it=0.9,en=0.1, or `natural`.")]
Tokens = Annotated[
    str, typer.Option(help="Budget, as 1.2T or 300B; `all` is one epoch of the scarcest source.")
]
Stages = Annotated[
    list[str] | None,
    typer.Option(metavar="TOKENS:WEIGHTS", help="A stage of a curriculum, instead of both; may be repeated."),
]
SeqLen = Annotated[int | None, typer.Option(min=1, help="Tokens per sequence.", show_default="4096")]
Seed = Annotated[int | None, typer.Option(help="Another seed, another order.", show_default="0")]
Split = Annotated[str | None, typer.Option(help="train or val.", show_default="train")]
MaxEpochs = Annotated[float, typer.Option(min=0, help="How often a source may be read.")]
Cap = Annotated[bool, typer.Option("--cap", help="Hold sources at --max-epochs; the others fill up.")]
Continued = Annotated[
    Path | None,
    typer.Option(
        "--continue",
        metavar="OLD.json",
        help="Begin as this mix does, up to --at or where --run is; its sources go on from there.",
    ),
]
At = Annotated[
    int | None, typer.Option(min=1, metavar="POSITION", help="How many sequences of OLD.json come first.")
]
Run = Annotated[
    Path | None, typer.Option(metavar="RUN", help="As many as this run's newest checkpoint has read.")
]
Materialized = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Also write the sequences as shards in their order.")
]


def mix(
    context: typer.Context,
    shards: Shards,
    out: Out = None,
    weights: Weights = "natural",
    tokens: Tokens = "all",
    stage: Stages = None,
    seq_len: SeqLen = None,
    seed: Seed = None,
    split: Split = None,
    max_epochs: MaxEpochs = 4.0,
    cap: Cap = False,
    continued: Continued = None,
    at: At = None,
    run: Run = None,
    materialize: Materialized = None,
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
    from pretok.stream.continued import beginning
    from pretok.stream.mix_job import MixRequest, plan_mix, run_mix, show_mix
    from pretok.stream.quota import parse_limit, parse_stage

    if stage and (weights, tokens) != ("natural", "all"):
        raise UsageError("give either --stage or --weights and --tokens, not both")
    if materialize and not out:
        raise UsageError("--materialize writes the mix too: say where with --out")
    stages = tuple(parse_stage(text) for text in stage or [f"{tokens}:{weights}"])
    manifest, tell = load_manifest(shards), terminal(context, out and work_of(out))
    limit = parse_limit(max_epochs, cap)
    if continued is not None:
        if seed is not None or split is not None:
            raise UsageError("a mix that is continued keeps its seed and split: leave --seed and --split out")
        after = beginning(manifest, continued, _left_at(continued, at, run), seq_len)
        request = MixRequest(stages, after.seq_len, after.seed, after.split, limit, after)
    elif at is None and run is None:
        request = MixRequest(stages, seq_len or 4096, seed or 0, split or "train", limit)
    else:
        raise UsageError("--at and --run say where a mix is continued: name it with --continue")
    report = run_mix(shards, out, request) if out else plan_mix(manifest, request)[1]
    if json:
        print_json(report)
    else:
        show_mix(manifest, request, report, tell)
    if out is None:
        again = shlex.join(["pretok", *tell.arguments, "--out", str(shards.absolute().parent / "mix.json")])
        tell.notice(f"nothing was written; to write it:\n\n  {again}")
    else:
        tell.notice(f"{out}: {counted(report.sequences, 'sequence')}, {counted(report.tokens, 'token')}")
    if materialize and out:
        from pretok.stream.materialize import run_materialize

        with start_engine(workers, address) as engine:
            run_materialize(shards, out, materialize, engine, tell)


def _left_at(continued: Path, at: int | None, run: Path | None) -> int:
    """The position that was given, or that of the run."""
    from pretok.base.errors import UsageError
    from pretok.stream.continued import run_position

    if run is not None and at is None:
        return run_position(run, continued)
    if at is None or run is not None:
        raise UsageError("--continue needs a position: give either --at or --run")
    return at
