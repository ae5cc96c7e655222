"""`pretok watch`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import WORK_OR_RUN

TERMINAL, PIPE = 2.0, 60.0
"""Seconds from one look to the next where nobody says."""


def watch(
    target: Annotated[
        Path,
        WORK_OR_RUN,
    ],
    every: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds between two looks. Default: 2 on a terminal, 60 elsewhere."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
) -> None:
    """Show how far the jobs in WORK are, or a training run, until the run is finished or you end it with Ctrl-C.

        pretok watch work

        pretok watch runs/italia-v01 --once

    It may run on a login node: only files that jobs leave on the shared file system are read, and squeue is asked where
    there is one. Piped, it prints plain lines.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from pretok.base.errors import UsageError
    from pretok.base.visible import visible
    from pretok.watch.lines import finished, watch_lines

    if not target.is_dir():
        raise UsageError(f"{target} is no folder")
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    live = console.is_terminal and not once
    pause = every or (TERMINAL if live else PIPE)
    try:
        if not live:
            while True:
                sys.stdout.write(visible("\n".join([*watch_lines(target, time.time()), ""])))
                sys.stdout.flush()
                if once or finished(target):
                    return
                time.sleep(pause)
        with Live(console=console, auto_refresh=False) as shown:
            while True:
                shown.update(Text(visible("\n".join(watch_lines(target, time.time())))), refresh=True)
                if finished(target):
                    return
                time.sleep(pause)
    except KeyboardInterrupt:  # how it is ended
        return
