"""The commands that show documents, tokens and rows, or prove them: inspect, query, trace, certify."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain, islice
from json import dumps as to_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretok.base.console import table
from pretok.base.errors import UsageError
from pretok.base.kinds import KINDS, LEARNED, TEXT
from pretok.base.terminal import print_json
from pretok.base.units import human_bytes, plural
from pretok.base.visible import visible, visible_json
from pretok.commands.options import Json, Shards, WorkOrShards, parse_size, terminal

if TYPE_CHECKING:
    from pretok.audit.documents import Inspection
    from pretok.base.console import Console
    from pretok.shards.manifest import Manifest

MOST = 10
"""Documents that are named where several match."""
SEQUENCES = 3
"""Sequences of a step that are shown."""


def inspect(
    context: typer.Context,
    shards: Shards,
    doc: Annotated[
        str | None,
        typer.Option(
            metavar="ID | HASH | FILE:LINE | NUMBER",
            help="The document: kept `id`, hash, or place in the input; with --source its number, from 0.",
        ),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Source to look in. Default: all.")] = None,
    split: Annotated[str | None, typer.Option(help="Split: train or val.", show_default="train")] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Find a document that contains this text.")
    ] = None,
    within: Annotated[str, typer.Option(help="Most text that --search decodes, in bytes.")] = "1G",
    random: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Show N documents drawn at random.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --random.")] = 0,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Show how the vocabulary splits this text into tokens.")
    ] = None,
    mix: Annotated[
        Path | None,
        typer.Option(metavar="MIX | RUN", help="Show sequences of a mix.json or of a training run."),
    ] = None,
    position: Annotated[
        int | None, typer.Option(help="With --mix: show the sequence at this position, from 0.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="With --mix RUN: show what this step read, from 1.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a document as its tokens, and the file and line or row it came from; or what the model saw.

    Each token stands in brackets, round ones where a conversation is not learned.

    pretok inspect work/shards --doc data/it/a.jsonl.zst:1742

    pretok inspect work/shards --source it --doc 17

    pretok inspect work/shards --search 'mare salato' --within 10G

    pretok inspect work/shards --random 3 --seed 7

    pretok inspect work/shards --mix run --step 81

    pretok inspect work --text "Il mare è salato"
    """
    from pretok.audit.documents import run_inspect
    from pretok.audit.find import find_named, random_places
    from pretok.shards.manifest import load_manifest

    console = terminal(context)
    if sum(way is not None for way in (doc, search, random, mix, text)) != 1 and (doc or source is None):
        raise UsageError("name a document by one of --doc, --search, --random and --mix, or give a --text")
    if mix is None and (position is not None or step is not None):
        raise UsageError("--position and --step are of a mix or a run: name it with --mix")
    if mix is not None:
        _show_sequences(mix, shards, position, step, json, console)
        return
    if text is not None:
        _show_text(shards, text, json, console)
        return
    manifest = load_manifest(shards)
    if random is not None:
        places = random_places(manifest, source, split, random, seed)
    elif search is not None:
        places = [_searched(manifest, source, split, search, within, console)]
    elif source is not None:
        doc = doc or "0"
        if not doc.isdecimal():
            raise UsageError(
                f"--doc {doc}: with --source it is a number, from 0; leave --source out for a name"
            )
        places = [(source, split or "train", int(doc))]
    else:
        named = find_named(manifest, str(doc), MOST)
        _tell_others(named, console)
        places = named[:1]
    found = [run_inspect(shards, name, number, part) for name, part, number in places]
    if json:
        _print([asdict(one) for one in found], several=random is not None)
        return
    _show_documents(manifest, found, console)


def _searched(
    manifest: Manifest, source: str | None, split: str | None, text: str, within: str, console: Console
) -> tuple[str, str, int]:
    """The first document that holds a text; the others are told, and how far the search came."""
    from pretok.audit.find import search_text

    found = search_text(manifest, source, split, text, MOST, parse_size(within, "--within"))
    further = "" if found.whole else "; --within looks further, as in --within 100G"
    if not found.places:
        raise UsageError(f"no document holds {text!r}: {found.extent()}{further}")
    console.notice(found.extent() + further)
    _tell_others(found.places, console)
    return found.places[0]


def _tell_others(places: list[tuple[str, str, int]], console: Console) -> None:
    (source, split, doc), *others = places
    if others:
        named = ", ".join(f"{name} {part} {number}" for name, part, number in others)
        more = " and maybe more" if len(places) == MOST else ""
        console.notice(f"{source} {split} {doc} is shown; there are also {named}{more}")


