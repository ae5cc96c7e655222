"""`pretok count`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import (
    Address,
    DryRun,
    Field,
    Json,
    MaxRejectShare,
    Out,
    Workers,
    read_recipe,
    start_engine,
    terminal,
)


def count(
    context: typer.Context,
    inputs: Annotated[
        list[str], typer.Argument(metavar="RECIPE.toml | NAME=GLOB ... | COUNTS ...", show_default=False)
    ],
    out: Out = None,
    pattern: Annotated[str | None, typer.Option(help="cl100k, gpt2, o200k or cl100k-apostrophe.")] = None,
    sample: Annotated[str | None, typer.Option(help="Share of documents counted, such as 0.1.")] = None,
    field: Field = None,
    max_reject_share: MaxRejectShare = None,
    workers: Workers = None,
    address: Address = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Count every word of the sources exactly, under OUT/counts, or add up finished counts of several corpora.

    `pretok build-vocab --counts` trains any size and mix from them without reading text again.

        pretok count it='data/it/*.jsonl.zst' --out italian

        pretok count italian/counts english/counts --out both
    """
    from pretok.base.console import print_json
    from pretok.base.errors import UsageError
    from pretok.base.records import to_json
    from pretok.base.units import counted
    from pretok.counts.counts_file import FILE_NAME, load_counts
    from pretok.counts.job import add_counts, refuse_partial, run_count

    folders = [Path(value) for value in inputs if (Path(value) / FILE_NAME).exists()]
    changes = {
        "vocab": {"pattern": pattern, "sample": sample},
        "shards": {"max_reject_share": max_reject_share},
    }
    if folders and (
        len(folders) < len(inputs) or out is None or any((pattern, sample, field, max_reject_share))
    ):
        raise UsageError("to add up counts, give folders of finished counts and --out DIR, nothing else")
    recipe = (
        None if folders else read_recipe(inputs, out, changes, field)
    )  # before the engine, which takes seconds
    if dry_run:
        from pretok.commands.dry_run import tell_dry_run

        if recipe is None:
            raise UsageError("--dry-run is for inputs that are to be counted; adding up counts takes seconds")
        tell_dry_run("count", inputs, recipe, terminal(context))
        return
    tell = terminal(context, recipe.out if recipe else out, recipe)
    with start_engine(workers, address) as engine:
        if recipe:
            counts = run_count(recipe, engine, tell)
        else:
            counts = add_counts(
                [load_counts(folder) for folder in folders], Path(out or "") / "counts", engine, tell
            )
    for name, record in counts.records.items():
        counted_text = f"{counted(record.documents, 'document')}, {counted(record.bytes, 'byte')} of text"
        tell.notice(f"{name}: {counted_text} counted")
    if json:
        print_json({"sources": to_json(counts.records), "failed": to_json(counts.failed)})
    refuse_partial("the counts are made", counts.failed, str(counts.folder))
