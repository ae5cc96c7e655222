"""`pretok report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import WORK, terminal


def report(
    context: typer.Context,
    work: Annotated[Path, WORK],
    run: Annotated[Path | None, typer.Option(metavar="RUN", help="A training run to show too.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="PAGE.html", help="Where the page goes. Default: WORK/report.html.")
    ] = None,
) -> None:
    """One page that says what is in the shards, what was thrown away and why, and what happened when.

    It needs no network: copy it, mail it, print it.

    pretok report work

    pretok report work --run runs/italia-v01 --out italia.html
    """
    from pretok.report.page import run_report

    page = out or work / "report.html"
    run_report(work, page, run)
    terminal(context).show(f"{page}", result=True)