def _show_text(shards: Path, text: str, json: bool, console: Console) -> None:
    """How the vocabulary of shards or, before there are any, the one in WORK/vocab splits a text."""
    import pyarrow as pa

    from pretok.audit.documents import token_texts
    from pretok.audit.show import marked
    from pretok.tokenizer.encoder import Encoder
    from pretok.tokenizer.vocabulary import TOKENIZER_FILE, load_vocab

    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError("--text holds bytes that are not UTF-8; check the locale of the shell") from None
    # WORK stands for itself while it has no shards.
    places = shards, shards.with_name("vocab"), shards / "vocab"
    vocab = load_vocab(next((place for place in places if (place / TOKENIZER_FILE).exists()), shards))
    encoder = Encoder(vocab.raw.decode(), vocab.eod_id, vocab.size, str(vocab.path))
    ids = encoder.ids(pa.array([text], pa.large_string()))[0].tolist()
    tokens = token_texts(vocab, ids)
    if json:
        print_json({"ids": ids, "tokens": tokens})
        return
    console.show(f"{plural(len(ids), 'token')}, {size / max(len(ids), 1):.2f} bytes per token:", result=True)
    console.show(marked(tokens), result=True)


def _show_documents(manifest: Manifest, found: list[Inspection], console: Console) -> None:
    from pretok.audit.show import document_heading, marked
    from pretok.shards.texts import load_vocabulary

    vocab, learned_kinds = load_vocabulary(manifest), (*LEARNED, KINDS[TEXT])
    for one in found:
        for line in document_heading(one, vocab):
            console.show(line, result=True)
        learned = None if one.kinds is None else [kind in learned_kinds for kind in one.kinds]
        console.show(marked(one.tokens, learned), result=True)


def _show_sequences(
    mix: Path, shards: Path, position: int | None, step: int | None, json: bool, console: Console
) -> None:
    """What stands at a position, or the first sequences of a step."""
    from pretok.audit.show import marked, seen_sequence, sequence_heading
    from pretok.audit.trace import open_traced, positions_of_step, reading_at
    from pretok.shards.texts import load_vocabulary

    if (position is None) == (step is None):
        raise UsageError("with --mix, give either --position or --step")
    segments = open_traced(mix, shards)
    if position is not None:
        places = [(traced, position) for traced in reading_at(segments, position)]
    else:
        segment, positions = positions_of_step(segments, step or 0)
        places = [(segment, at) for at in positions]
    vocab = load_vocabulary(segments[-1].manifest)
    shown = [seen_sequence(traced, vocab, at) for traced, at in places[:SEQUENCES]]
    if len(places) > len(shown):
        if step is None:
            what = f"{len(places)} parts of the run read position {position}"
        else:
            what = f"step {step} read positions {places[0][1]} to {places[-1][1]}"
        console.notice(f"{what}: the first {len(shown)} are shown")
    if json:
        _print([asdict(one) for one in shown], several=step is not None or len(shown) > 1)
        return
    for one in shown:
        for line in sequence_heading(one):
            console.show(line, result=True)
        console.show(marked(one.tokens, one.learned), result=True)


def _print(found: list[dict[str, object]], several: bool) -> None:
    """One object, or a list where several may have been asked for."""
    print_json(found if several else found[0])


SHOWN = 1000
"""Rows that a table shows."""


