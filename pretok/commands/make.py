"""The commands for single steps: count, build-vocab, tokenize, annotate, verify, mix, export."""

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
    option_of,
    read_recipe,
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
        list[str], typer.Argument(metavar="RECIPE.toml | NAME=GLOB ... | COUNTS ...", show_default=False)
    ],
    *,
    given: Given,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Count every word of the sources exactly, under OUT/counts, or add up finished counts of several corpora.

    From counts, `pretok build-vocab --counts` trains any size and mix without reading text again.

        pretok count it='data/it/*.jsonl.zst' --out italian

        pretok count italian/counts english/counts --out both
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


@takes(
    "out",
    *(f"vocab.{key}" for key in ("size", "sizes", "pattern", "weights", "extend", "add")),
    "sources.field",
)
def build_vocab(
    context: typer.Context,
    inputs: Inputs,
    *,
    given: Given,
    counts: Annotated[
        Path | None,
        typer.Option(help="Use these counts of `pretok count`; no text is read, INPUTS only name sources."),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="Compare with this tokenizer.json in the report; may be repeated."),
    ] = None,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Train a byte-level BPE vocabulary on exact counts of all words, with a report, under OUT/vocab.

    The merges are those that Hugging Face tokenizers would make. After a kill run it again: what is counted is kept.

        pretok build-vocab it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --weights it=0.9,en=0.1

    --sizes also writes smaller vocabularies, each the first entries of this one, under OUT/vocab/SIZE.
    """
    from pretok.counts.counts_file import load_counts
    from pretok.counts.job import refuse_partial
    from pretok.vocab.job import REPORT_FILE, refuse_short, run_build_vocab
    from pretok.vocab.report import sources_table

    recipe = read_recipe(inputs, given)
    console = terminal(context, recipe.out, recipe)
    with start_engine(workers, address, "pretok.counts.task") as engine:
        report = run_build_vocab(
            recipe, engine, console, compare or [], load_counts(counts) if counts else None
        )
    if json:
        print_json(to_json(report))
    else:
        console.show(sources_table(report))
        console.notice(f"the whole report is in {recipe.vocab_dir / REPORT_FILE}")
    stale = f"{counts or recipe.counts_dir} and {recipe.vocab_dir}"
    refuse_partial("the vocabulary is made", report.failed, stale)
    refuse_short(report, recipe.vocab)


@takes(
    "out",
    "vocab.path",
    "vocab.eod",
    "sources.field",
    "sources.keep",
    "shards.val_fraction",
    "shards.duplicates",
)
def tokenize(
    context: typer.Context,
    inputs: Inputs,
    *,
    append: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=GLOB", help="Add inputs to a finished source, as new shards. May be repeated."
        ),
    ] = None,
    given: Given,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Tokenize sources into memory-mapped shards with exact counts, under OUT/shards.

    After a kill run it again: what is sealed is kept. A new NAME=GLOB adds a source to a finished output.

        pretok tokenize it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --workers 16

    --append adds to a source; give all other arguments as before.

        pretok tokenize it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --append it='2026/*.jsonl.zst'
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
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES ...",
            help="Tables to join: JSON Lines or Parquet files (.zst, .gz), or globs.",
            show_default=False,
        ),
    ],
    by: Annotated[
        str,
        typer.Option(
            metavar="COLUMN,...",
            help="The key, as the view `documents` of pretok query names it: id, hash, url, file,position, source,id.",
        ),
    ],
    name: Annotated[
        str, typer.Option(help="Name of this set of columns; a set of the same name is replaced.")
    ] = "notes",
    columns: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Columns to join. Default: all but the key."),
    ] = None,
    json: Json = False,
) -> None:
    """Join new columns to the documents of finished shards, as a second ledger beside the first.

        pretok annotate work/shards scores/*.parquet --by id --name quality

        pretok annotate work/shards topics.jsonl.zst --by file,position --name topics --columns topic

    No token and no ledger is rewritten. A document without a row gets null and `NAME_matched` false; rows without a
    document are listed in a file.
    """
    from pretok.annotate.job import Request, run_annotate, tell_joined

    console = terminal(context, work_of(shards))
    wanted = None if columns is None else tuple(columns.split(","))
    request = Request(shards, tuple(files), tuple(by.split(",")), name, wanted)
    joined = run_annotate(request, console)
    if json:
        print_json(joined.record)
    else:
        tell_joined(joined, console)


def remove(
    context: typer.Context,
    shards: Shards,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Reason; ledger and manifest record it with the date.")
    ],
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Remove the documents that meet this condition: SQL over the columns of the view `documents`.",
        ),
    ] = None,
    ids: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Remove the documents that this file names, one per line: a hash, a kept `id` or FILE:LINE.",
        ),
    ] = None,
    missing_ok: Annotated[
        bool,
        typer.Option(
            "--missing-ok", help="Ignore names without a document. Default: list them and remove nothing."
        ),
    ] = False,
    all: Annotated[
        bool, typer.Option("--all", help="Allow a condition that matches every document of a source.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be removed and which mixes read it; change nothing."),
    ] = False,
    json: Json = False,
) -> None:
    """Remove documents, and every copy of their texts, from finished shards; all else stays the same, bit for bit.

    pretok remove work/shards --where "url like 'https://example.org/%'" --reason 'opted out' --dry-run

    pretok remove work/shards --ids forget.txt --reason 'request 17'

    End-of-document tokens, which are not learned, take their place: mixes stay valid and runs continue. The same texts
    are rejected when inputs are tokenized again. If a removal is stopped, run the same command again to finish it.
    """
    from pretok.removal.job import Request, run_remove, tell_removed
    from pretok.removal.job import dry_run as look

    request = Request(shards, reason, where, ids, missing_ok, all)
    console = terminal(context, None if dry_run else work_of(shards))
    report = look(request) if dry_run else run_remove(request, console)
    if json:
        print_json(report)
    else:
        tell_removed(report, request, console, done=not dry_run)


def verify(
    context: typer.Context,
    shards: Shards,
    sample: Annotated[
        int, typer.Option(min=0, help="Number of documents to decode and encode again.")
    ] = VERIFY_DOCUMENTS,
    full: Annotated[bool, typer.Option("--full", help="Decode and encode every document again.")] = False,
    removed: Annotated[
        bool, typer.Option("--removed", help="Decode every document and look for texts that were removed.")
    ] = False,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Check shards against their manifest: sizes, roots, ids, totals, and documents encoded again.

    pretok verify work/shards --full

    In a WORK folder, counts and mix.json are checked too.
    """
    from pretok.audit.verify_job import notes, run_verify, verify_report

    console = terminal(context, work_of(shards))
    with start_engine(workers, address) as engine:
        manifest, problems = run_verify(shards, None if full else sample, engine, console, removed=removed)
    for sentence in notes(manifest):
        console.notice(sentence)
    if json:
        print_json(verify_report(manifest, problems))
    if problems:
        repair = f"to repair, restore the files from a copy, or delete {shards} and run what made it again"
        raise IntegrityError(
            "\n".join(
                [f"{plural(len(problems), 'problem')} in {shards}:", *(f"  {p}" for p in problems), repair]
            )
        )
    totals = manifest.totals
    again = totals.documents if full else min(sample, totals.documents)
    if manifest.materialized is not None:
        again = 0  # its documents are sequences of a mix
    console.show(
        f"{shards}: {plural(len(manifest.shards), 'shard')} of {plural(totals.documents, 'document')} and "
        f"{plural(totals.tokens, 'token')} are as sealed: sizes, roots, ids and totals of all, "
        f"{plural(again, 'document')} encoded again (manifest {manifest.fingerprint}, root {manifest.root})",
        result=not json,
    )
    if removed:
        count = totals.removed.documents if totals.removed else 0
        console.notice(f"{shards}: no document has the text of one of the {count:,} removed documents")


@takes(*(f"mix.{key}" for key in ("weights", "tokens", "seq_len", "max_epochs", "pack", "stages", "classes")))
def mix(
    context: typer.Context,
    work: Annotated[
        Path,
        typer.Argument(
            metavar="WORK | SHARDS | RECIPE.toml",
            help="Folder of results, its shards, or a recipe with [mix].",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="MIX.json",
            help="File to write. Without it, only side files of classes and packing are written.",
        ),
    ] = None,
    *,
    given: Given,
    continued: Annotated[
        Path | None,
        typer.Option("--continue", metavar="OLD.json", help="Continue this mix from the position of --at."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION | RUN",
            help="Position to continue at: a number of sequences, or a run (its newest checkpoint).",
        ),
    ] = None,
    materialize: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also write the sequences to this folder, as shards in the order of the mix."
        ),
    ] = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Fix which sequences of which source come in which order, exactly. The file is small, whatever the budget.

    pretok mix work/shards --out work/mix.json --weights it=0.9,en=0.1 --tokens 1.2T

    pretok mix recipe.toml --out work/mix.json

    pretok mix work/shards --out work/mix.json --stage 1.2T:it=0.9,en=0.1 --stage 3T:it=0.5,en=0.5

    pretok mix work/shards --out work/mix2.json --continue work/mix.json --at run --stage 300B:it=0.5,en=0.5

    The [mix] of a recipe has more settings, such as repeat and seed; what is learned of conversations is set in
    their sources.
    """
    from pretok.config import MixTable, make_mix
    from pretok.shards.manifest import load_manifest, shards_of
    from pretok.stream.mix_file import load_mix
    from pretok.stream.mix_job import plan_mix, run_mix, show_mix
    from pretok.stream.tapes import FOLDER

    if materialize and not out:
        raise UsageError("--materialize writes the mix too: say where with --out")
    if (continued is None) != (at is None):
        raise UsageError("--continue OLD.json needs --at, a position or a run, and --at needs --continue")
    if work.suffix == ".toml":
        recipe = read_recipe([str(work)], given)
        shards, table, learn = recipe.shards_dir, recipe.mix or MixTable(), recipe.learned
    else:
        if continued is not None:
            given.setdefault("mix.seq_len", load_mix(continued).seq_len)
        settings = {dotted.removeprefix("mix."): value for dotted, value in given.items()}
        table = make_mix(settings, "", {dotted: option_of(dotted) for dotted in given})
        shards, learn = shards_of(work), {}
    manifest, console = load_manifest(shards), terminal(context, out and work_of(out))
    request = _mix_request(table, learn, manifest, continued, at)
    if out:
        report = run_mix(shards, out, request)
    else:
        report = plan_mix(manifest.sized(), request, continued and continued.parent / FOLDER)[1]
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
    to: Annotated[
        str,
        typer.Option(metavar="megatron|olmo", help="Target format.", show_default=False),
    ],
    mix: Annotated[
        Path | None,
        typer.Option(metavar="MIX.json", help="Mix that sets the shares. Default: natural proportions."),
    ] = None,
    stage: Annotated[int | None, typer.Option(min=1, help="Stage of the mix to export, from 1.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File (default: standard output), or folder for token files."),
    ] = None,
    workers: Workers = None,
    address: Address = None,
) -> None:
    """Write what another trainer needs to read the shards.

        pretok export work/shards --mix work/mix.json --to megatron --out blend.json

        pretok export work/shards --to olmo --out olmo

    megatron: the file for --per-split-data-args-path. olmo: files in its format, listed in export.json. These trainers
    shuffle; docs/trainers.md says how they and others can keep the order of a mix.
    """
    from json import dumps as to_text  # other commands here have an option `json`

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
        terminal(context).notice(f"{out}: what {to} needs to read {shards}")
        return
    from pretok.export.job import EXPORT_FILE, run_export

    if to != "olmo":
        raise UsageError(
            f"cannot export to {to!r}; known are megatron, olmo. For what reads a mix in Python see docs/trainers.md"
        )
    if out is None:
        raise UsageError(f"files for {to} are written into a folder: say which with --out")
    console = terminal(context, out)
    with start_engine(workers, address) as engine:
        written = run_export(manifest, out, wanted, engine, console, learn)
    files, tokens = plural(len(written.files), "file"), plural(written.tokens, "token")
    console.notice(f"{out}: {files}, {tokens}, see {EXPORT_FILE}")
