"""`pretok status`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import WORK_OR_RUN, Json, terminal


def status(
    context: typer.Context,
    work: Annotated[
        Path,
        WORK_OR_RUN,
    ],
    json: Json = False,
) -> None:
    """Say what is finished, unfinished, failed or in work, and what to do next.

        pretok status work

    Only files that jobs leave are read, so it may run on a login node while they work.
    """
    from pretok.base.console import print_json
    from pretok.base.errors import UsageError
    from pretok.base.tell import table
    from pretok.watch.status import status_of

    if not work.is_dir():
        raise UsageError(f"{work} is no folder")
    found = status_of(work)
    if json:
        print_json(found)
        return
    tell = terminal(context)
    rows = [
        (one.what, one.state, "" if one.planned is None else f"{one.done:,} of {one.planned:,}", one.detail)
        for one in found
    ]
    tell.show(table(str(work), ("result", "state", "done", ""), rows), result=True)
    for one in found:
        if one.next:
            tell.show(f"{one.what}: {one.next}", result=True)
