"""`pretok stats`."""

from __future__ import annotations

import typer

from pretok.commands.options import Json, Shards, terminal


def stats(context: typer.Context, shards: Shards, json: Json = False) -> None:
    """Exact tokens, documents, bytes and rejects per source and split.

    pretok stats work/shards --json
    """
    from pretok.audit.totals import show_stats, stats_of
    from pretok.base.console import print_json

    if json:
        print_json(stats_of(shards))
    else:
        show_stats(shards, terminal(context), result=True)
