"""The commands for single steps: count, build-vocab, tokenize, annotate, remove, verify, mix, export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretok.base.errors import IntegrityError, UsageError
from pretok.base.lock import hold
from pretok.base.records import to_json
from pretok.base.storage import atomic_open
from pretok.base.terminal import print_json
from pretok.base.units import plural
from pretok.commands.options import (
    Address,
    Inputs,
    Json,
    Setting,
    Settings,
    Shards,
    Workers,
    argument,
    option,
    option_of,
    read_recipe,
    refuse_unread,
    setting,
    settings_of,
    terminal,
)
from pretok.documents.audit import VERIFY_DOCUMENTS
from pretok.session import start_engine, work_of

if TYPE_CHECKING:
    from pretok.config import MixTable
    from pretok.shards.manifest import Manifest
    from pretok.stream.mix_job import MixRequest


def count(
    context: typer.Context,
    inputs: Annotated[
        list[str],
        argument("RECIPE.toml | NAME=GLOB | COUNTS", "A recipe, sources, or folders of counts to add up."),
    ],
    *,
    out: Setting = setting("out"),
    vocab_pattern: Setting = setting("vocab.pattern"),
    vocab_sample: Setting = setting("vocab.sample"),
    sources_field: Settings = setting("sources.field"),
    sources_tokens: Settings = setting("sources.tokens"),
    sources_skip_damaged: bool | None = setting("sources.skip_damaged"),
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Count every word of the sources exactly, under OUT/counts; or add up finished counts of several corpora.

        pretok count it='data/it/*.jsonl.zst' --out italian

        pretok count italian/counts english/counts --out both

    `pretok build-vocab --counts` trains a vocabulary of any size and mix from the counts; it reads no text.
    """
    from pretok.vocab.counts.counts_file import FILE_NAME, load_counts

    given = settings_of(context)
    folders = [Path(value) for value in inputs if (Path(value) / FILE_NAME).exists()]
    if folders and (len(folders) < len(inputs) or given.keys() != {"out"}):
        raise UsageError("to add up counts, give folders of finished counts and --out DIR, nothing else")
    recipe = None if folders else read_recipe(inputs, given)  # before the engine, which takes seconds
    folder = recipe.out if recipe else given["out"]
    console = terminal(context, folder, recipe)
    with start_engine(workers, address, "pretok.vocab.counts.count_task", recipe) as engine:
        from pretok.vocab.counts.count_job import add_counts, run_count

        if recipe:
            counts = run_count(recipe, engine, console)
        else:
            finished = [load_counts(folder) for folder in folders]
            counts = add_counts(finished, folder / "counts", engine, console)
    for name, record in counts.records.items():
        text = f"{plural(record.documents, 'document')}, {plural(record.bytes, 'byte')} of text"
        console.notice(f"{name}: {text} counted")
    if json:
        print_json({"sources": to_json(counts.records), "left_out": to_json(counts.left_out)})


