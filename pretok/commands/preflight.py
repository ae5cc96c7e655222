"""`pretok preflight`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.base.errors import UsageError
from pretok.commands.options import terminal


def preflight(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Where the job will write.", show_default=False)],
    gpus: Annotated[int, typer.Option(help="GPUs this node must have.")] = 0,
    min_free: Annotated[str, typer.Option(help="Free space in FOLDER.")] = "10GiB",
    min_write: Annotated[str, typer.Option(help="Write speed in bytes a second.")] = "20M",
    min_memory: Annotated[str, typer.Option(help="Available memory.")] = "4GiB",
    json: Annotated[bool, typer.Option("--json", help="Print the report as one line of JSON.")] = False,
    collect: Annotated[
        bool, typer.Option("--collect", help="FOLDER holds reports of nodes: judge those.")
    ] = False,
    nodes: Annotated[
        str, typer.Option(help="With --collect: the nodes that must have reported, by comma.")
    ] = "",
) -> None:
    """Check that a node is fit for a long job: space, inodes, quota, write speed, clock, memory, GPUs.

    The Slurm scripts run it on every node of a job and then `--collect` the reports. The names of bad nodes go to
    standard output, and the exit code is 2.

        pretok preflight work --gpus 4
    """
    import sys

    from pretok.base.tell import table
    from pretok.cluster.node_check import Limits, judge, node_report, read_reports, report_line

    if collect:
        verdict = judge(read_reports(folder), [node for node in nodes.split(",") if node])
    else:
        limits = Limits(gpus, _bytes(min_free), 10_000, _bytes(min_write), _bytes(min_memory))
        report = node_report(folder, limits)
        if json:
            sys.stdout.write(report_line(report))
            return
        verdict = judge([report], [report.node])
    names = list(dict.fromkeys(name for found in verdict.checks.values() for name in found))
    rows = [
        [
            node,
            *(found[name].value if name in found else "-" for name in names),
            "BAD" if node in verdict.bad else "ok",
        ]
        for node, found in verdict.checks.items()
    ]
    tell = terminal(context)
    tell.show(table("pre-flight", ["node", *names, ""], rows))
    for node, problems in verdict.bad.items():
        tell.notice(f"{node}: {'; '.join(problems)}")
    for problem in verdict.shared:
        tell.notice(f"some node: {problem}")
    if verdict.bad:
        sys.stdout.write(",".join(verdict.bad) + "\n")
    if verdict.bad or verdict.shared:
        raise typer.Exit(2)


def _bytes(text: str) -> int:
    from pretok.base.units import parse_count

    try:
        return int(parse_count(text))
    except ValueError as error:
        raise UsageError(str(error)) from None
