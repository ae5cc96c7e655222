"""`pretok build-vocab`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.base.errors import UsageError
from pretok.commands.options import (
    Address,
    DryRun,
    Field,
    Inputs,
    Json,
    Out,
    Workers,
    read_recipe,
    start_engine,
    terminal,
)

Sizes = Annotated[
    str | None,
    typer.Option(
        help="Several sizes, such as 16000,32000,50000: the largest is trained, the others are its beginnings, under "
        "OUT/vocab/SIZE."
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(help="Share of each source, such as it=0.9,en=0.1. Default: as on disk.", metavar="W"),
]
FinishedCounts = Annotated[
    Path | None, typer.Option(help="Folder of `pretok count`; no text is read, INPUTS only name sources.")
]
Compare = Annotated[
    list[Path] | None, typer.Option(help="Another tokenizer.json for the report; may be repeated.")
]
Languages = Annotated[
    str | None, typer.Option(help="Languages, such as it,de, whose letters the report looks at one by one.")
]


def build_vocab(
    context: typer.Context,
    inputs: Inputs,
    out: Out = None,
    vocab_size: Annotated[
        str | None, typer.Option(metavar="N", help="Entries, special tokens included, such as 50000 or 50k.")
    ] = None,
    sizes: Sizes = None,
    pattern: Annotated[str | None, typer.Option(help="cl100k, gpt2, o200k or cl100k-apostrophe.")] = None,
    weights: Weights = None,
    sample: Annotated[str | None, typer.Option(help="Share of documents counted, such as 0.1.")] = None,
    min_count: Annotated[int | None, typer.Option(help="Drop words that occur less often.")] = None,
    superwords: Annotated[
        int | None, typer.Option(help="How many entries shall be sequences of words. Default: 0.")
    ] = None,
    superword_separators: Annotated[
        str | None, typer.Option(help="space, space+apostrophe or space+apostrophe+comma (the default).")
    ] = None,
    superword_sample: Annotated[
        str | None, typer.Option(help="Bytes of text superwords are trained on, such as 500M. Default: 2G.")
    ] = None,
    counts: FinishedCounts = None,
    compare: Compare = None,
    languages: Languages = None,
    field: Field = None,
    workers: Workers = None,
    address: Address = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a byte-level BPE vocabulary on exact counts of all words, with a report, under OUT/vocab.

    The merges are those that Hugging Face tokenizers would make. Run it again after a kill: what is counted is kept.

        pretok build-vocab it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --weights it=0.9,en=0.1
    """
    from pretok.base.console import print_json
    from pretok.base.records import to_json
    from pretok.counts.counts_file import load_counts
    from pretok.counts.job import refuse_partial
    from pretok.stream.quota import parse_weights
    from pretok.vocab.job import REPORT_FILE, run_build_vocab
    from pretok.vocab.show import sources_table

    wanted = _parse_sizes(sizes, vocab_size) if sizes else None
    changes: dict[str, dict[str, object]] = {
        "vocab": {
            "size": max(wanted) if wanted else vocab_size,
            "sizes": wanted,
            "languages": languages.split(",") if languages else None,
            "pattern": pattern,
            "weights": parse_weights(weights) if weights else None,
            "sample": sample,
            "min_count": min_count,
            "superwords": superwords,
            "superword_separators": superword_separators,
            "superword_sample": superword_sample,
        },
    }
    recipe = read_recipe(inputs, out, changes, field)
    if dry_run:
        from pretok.commands.dry_run import tell_dry_run

        tell_dry_run("build-vocab", inputs, recipe, terminal(context))
        return
    tell = terminal(context, recipe.out, recipe)
    with start_engine(workers, address) as engine:
        report = run_build_vocab(recipe, engine, tell, compare or [], load_counts(counts) if counts else None)
    if json:
        print_json(to_json(report))
    else:
        tell.show(sources_table(report))
        tell.notice(f"the whole report is in {recipe.vocab_dir / REPORT_FILE}; --verbose shows it")
    stale = f"{counts or recipe.counts_dir} and {recipe.vocab_dir}"
    refuse_partial("the vocabulary is made", report.failed, stale)


def _parse_sizes(text: str, vocab_size: str | None) -> list[int]:
    if vocab_size:
        raise UsageError("--sizes names the largest size too; leave out --vocab-size")
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise UsageError(f"cannot read --sizes {text}: write numbers, as in 16000,32000,50000") from None