def build_vocab(
    context: typer.Context,
    inputs: Inputs,
    *,
    out: Setting = setting("out"),
    vocab_size: Setting = setting("vocab.size"),
    vocab_sizes: Settings = setting("vocab.sizes"),
    vocab_pattern: Setting = setting("vocab.pattern"),
    vocab_weights: Setting = setting("vocab.weights"),
    vocab_extend: Setting = setting("vocab.extend"),
    vocab_add: Setting = setting("vocab.add"),
    sources_field: Settings = setting("sources.field"),
    sources_tokens: Settings = setting("sources.tokens"),
    sources_skip_damaged: bool | None = setting("sources.skip_damaged"),
    counts: Annotated[
        Path | None,
        option(
            "--counts",
            "Train on these counts of `pretok count`. No text is read; INPUTS only name the sources.",
            "DIR",
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        option("--compare", "Compare with this tokenizer.json in the report. May be repeated.", "FILE"),
    ] = None,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Train a byte-level BPE vocabulary on exact counts of all words, under OUT/vocab, with a report.

        pretok build-vocab it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --weights it=0.9,en=0.1

    The merges are those that Hugging Face tokenizers would make. If the command is stopped, run it again: finished
    counts are kept. --sizes also writes smaller vocabularies, under OUT/vocab/SIZE.
    """
    from pretok.vocab.build_vocab_job import REPORT_FILE, refuse_short, run_build_vocab
    from pretok.vocab.counts.counts_file import load_counts
    from pretok.vocab.report import sources_table

    given = settings_of(context)
    if counts:
        refuse_unread(context, "with --counts, which reads no text", "sources_field", "sources_tokens")
    recipe = read_recipe(inputs, given)
    console = terminal(context, recipe.out, recipe)
    known = load_counts(counts) if counts else None
    with start_engine(workers, address, "pretok.vocab.counts.count_task", recipe) as engine:
        report = run_build_vocab(recipe, engine, console, compare or [], known)
    if json:
        print_json(to_json(report))
    else:
        console.show(sources_table(report))
        console.notice(f"the whole report is in {recipe.vocab_dir / REPORT_FILE}")
    refuse_short(report, recipe.vocab)


def tokenize(
    context: typer.Context,
    inputs: Inputs,
    *,
    append: Annotated[
        list[str] | None,
        option(
            "--append", "Add these inputs to a finished source, as new shards. May be repeated.", "NAME=GLOB"
        ),
    ] = None,
    out: Setting = setting("out"),
    vocab_path: Setting = setting("vocab.path"),
    vocab_eod: Setting = setting("vocab.eod"),
    sources_field: Settings = setting("sources.field"),
    sources_tokens: Settings = setting("sources.tokens"),
    sources_keep: Settings = setting("sources.keep"),
    sources_skip_damaged: bool | None = setting("sources.skip_damaged"),
    shards_val_fraction: Setting = setting("shards.val_fraction"),
    shards_duplicates: Setting = setting("shards.duplicates"),
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Tokenize sources into memory-mapped shards with exact counts, under OUT/shards.

        pretok tokenize it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --workers 16

        pretok tokenize it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work --append it='2026/*.jsonl.zst'

    If the command is stopped, run it again: finished files are kept. To add a source to finished shards, name it with
    the others. To add text to a source, give --append and all other arguments as before.
    """
    from pretok.shards.manifest import FILE_NAME, load_manifest

    given = settings_of(context)
    recipe = read_recipe(inputs, given, append or ())
    shards = recipe.shards_dir
    before = load_manifest(shards).fingerprint if (shards / FILE_NAME).exists() else None
    console = terminal(context, recipe.out, recipe)
    with start_engine(workers, address, "pretok.shards.tokenize_task", recipe) as engine:
        from pretok.documents.audit.totals import show_stats
        from pretok.steps import tokenize_step

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
    by: Annotated[
        str,
        option(
            "--by",
            "The key: columns of the view `documents` of pretok query, such as id, hash, url or file,position.",
            "COLUMN,...",
        ),
    ],
    *,
    name: Annotated[
        str,
        option("--name", "Name of this set of columns. An existing set with this name is replaced.", "NAME"),
    ] = "notes",
    columns: Annotated[
        str | None, option("--columns", "Columns to add. Default: all but the key.", "NAME,...")
    ] = None,
    json: Json = False,
) -> None:
    """Add columns from files to the documents of finished shards. Tokens and the ledger stay as they are.

        pretok annotate work/shards scores/*.parquet --by id --name quality

        pretok annotate work/shards topics.jsonl.zst --by file,position --name topics --columns topic

    A document without a row gets null, and false in the column NAME_matched. Rows without a document are counted.
    """
    from pretok.documents.annotate.annotate_job import AnnotateRequest, run_annotate, show_joined

    console = terminal(context, work_of(shards))
    wanted = None if columns is None else tuple(columns.split(","))
    joined = run_annotate(AnnotateRequest(shards, tuple(files), tuple(by.split(",")), name, wanted), console)
    if json:
        from pretok.shards.annotations import annotations_data

        print_json(annotations_data(joined))
    else:
        show_joined(joined, console)


def remove(
    context: typer.Context,
    shards: Shards,
    reason: Annotated[
        str,
        option("--reason", "Reason. It is recorded with the date in the ledger and the manifest.", "TEXT"),
    ],
    *,
    where: Annotated[
        str | None,
        option(
            "--where",
            "Remove the documents that meet this SQL condition on the columns of the view `documents`.",
            "CONDITION",
        ),
    ] = None,
    ids: Annotated[
        Path | None,
        option(
            "--ids",
            "Remove the documents in this file, one per line: a hash, a kept `id` or FILE:LINE.",
            "FILE",
        ),
    ] = None,
    missing_ok: Annotated[
        bool,
        option(
            "--missing-ok",
            "Ignore lines of --ids without a document. Without it they are listed and nothing is removed.",
        ),
    ] = False,
    all: Annotated[
        bool, option("--all", "Allow a condition that matches every document of a source.")
    ] = False,
    dry_run: Annotated[
        bool, option("--dry-run", "Show what would be removed and which mixes read it. Change nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Remove documents, and every copy of their texts, from finished shards. All other bits stay the same.

        pretok remove work/shards --where "url like 'https://example.org/%'" --reason 'opted out' --dry-run

        pretok remove work/shards --ids forget.txt --reason 'request 17'

    The tokens are overwritten with end-of-document tokens, which carry no loss: mixes stay valid and runs continue.
    Inputs that hold the same texts later are rejected. If the command is stopped, run it again to finish.
    """
    from pretok.documents.removal.remove_job import RemoveRequest, run_remove, show_removed
    from pretok.documents.removal.remove_job import dry_run as preview

    if ids is None:
        refuse_unread(context, "without --ids", "missing_ok")
    if where is None:
        refuse_unread(context, "without --where", "all")
    request = RemoveRequest(shards, reason, where, ids, missing_ok, all)
    console = terminal(context, None if dry_run else work_of(shards))
    report = preview(request) if dry_run else run_remove(request, console)
    if json:
        print_json(report)
    else:
        show_removed(report, request, console, done=not dry_run)


def verify(
    context: typer.Context,
    shards: Shards,
    *,
    sample: Annotated[
        int, option("--sample", "Number of documents to decode and encode again.", "N", min=0)
    ] = VERIFY_DOCUMENTS,
    full: Annotated[bool, option("--full", "Decode and encode every document again.")] = False,
    removed: Annotated[
        bool, option("--removed", "Decode every document and look for texts that were removed.")
    ] = False,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Check shards against their manifest: sizes, hashes, ids and totals; and encode a sample of documents again.

        pretok verify work/shards --full

    If a WORK folder is named, its counts and mix.json are checked too.
    """
    from pretok.documents.audit.verify_job import notes, run_verify, verify_report
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


OldMix = Annotated[
    Path | None,
    option(
        "--continue",
        "Start with the sequences of this mix up to --at, and repeat none of them.",
        "OLD.json",
    ),
]
At = Annotated[
    str | None,
    option(
        "--at",
        "Where to continue: a number of sequences, or a run (its newest checkpoint).",
        "POSITION | RUN",
    ),
]
Materialize = Annotated[
    Path | None,
    option(
        "--materialize",
        "Also write the sequences to this folder, as shards in the order of the mix.",
        "DIR",
    ),
]


def mix(
    context: typer.Context,
    work: Annotated[
        Path,
        argument("WORK | SHARDS | RECIPE.toml", "Folder of results, its shards, or a recipe with [mix]."),
    ],
    *,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "File to write. Without it the plan is shown, and only side files of classes and packing are written.",
            "MIX.json",
        ),
    ] = None,
    mix_weights: Setting = setting("mix.weights"),
    mix_tokens: Setting = setting("mix.tokens"),
    mix_seq_len: Setting = setting("mix.seq_len"),
    mix_max_epochs: Setting = setting("mix.max_epochs"),
    mix_pack: Setting = setting("mix.pack"),
    mix_stages: Settings = setting("mix.stages"),
    mix_classes: Settings = setting("mix.classes"),
    continue_: OldMix = None,
    at: At = None,
    materialize: Materialize = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Define the exact order of the training sequences. The file is small for any number of tokens.

        pretok mix work/shards --out work/mix.json --weights it=0.9,en=0.1 --tokens 1.2T

        pretok mix recipe.toml --out work/mix.json

        pretok mix work/shards --out work/mix.json --stage 1.2T:it=0.9,en=0.1 --stage 3T:it=0.5,en=0.5

        pretok mix work/shards --out work/mix2.json --continue work/mix.json --at run --stage 300B:it=0.5,en=0.5

    A recipe has more settings: repeat and seed in [mix], and `learn` of each source of conversations.
    """
    from pretok.shards.manifest import load_manifest
    from pretok.stream.mix_job import plan_mix, run_mix, show_mix
    from pretok.stream.tapes import FOLDER

    given = settings_of(context)
    if materialize is None:
        refuse_unread(context, "without --materialize", "workers")
    if materialize and not out:
        raise UsageError("--materialize writes the mix too: say where with --out")
    if (continue_ is None) != (at is None):
        raise UsageError("--continue OLD.json needs --at, a position or a run, and --at needs --continue")
    shards, table, learn = _mixed(work, given, continue_)
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


def _mixed(
    work: Path, given: dict[str, Any], continued: Path | None
) -> tuple[Path, MixTable, Mapping[str, tuple[str, ...]]]:
    """Return (the shards, [mix], kinds that each source learns) of a recipe, or of a folder and options."""
    from pretok.config import MixTable, make_mix
    from pretok.shards.manifest import shards_of
    from pretok.stream.mix_file import load_mix

    if work.suffix == ".toml":
        recipe = read_recipe([str(work)], given)
        return recipe.shards_dir, recipe.mix or MixTable(), recipe.learned
    if continued is not None:
        given.setdefault("mix.seq_len", load_mix(continued).seq_len)
    settings = {dotted.removeprefix("mix."): value for dotted, value in given.items()}
    table = make_mix(settings, "", {dotted: option_of(dotted) for dotted in given})
    return shards_of(work), table, {}


def _mix_request(
    table: MixTable,
    learn: Mapping[str, tuple[str, ...]],
    manifest: Manifest,
    continued: Path | None,
    at: str | None,
) -> MixRequest:
    """Make a request for a new mix, or for one that continues another.

    at: a position, or the folder of a run.
    """
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
    to: Annotated[str, option("--to", "Target format.", "megatron|olmo")],
    *,
    mix: Annotated[
        Path | None,
        option("--mix", "Mix that sets the share of each source. Default: natural proportions.", "MIX.json"),
    ] = None,
    stage: Annotated[
        int | None,
        option("--stage", "Stage of the mix to export, from 1. Needed if it has several.", "N", min=0),
    ] = None,
    out: Annotated[
        Path | None, option("--out", "File (default: standard output), or the folder of token files.", "PATH")
    ] = None,
    workers: Workers = None,
    address: Address = None,
) -> None:
    """Write the files that another trainer needs to read the shards.

        pretok export work/shards --mix work/mix.json --to megatron --out blend.json

        pretok export work/shards --to olmo --out olmo

    megatron: the file for --per-split-data-args-path. olmo: token files in its format, listed in export.json. These
    trainers shuffle; docs/trainers.md shows how to keep the order of a mix.
    """
    from json import dumps as to_text  # other commands here have an option `json`

    if mix is None:
        refuse_unread(context, "without --mix", "stage")
    if to == "megatron":
        refuse_unread(context, "with --to megatron, which copies no tokens", "address")
    from pretok.documents.export.text import learned_kinds, megatron_blend, notices, source_tokens
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
    from pretok.documents.export import EXPORT_FILE
    from pretok.documents.export.export_job import run_export

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
