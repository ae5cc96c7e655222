"""The commands for single steps: count, build-vocab, tokenize, annotate, remove, verify, mix, export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretok.audit import VERIFY_DOCUMENTS
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.lock import hold
from pretok.base.records import to_json
from pretok.base.storage import atomic_open
from pretok.base.terminal import print_json
from pretok.base.units import plural
from pretok.commands.options import (
    Address,
    Given,
    Inputs,
    Json,
    Shards,
    Workers,
    argument,
    option_of,
    read_recipe,
    refuse_unread,
    start_engine,
    takes,
    terminal,
    work_of,
)

if TYPE_CHECKING:
    from pretok.config import MixTable
    from pretok.shards.manifest import Manifest
    from pretok.stream.mix_job import MixRequest


@takes("out", "vocab.pattern", "vocab.sample", "sources.field")
def count(
    context: typer.Context,
    inputs: Annotated[
        list[str],
        argument("RECIPE.toml | NAME=GLOB | COUNTS", "A recipe, sources, or folders of counts to add up."),
    ],
    *,
    given: Given,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Count every word of the sources exactly, under OUT/counts; or add up finished counts of several corpora.

        pretok count it='data/it/*.jsonl.zst' --out italian

        pretok count italian/counts english/counts --out both

    `pretok build-vocab --counts` trains a vocabulary of any size and mix from the counts; it reads no text.
    """
    from pretok.counts.counts_file import FILE_NAME, load_counts

    folders = [Path(value) for value in inputs if (Path(value) / FILE_NAME).exists()]
    if folders and (len(folders) < len(inputs) or given.keys() != {"out"}):
        raise UsageError("to add up counts, give folders of finished counts and --out DIR, nothing else")
    recipe = None if folders else read_recipe(inputs, given)  # before the engine, which takes seconds
    out = recipe.out if recipe else given["out"]
    console = terminal(context, out, recipe)
    with start_engine(workers, address, "pretok.counts.task") as engine:
        from pretok.counts.job import add_counts, refuse_partial, run_count

        if recipe:
            counts = run_count(recipe, engine, console)
        else:
            finished = [load_counts(folder) for folder in folders]
            counts = add_counts(finished, out / "counts", engine, console)
    for name, record in counts.records.items():
        text = f"{plural(record.documents, 'document')}, {plural(record.bytes, 'byte')} of text"
        console.notice(f"{name}: {text} counted")
    if json:
        print_json({"sources": to_json(counts.records), "failed": to_json(counts.failed)})
    refuse_partial("the counts are made", counts.failed, str(counts.folder))


VOCAB_KEYS = ("vocab.size", "vocab.sizes", "vocab.pattern", "vocab.weights", "vocab.extend", "vocab.add")


