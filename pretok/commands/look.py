"""The commands that show states, figures and pages: status, report, disclose, preflight."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pretok.base.console import table
from pretok.base.errors import PretokError, UsageError
from pretok.base.lock import hold
from pretok.base.records import to_json
from pretok.base.storage import atomic_open
from pretok.base.terminal import print_json
from pretok.commands.options import (
    Json,
    WorkFolder,
    WorkOrRun,
    WorkOrShards,
    argument,
    option,
    parse_size,
    refuse_unread,
    terminal,
)


def status(
    context: typer.Context,
    work: WorkOrRun,
    *,
    json: Json = False,
) -> None:
    """Show what is finished, unfinished, failed or running, exact counts of the shards, and the next command.

        pretok status work

    It reads only the files of jobs, so it can run on a login node while they work.
    """
    from pretok.documents.audit.totals import show_stats, stats_of
    from pretok.overview.status import next_of, status_of, work_around
    from pretok.shards.manifest import has_manifest, shards_of

    if not work.is_dir():
        raise UsageError(f"{work} {'is not a folder' if work.exists() else 'does not exist'}")
    shards = shards_of(work)
    results = [] if shards == work and has_manifest(work) else status_of(work)  # bare shards have no steps
    if results and not any(row.what != str(work) for row in results) and (around := work_around(work)):
        raise UsageError(
            f"{work} is a part of the results in {around}; show them with pretok status {around}"
        )
    try:
        stats = stats_of(shards)
    except PretokError:
        if not results:
            raise
        stats = None  # the table of results says why
    if json:
        print_json({"results": to_json(results), "shards": to_json(stats)})
        return
    console = terminal(context)
    if results:
        rows = [
            (row.what, row.state, "" if row.planned is None else f"{row.done:,} of {row.planned:,}")
            for row in results
        ]
        console.show(table(str(work), ("result", "state", "done"), rows), result=True)
        for row in results:
            if row.detail:
                console.show(f"{row.what}: {row.detail}", result=True)
    if stats is not None:
        show_stats(shards, console, result=True)
    if command := next_of(results):
        console.show(f"next: {command}", result=True)


def report(
    context: typer.Context,
    work: WorkFolder,
    *,
    run: Annotated[Path | None, option("--run", "Also show this training run.", "RUN")] = None,
    out: Annotated[
        Path | None, option("--out", "File to write. Default: WORK/report.html.", "PAGE.html")
    ] = None,
) -> None:
    """Write an HTML page on the contents of the shards, the rejected records and the jobs.

        pretok report work

        pretok report work --run runs/italia-v01 --out italia.html

    The page is one file and needs no network.
    """
    from pretok.overview.report.page import run_report

    page = out or work / "report.html"
    run_report(work, page, run)
    terminal(context).show(f"{page}", result=True)


def disclose(
    context: typer.Context,
    work: WorkOrShards,
    *,
    target: Annotated[
        Path | None, argument("RUN | MIX", "Training run, or mix.json. Default: all of the shards.")
    ] = None,
    format: Annotated[
        str | None,
        option(
            "--format",
            "Format. md: dataset card, spdx: SPDX 3.0 document, csv: all registrable domains. Default: by the suffix "
            "of --out (.spdx.json: spdx), else html.",
            "json|html|md|spdx|csv",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "--out", "File to write. Default: WORK/disclosure.html; with --format standard output.", "FILE"
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        option(
            "--column",
            "Kept column for language, licence, domain (a URL), date, duplicate or synthetic (the generator), if it "
            "has an unusual name. May be repeated.",
            "KIND=COLUMN",
        ),
    ] = None,
    domains: Annotated[
        int, option("--domains", "Number of domains to list, the largest first.", "N", min=0)
    ] = 1000,
    answers: Annotated[
        Path | None,
        option(
            "--answers",
            "TOML file with facts that only you know, such as the provider. Default: WORK/disclosure.toml.",
            "FILE",
        ),
    ] = None,
) -> None:
    """Summarize what a model was trained on, in the layout of the EU AI Act's public summary of training content.

        pretok disclose work runs/italia-v01 --out summary.html

        pretok disclose work work/mix.json --column language=lang_id --format json

    It counts tokens, documents, bytes and epochs of each source; and by language, licence, domain and date if kept
    columns hold them. For a run it counts the steps so far. Unknown values are null.
    """
    from pretok.documents.disclosure.disclose_job import DisclosureRequest, run_disclose

    console = terminal(context)
    request = DisclosureRequest(work, target, _columns(column or []), domains, answers)
    suffix = (
        "" if out is None else "spdx" if out.name.endswith(".spdx.json") else out.suffix.removeprefix(".")
    )
    kind = format or (suffix if suffix in ("json", "md", "spdx", "csv") else "html")
    if kind == "csv":
        refuse_unread(context, "in CSV, which has all of them", "domains")
    text = run_disclose(request, kind)
    if out is None and format is not None:
        sys.stdout.write(text)
        return
    out = out or work / "disclosure.html"
    with hold(out, "disclose", beside=True), atomic_open(out, "w") as file:
        file.write(text)
    console.show(f"{out}", result=True)


def _columns(given: list[str]) -> dict[str, str]:
    columns = {}
    for text in given:
        kind, equals, name = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--column {text}: write KIND=COLUMN, as in language=lang_id")
        columns[kind] = name
    return columns


def preflight(
    context: typer.Context,
    folder: Annotated[Path, argument("FOLDER", "Folder that the job will write to.")],
    *,
    gpus: Annotated[int, option("--gpus", "Minimum number of GPUs.", "N", min=0)] = 0,
    min_free: Annotated[str, option("--min-free", "Minimum free space in FOLDER.", "SIZE")] = "10GiB",
    min_write: Annotated[str, option("--min-write", "Minimum write speed per second.", "SIZE")] = "20M",
    min_memory: Annotated[str, option("--min-memory", "Minimum available memory.", "SIZE")] = "4GiB",
    json: Annotated[bool, option("--json", "Print the report as one line of JSON.")] = False,
    collect: Annotated[bool, option("--collect", "Check the reports of nodes in FOLDER.")] = False,
    nodes: Annotated[
        str, option("--nodes", "With --collect: nodes that must have reported.", "NAME,...")
    ] = "",
) -> None:
    """Check that a node is fit for a long job: space, write speed, clock, memory, GPUs.

        pretok preflight work --gpus 4

    The Slurm scripts run it on every node of a job and then `--collect` the reports. It prints the names of bad nodes,
    and then ends with exit code 2.
    """
    from pretok.cluster.node_check import judge, node_report, read_reports, report_line

    if collect:
        why = "with --collect, which reads reports"
        refuse_unread(context, why, "gpus", "min_free", "min_write", "min_memory", "json")
        verdict = judge(read_reports(folder), [node for node in nodes.split(",") if node])
    else:
        refuse_unread(context, "without --collect", "nodes")
        sizes = {"free": min_free, "write": min_write, "memory": min_memory}
        needed = {name: parse_size(text, f"--min-{name}") for name, text in sizes.items()}
        report = node_report(folder, needed | {"GPUs": gpus})
        if json:
            sys.stdout.write(report_line(report))
            return
        verdict = judge([report], [report.node])
    names = list(dict.fromkeys(name for checks in verdict.checks.values() for name in checks))
    rows = []
    for node, checks in verdict.checks.items():
        values = [checks[name].value if name in checks else "-" for name in names]
        rows.append([node, *values, "BAD" if node in verdict.bad else "ok"])
    console = terminal(context)
    console.show(table("pre-flight", ["node", *names, ""], rows))
    problems = {**verdict.bad, **({"some node": verdict.shared} if verdict.shared else {})}
    for node, texts in problems.items():
        console.notice(f"{node}: {'; '.join(texts)}")
    if verdict.bad:
        sys.stdout.write(",".join(verdict.bad) + "\n")
    if problems:
        raise typer.Exit(2)