def _write(kind: str, names: list[str], batches: Iterator[list[tuple[Any, ...]]]) -> None:
    """Rows on standard output as they come."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    shown = sys.stdout.isatty()  # else the values as they are, for whoever reads them
    if kind == "csv":
        writer.writerow(names)
    for batch in batches:
        if kind == "csv":
            writer.writerows([visible(str(value)) for value in row] if shown else row for row in batch)
        else:
            for row in batch:
                values = dict(zip(names, row, strict=True))
                sys.stdout.write(visible_json(to_text(values, ensure_ascii=False, default=str)) + "\n")


def query(
    context: typer.Context,
    work: WorkOrShards,
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="SQL query, in the dialect of DuckDB.", show_default=False)
    ],
    format: Annotated[
        str | None,
        typer.Option(
            metavar="table|csv|json",
            help="Format of the result (json: JSON Lines). Default: a table on a terminal, else CSV.",
        ),
    ] = None,
) -> None:
    """Ask what is known of documents, shards and rejects in SQL.

        pretok query work "select source, count(*), sum(tokens) from documents group by all"

    Views: documents, ledger, shards, sources, rejects, words (where WORK holds counts). `describe documents` lists the
    columns, kept and joined ones included. COPY (select ...) TO 'file.parquet' writes a file.
    """
    from pretok.audit.query import run_query

    console = terminal(context)
    kind = format or ("table" if sys.stdout.isatty() else "csv")
    if kind not in ("table", "csv", "json"):
        raise UsageError(f"--format {kind!r}: known are table, csv and json")
    names, batches = run_query(work, sql, console)
    if kind != "table":
        _write(kind, names, batches)
        return
    rows = list(islice(chain.from_iterable(batches), SHOWN + 1))
    cells = [["" if value is None else str(value) for value in row] for row in rows[:SHOWN]]
    console.show(table("", names, cells), result=True)
    if len(rows) > SHOWN:
        console.notice(f"the first {SHOWN:,} rows; --format csv shows all")


TRACED = 100
"""Documents that are traced where several have the name."""


def trace(
    context: typer.Context,
    target: Annotated[
        Path, typer.Argument(metavar="RUN | MIX", help="Folder of a run, or a mix.json.", show_default=False)
    ],
    doc: Annotated[
        str | None,
        typer.Option(
            metavar="ID | HASH | FILE:LINE",
            help="Find the steps that read this document: its kept `id`, its hash, or its place in the input.",
        ),
    ] = None,
    position: Annotated[int | None, typer.Option(help="Show what is read at this position, from 0.")] = None,
    step: Annotated[int | None, typer.Option(help="Show what this step of the run reads, from 1.")] = None,
    shards: Annotated[
        Path | None,
        typer.Option(
            help="Shards that the run or mix reads. Default: those that the run read, or those beside the mix."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say at which positions of a mix, and in which steps of a run, a document is read; or what is read there.

    It is computed from the order, not replayed. `done` are the steps up to the newest checkpoint; what the run will
    never get to is not listed.

        pretok trace run --doc data/it/a.jsonl.zst:1742

        pretok trace run --step 81
    """
    from pretok.audit.find import find_in
    from pretok.audit.trace import (
        open_traced,
        passages,
        positions_of_step,
        reading_at,
        readings,
        trace_rows,
    )

    if sum(given is not None for given in (doc, position, step)) != 1:
        raise UsageError("give one of --doc, --position and --step")
    segments = open_traced(target, shards)
    if doc is not None:
        places = find_in([traced.manifest for traced in segments], doc, TRACED)
        rows = [
            row
            for traced, found in zip(segments, places, strict=True)
            for place in found
            for row in trace_rows(traced, readings(traced, *place))
        ]
    elif position is not None:
        at = reading_at(segments, position)
        rows = [row for traced in at for row in trace_rows(traced, passages(traced, position))]
    else:
        traced, positions = positions_of_step(segments, step or 0)
        rows = [row for one in positions for row in trace_rows(traced, passages(traced, one))]
    if late := sum(row.done is False for row in rows):
        terminal(context).notice(
            f"{late:,} of {plural(len(rows), 'reading')} lie ahead: the newest checkpoint is of step "
            f"{segments[-1].steps:,}, the run ends with step {segments[-1].last:,}"
        )
    if json:
        print_json([asdict(row) for row in rows])
    elif not rows:
        terminal(context).notice(f"{doc} is in the shards, but {target} never reads it")
    else:
        columns = tuple(
            name
            for name in asdict(rows[0])
            if name not in ("of_class", "removed") or any(getattr(row, name) for row in rows)
        )
        values = [[asdict(row)[name] for name in columns] for row in rows]
        shown = [tuple("" if value is None else str(value) for value in row) for row in values]
        terminal(context).show(table("trace", columns, shown), result=True)


def certify(
    context: typer.Context,
    target: Annotated[Path | None, typer.Argument(metavar="RUN", help="Folder of a run.")] = None,
    step: Annotated[
        int | None,
        typer.Option(
            help="Prove what this step read, from 1. With --check: require that the certificate is of this step."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write.", show_default="step-N.certificate")
    ] = None,
    shards: Annotated[
        Path | None,
        typer.Option(help="Shards that the run reads. Default: those that it read."),
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check this certificate; no shards are needed.")
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(help="With --check: root of the shards, as published by whoever made the certificate."),
    ] = None,
    json: Json = False,
) -> None:
    """Prove to somebody without the shards what a step of a run read, or check such a proof.

    The file has the tokens, and hashes that lead from them to the root which `pretok status` prints for the shards.

        pretok certify run --step 81 --out step-81.certificate

        pretok certify --check step-81.certificate --root ROOT
    """
    console = terminal(context)
    if check is not None:
        from pretok.certificate.check import check_certificate, sentences

        if root is None or any(given is not None for given in (target, out, shards)):
            raise UsageError("with --check give --root, which the maker of the shards published, and no run")
        found = check_certificate(check, root, step)
        if json:
            print_json(found)
        else:
            for line in sentences(found):
                console.show(line, result=True)
        return
    if target is None or root is not None or step is None:
        raise UsageError("give a run with --step, or --check FILE with --root")
    from pretok.certificate.make import certify_step

    out = out or Path(f"step-{step}.certificate")
    made = certify_step(target, step, shards, out)
    if json:
        print_json(made)
    else:
        console.notice(
            f"{out}: {plural(made.sequences, 'sequence')} of {plural(made.shards, 'shard')}, "
            f"{human_bytes(out.stat().st_size)}; check it with pretok certify --check {out} --root {made.root}"
        )