@takes("out", *VOCAB_KEYS, "sources.field")
def build_vocab(
    context: typer.Context,
    inputs: Inputs,
    *,
    given: Given,
    counts: Path | None = None,
    compare: list[Path] | None = None,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Train a byte-level BPE vocabulary on exact counts of all words, under OUT/vocab, with a report.

        pretok build-vocab it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --weights it=0.9,en=0.1

    The merges are those that Hugging Face tokenizers would make. If the command is stopped, run it again: finished
    counts are kept. --sizes also writes smaller vocabularies, under OUT/vocab/SIZE.

    --counts DIR: Train on these counts of `pretok count`. No text is read; INPUTS only name the sources.
    --compare FILE: Compare with this tokenizer.json in the report. May be repeated.
    """
    from pretok.counts.counts_file import load_counts
    from pretok.counts.job import refuse_partial
    from pretok.vocab.job import REPORT_FILE, refuse_short, run_build_vocab
    from pretok.vocab.report import sources_table

    if counts:
        refuse_unread(context, "with --counts, which reads no text", "sources_field")
    recipe = read_recipe(inputs, given)
    console = terminal(context, recipe.out, recipe)
    known = load_counts(counts) if counts else None
    with start_engine(workers, address, "pretok.counts.task") as engine:
        report = run_build_vocab(recipe, engine, console, compare or [], known)
    if json:
        print_json(to_json(report))
    else:
        console.show(sources_table(report))
        console.notice(f"the whole report is in {recipe.vocab_dir / REPORT_FILE}")
    stale = f"{counts or recipe.counts_dir} and {recipe.vocab_dir}"
    refuse_partial("the vocabulary is made", report.failed, stale)
    refuse_short(report, recipe.vocab)


TOKENIZE_KEYS = ("vocab.path", "vocab.eod", "sources.field", "sources.keep")


@takes("out", *TOKENIZE_KEYS, "shards.val_fraction", "shards.duplicates")
def tokenize(
    context: typer.Context,
    inputs: Inputs,
    *,
    append: list[str] | None = None,
    given: Given,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Tokenize sources into memory-mapped shards with exact counts, under OUT/shards.

        pretok tokenize it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --workers 16

        pretok tokenize it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --append it='2026/*.jsonl.zst'

    If the command is stopped, run it again: finished files are kept. To add a source to finished shards, name it with
    the others. To add text to a source, give --append and all other arguments as before.

    --append NAME=GLOB: Add these inputs to a finished source, as new shards. May be repeated.
    """
    from pretok.shards.manifest import FILE_NAME, load_manifest

    recipe = read_recipe(inputs, given, append or ())
    shards = recipe.shards_dir
    before = load_manifest(shards).fingerprint if (shards / FILE_NAME).exists() else None
    console = terminal(context, recipe.out, recipe)
    with start_engine(workers, address, "pretok.shards.task") as engine:
        from pretok.audit.totals import show_stats
        from pretok.commands.steps import tokenize_step

        tokenize_step(recipe, engine, console)
    manifest = load_manifest(shards)
    totals = manifest.totals
    if manifest.fingerprint == before:
        counts = f"{plural(totals.tokens, 'token')} of {plural(totals.documents, 'document')}"
        console.show(f"{shards}: {counts}, complete and unchanged", result=not json)
    else:
        show_stats(shards, console, result=not json)
    if json:
        print_json(totals)


def annotate(
    context: typer.Context,
    shards: Shards,
    files: Annotated[list[str], argument("FILES ...", "JSON Lines or Parquet (.zst, .gz), or globs.")],
    by: str,
    name: str = "notes",
    columns: str | None = None,
    json: Json = False,
) -> None:
    """Add columns from files to the documents of finished shards. Tokens and the ledger stay as they are.

        pretok annotate work/shards scores/*.parquet --by id --name quality

        pretok annotate work/shards topics.jsonl.zst --by file,position --name topics --columns topic

    A document without a row gets null, and false in the column NAME_matched. Rows without a document are counted.

    --by COLUMN,...: The key: columns of the view `documents` of pretok query, such as id, hash, url or file,position.
    --name NAME: Name of this set of columns. An existing set with this name is replaced.
    --columns NAME,...: Columns to add. Default: all but the key.
    """
    from pretok.annotate.job import Request, run_annotate, tell_joined

    console = terminal(context, work_of(shards))
    wanted = None if columns is None else tuple(columns.split(","))
    joined = run_annotate(Request(shards, tuple(files), tuple(by.split(",")), name, wanted), console)
    if json:
        from pretok.shards.annotations import annotations_data

        print_json(annotations_data(joined))
    else:
        tell_joined(joined, console)


def remove(
    context: typer.Context,
    shards: Shards,
    reason: str,
    where: str | None = None,
    ids: Path | None = None,
    missing_ok: bool = False,
    all: bool = False,
    dry_run: bool = False,
    json: Json = False,
) -> None:
    """Remove documents, and every copy of their texts, from finished shards. All other bits stay the same.

        pretok remove work/shards --where "url like 'https://example.org/%'" --reason 'opted out' --dry-run

        pretok remove work/shards --ids forget.txt --reason 'request 17'

    The tokens are overwritten with end-of-document tokens, which carry no loss: mixes stay valid and runs continue.
    Inputs that hold the same texts later are rejected. If the command is stopped, run it again to finish.

    --reason TEXT: Reason. It is recorded with the date in the ledger and the manifest.
    --where CONDITION: Remove the documents that meet this SQL condition on the columns of the view `documents`.
    --ids FILE: Remove the documents in this file, one per line: a hash, a kept `id` or FILE:LINE.
    --missing-ok: Ignore lines of --ids without a document. Without it they are listed and nothing is removed.
    --all: Allow a condition that matches every document of a source.
    --dry-run: Show what would be removed and which mixes read it. Change nothing.
    """
    from pretok.removal.job import Request, run_remove, tell_removed
    from pretok.removal.job import dry_run as preview

    if ids is None:
        refuse_unread(context, "without --ids", "missing_ok")
    if where is None:
        refuse_unread(context, "without --where", "all")
    request = Request(shards, reason, where, ids, missing_ok, all)
    console = terminal(context, None if dry_run else work_of(shards))
    report = preview(request) if dry_run else run_remove(request, console)
    if json:
        print_json(report)
    else:
        tell_removed(report, request, console, done=not dry_run)


def verify(
    context: typer.Context,
    shards: Shards,
    sample: int = VERIFY_DOCUMENTS,
    full: bool = False,
    removed: bool = False,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Check shards against their manifest: sizes, hashes, ids and totals; and encode a sample of documents again.

        pretok verify work/shards --full

    If a WORK folder is named, its counts and mix.json are checked too.

    --sample: Number of documents to decode and encode again.
    --full: Decode and encode every document again.
    --removed: Decode every document and look for texts that were removed.
    """
    from pretok.audit.verify_job import notes, run_verify, verify_report
    from pretok.shards.manifest import load_manifest

    if full:
        refuse_unread(context, "with --full, which takes every document", "sample")
    if load_manifest(shards).materialized is not None:
        refuse_unread(context, "of a materialized mix, which has no documents", "sample", "full")
    console = terminal(context, work_of(shards))
    with start_engine(workers, address) as engine:
        manifest, problems = run_verify(shards, None if full else sample, engine, console, removed=removed)
    for sentence in notes(manifest):
        console.notice(sentence)
    if json:
        print_json(verify_report(manifest, problems))
    if problems:
        repair = (
            f"to repair, restore the files from a copy, or delete {shards} and run the command that made it"
        )
        heading = f"{plural(len(problems), 'problem')} in {shards}:"
        raise IntegrityError("\n".join([heading, *(f"  {problem}" for problem in problems), repair]))
    totals = manifest.totals
    again = totals.documents if full else min(sample, totals.documents)
    if manifest.materialized is not None:
        again = 0  # its documents are sequences of a mix
    console.show(
        f"{shards}: {plural(len(manifest.shards), 'shard')} of {plural(totals.documents, 'document')} and "
        f"{plural(totals.tokens, 'token')} match the manifest: sizes, roots, ids and totals of all, "
        f"{plural(again, 'document')} encoded again (manifest {manifest.fingerprint}, root {manifest.root})",
        result=not json,
    )
    if removed:
        count = totals.removed.documents if totals.removed else 0
        console.notice(f"{shards}: no document has the text of one of the {count:,} removed documents")


MIX_KEYS = ("weights", "tokens", "seq_len", "max_epochs", "pack", "stages", "classes")


@takes(*(f"mix.{key}" for key in MIX_KEYS))
def mix(
    context: typer.Context,
    work: Annotated[
        Path,
        argument("WORK | SHARDS | RECIPE.toml", "Folder of results, its shards, or a recipe with [mix]."),
    ],
    out: Path | None = None,
    *,
    given: Given,
    continue_: Path | None = None,
    at: str | None = None,
    materialize: Path | None = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Define the exact order of the training sequences. The file is small for any number of tokens.

        pretok mix work/shards --out work/mix.json --weights it=0.9,en=0.1 --tokens 1.2T

        pretok mix recipe.toml --out work/mix.json

        pretok mix work/shards --out work/mix.json --stage 1.2T:it=0.9,en=0.1 --stage 3T:it=0.5,en=0.5

        pretok mix work/shards --out work/mix2.json --continue work/mix.json --at run --stage 300B:it=0.5,en=0.5

    A recipe has more settings: repeat and seed in [mix], and `learn` of each source of conversations.

    --out MIX.json: File to write. Without it the plan is shown, and only side files of classes and packing are written.
    --continue OLD.json: Start with the sequences of this mix up to --at, and repeat none of them.
    --at POSITION | RUN: Where to continue: a number of sequences, or a run (its newest checkpoint).
    --materialize DIR: Also write the sequences to this folder, as shards in the order of the mix.
    """
    from pretok.config import MixTable, make_mix
    from pretok.shards.manifest import load_manifest, shards_of
    from pretok.stream.mix_file import load_mix
    from pretok.stream.mix_job import plan_mix, run_mix, show_mix
    from pretok.stream.tapes import FOLDER

    if materialize is None:
        refuse_unread(context, "without --materialize", "workers")
    if materialize and not out:
        raise UsageError("--materialize writes the mix too: say where with --out")
    if (continue_ is None) != (at is None):
        raise UsageError("--continue OLD.json needs --at, a position or a run, and --at needs --continue")
    if work.suffix == ".toml":
        recipe = read_recipe([str(work)], given)
        shards, table, learn = recipe.shards_dir, recipe.mix or MixTable(), recipe.learned
    else:
        if continue_ is not None:
            given.setdefault("mix.seq_len", load_mix(continue_).seq_len)
        settings = {dotted.removeprefix("mix."): value for dotted, value in given.items()}
        table = make_mix(settings, "", {dotted: option_of(dotted) for dotted in given})
        shards, learn = shards_of(work), {}
    manifest, console = load_manifest(shards), terminal(context, out and work_of(out))
    request = _mix_request(table, learn, manifest, continue_, at)
    if out:
        report = run_mix(shards, out, request)
    else:
        report = plan_mix(manifest.sized(), request, continue_ and continue_.parent / FOLDER)[1]
    if json:
        print_json(report)
    else:
        show_mix(manifest, report, console)
    if out is None:
        console.notice("nothing was written; to write it, add --out MIX.json")
        return
    console.notice(f"{out}: {plural(report.sequences, 'sequence')}, {plural(report.tokens, 'token')}")
    if materialize:
        from pretok.stream.materialize import run_materialize

        with start_engine(workers, None) as engine:
            run_materialize(shards, out, materialize, engine, console)


def _mix_request(
    table: MixTable,
    learn: Mapping[str, tuple[str, ...]],
    manifest: Manifest,
    continued: Path | None,
    at: str | None,
) -> MixRequest:
    """A request for a new mix, or for one that continues another. at: a position, or the folder of a run."""
    from pretok.stream.continued import beginning, run_position
    from pretok.stream.mix_job import MixRequest
    from pretok.stream.segments import check_run

    if continued is None or at is None:
        return MixRequest(table, learn=learn)
    if table.model_fields_set & {"seed", "pack"}:
        raise UsageError("a mix that is continued keeps its seed and packing: leave them out")
    if not at.isdigit():
        check_run(Path(at))
    position = int(at) if at.isdigit() else run_position(Path(at), continued)
    after = beginning(manifest, continued, position, table.seq_len)
    return MixRequest(table.model_copy(update={"seed": after.seed}), after.split, after, learn)


def export(
    context: typer.Context,
    shards: Shards,
    to: str,
    mix: Path | None = None,
    stage: int | None = None,
    out: Path | None = None,
    workers: Workers = None,
    address: Address = None,
) -> None:
    """Write the files that another trainer needs to read the shards.

        pretok export work/shards --mix work/mix.json --to megatron --out blend.json

        pretok export work/shards --to olmo --out olmo

    megatron: the file for --per-split-data-args-path. olmo: token files in its format, listed in export.json. These
    trainers shuffle; docs/trainers.md shows how to keep the order of a mix.

    --to megatron|olmo: Target format.
    --mix MIX.json: Mix that sets the share of each source. Default: natural proportions.
    --stage: Stage of the mix to export, from 1. Needed if it has several.
    --out PATH: File (default: standard output), or the folder of token files.
    """
    from json import dumps as to_text  # other commands here have an option `json`

    if mix is None:
        refuse_unread(context, "without --mix", "stage")
    if to == "megatron":
        refuse_unread(context, "with --to megatron, which copies no tokens", "address")
    from pretok.export.text import learned_kinds, megatron_blend, notices, source_tokens
    from pretok.shards.manifest import load_manifest

    manifest = load_manifest(shards)
    learn, wanted = learned_kinds(manifest, mix), source_tokens(manifest, mix, stage)
    for notice in notices(manifest, mix, to, learn):
        terminal(context).notice(notice)
    if to == "megatron":
        text = to_text(megatron_blend(shards, mix, stage), indent=1) + "\n"
        if out is None:
            typer.echo(text, nl=False)
            return
        with hold(out, "export", beside=True), atomic_open(out, "w") as file:
            file.write(text)
        terminal(context).show(f"{out}: the {to} files for {shards}", result=True)
        return
    from pretok.export.job import EXPORT_FILE, run_export

    if to != "olmo":
        raise UsageError(
            f"cannot export to {to!r}; known are megatron, olmo. For what reads a mix in Python see docs/trainers.md"
        )
    if out is None:
        raise UsageError(f"files for {to} go into a folder: name it with --out")
    console = terminal(context, out)
    with start_engine(workers, address) as engine:
        written = run_export(manifest, out, wanted, engine, console, learn)
    files, tokens = plural(len(written.files), "file"), plural(written.tokens, "token")
    console.show(f"{out}: {files}, {tokens}, see {EXPORT_FILE}", result=True)
