"""The commands that show documents, tokens and rows, or prove them: inspect, query, trace, certify."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from json import dumps as to_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretok.base.console import table
from pretok.base.errors import UsageError
from pretok.base.terminal import print_json
from pretok.base.units import human_bytes, plural
from pretok.base.visible import visible, visible_json
from pretok.commands.options import Json, Shards, WorkOrShards, argument, option, refuse_unread, terminal
from pretok.tokenizer.kinds import KINDS, LEARNED, TEXT

if TYPE_CHECKING:
    from pretok.base.console import Console
    from pretok.documents.audit.find import Place
    from pretok.documents.audit.trace import Traced

MOST = 10
"""Most documents that are named if several match."""


def inspect(
    context: typer.Context,
    shards: Shards,
    *,
    doc: Annotated[
        str | None,
        option(
            "--doc",
            "The document: kept `id`, hash, or place in the input; with --source its number, from 0.",
            "ID | HASH | FILE:LINE | NUMBER",
        ),
    ] = None,
    source: Annotated[str | None, option("--source", "Source to look in. Default: all.", "NAME")] = None,
    split: Annotated[
        str | None,
        option("--split", "Split to look in. Default: train with --source, else both.", "train|val"),
    ] = None,
    search: Annotated[
        str | None, option("--search", "Find the first document that contains this text.", "TEXT")
    ] = None,
    random: Annotated[
        int | None, option("--random", "Show so many documents, drawn at random.", "N", min=0)
    ] = None,
    seed: Annotated[int, option("--seed", "Seed of --random.", "N", min=0)] = 0,
    text: Annotated[str | None, option("--text", "Show the tokens of this text.", "TEXT")] = None,
    json: Json = False,
) -> None:
    """Show the tokens of a document, and the file and line or row it came from. Or show how a text is tokenized.

        pretok inspect work/shards --doc data/it/a.jsonl.zst:1742

        pretok inspect work/shards --source it --doc 17

        pretok inspect work/shards --search 'mare salato'

        pretok inspect work/shards --random 3 --seed 7

        pretok inspect work --text "Il mare è salato"

    Tokens are in [brackets]; in conversations, those without loss are in (parentheses). `pretok trace` shows what a run
    reads.
    """
    from pretok.documents.audit.find import find_named, numbered, random_places, search_text
    from pretok.documents.audit.inspection import run_inspect
    from pretok.documents.audit.show import document_heading
    from pretok.shards.manifest import load_manifest
    from pretok.shards.texts import load_vocabulary

    console = terminal(context)
    ways = sum(way is not None for way in (doc, search, random, text))
    if ways > 1 or (ways == 0 and source is None):
        raise UsageError("name a document by one of --doc, --search and --random, or give a --text")
    if random is None:
        refuse_unread(context, "without --random", "seed")
    if text is not None:
        refuse_unread(context, "with --text", "source", "split")
        _show_text(shards, text, json, console)
        return
    if doc is not None and source is None:
        refuse_unread(context, "without --source", "split")
    manifest = load_manifest(shards)
    if random is not None:
        places = random_places(manifest, source, split, random, seed)
    elif search is not None:
        places = [search_text(manifest, source, split, search)]
    elif source is not None:
        places = [numbered(source, split, doc or "0")]
    else:
        first, *others = find_named(manifest, str(doc), MOST)
        places = [first]
        _show_others(first, others, console)
    documents = [run_inspect(shards, name, number, part) for name, part, number in places]
    if json:
        objects = [asdict(document) for document in documents]
        print_json(objects if random is not None else objects[0])
        return
    vocab, with_loss = load_vocabulary(manifest), (*LEARNED, KINDS[TEXT])
    for document in documents:
        learned = None if document.kinds is None else [kind in with_loss for kind in document.kinds]
        _show_tokens(document_heading(document, vocab), document.tokens, learned, console)


def _show_others(first: Place, others: list[Place], console: Console) -> None:
    """Say which other documents have the name of the one that is shown."""
    if others:
        known = ", ".join(f"{name} {part} {number}" for name, part, number in others)
        more = " and maybe more" if len(others) == MOST - 1 else ""
        console.notice(f"{' '.join(map(str, first))} is shown; there are also {known}{more}")


def _show_text(shards: Path, text: str, json: bool, console: Console) -> None:
    """Show how a text is split by the vocabulary of shards or, if there are none yet, by the one in WORK/vocab."""
    import pyarrow as pa

    from pretok.documents.audit.inspection import token_texts
    from pretok.tokenizer.encoder import Encoder
    from pretok.tokenizer.vocabulary import TOKENIZER_FILE, load_vocab

    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError("--text holds bytes that are not UTF-8; check the locale of the shell") from None
    # Without shards the argument is WORK itself.
    places = shards, shards.with_name("vocab"), shards / "vocab"
    vocab = load_vocab(next((place for place in places if (place / TOKENIZER_FILE).exists()), shards))
    encoder = Encoder(vocab)
    ids = encoder.ids(pa.array([text], pa.large_string()))[0].tolist()
    tokens = token_texts(vocab, ids)
    if json:
        print_json({"ids": ids, "tokens": tokens})
        return
    heading = f"{plural(len(ids), 'token')}, {size / max(len(ids), 1):.2f} bytes per token:"
    _show_tokens([heading], tokens, None, console)


def _show_tokens(heading: list[str], tokens: list[str], learned: list[bool] | None, console: Console) -> None:
    """Show tokens in brackets. learned: whether each has a loss, None: all have."""
    from pretok.documents.audit.show import marked

    for line in (*heading, marked(tokens, learned)):
        console.show(line, result=True)


SHOWN = 1000
"""Most rows of a table."""


def _write(kind: str, names: list[str], batches: Iterator[list[tuple[Any, ...]]]) -> None:
    """Write rows to standard output as they come."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    shown = sys.stdout.isatty()  # a program gets the values unchanged
    if kind == "csv":
        writer.writerow(names)
    for row in chain.from_iterable(batches):
        if kind == "csv":
            writer.writerow([visible(str(value)) for value in row] if shown else row)
        else:
            values = dict(zip(names, row, strict=True))
            sys.stdout.write(visible_json(to_text(values, ensure_ascii=False, default=str)) + "\n")


def query(
    context: typer.Context,
    work: WorkOrShards,
    sql: Annotated[str, argument("SQL", "SQL query, in the dialect of DuckDB.")],
    *,
    format: Annotated[
        str | None,
        option(
            "--format",
            "Format of the result (json: JSON Lines). Default: a table on a terminal, else CSV.",
            "table|csv|json",
        ),
    ] = None,
) -> None:
    """Query documents, shards and rejects in SQL.

        pretok query work "select source, count(*), sum(tokens) from documents group by all"

    Views: documents, ledger, shards, sources and rejects. `describe documents` lists its columns, with those that were
    kept or added. COPY (select ...) TO 'file.parquet' writes a file.
    """
    from pretok.documents.audit.query import run_query

    console = terminal(context)
    kind = format or ("table" if sys.stdout.isatty() else "csv")
    if kind not in ("table", "csv", "json"):
        raise UsageError(f"--format {kind!r}: known are table, csv and json")
    names, batches = run_query(work, sql, console)
    if kind != "table":
        _write(kind, names, batches)
        return
    rows = list(islice(chain.from_iterable(batches), SHOWN + 1))
    console.show(table("", names, map(_cells, rows[:SHOWN])), result=True)
    if len(rows) > SHOWN:
        console.notice(f"the first {SHOWN:,} rows; --format csv shows all")


def _cells(row: Iterable[object]) -> list[str]:
    return ["" if value is None else str(value) for value in row]


SEQUENCES = 3
"""Most sequences that are shown as tokens."""


def trace(
    context: typer.Context,
    target: Annotated[Path, argument("RUN | MIX", "Folder of a run, or a mix.json.")],
    *,
    doc: Annotated[
        str | None,
        option(
            "--doc",
            "Find the steps that read this document: its kept `id`, hash, or place in the input.",
            "ID | HASH | FILE:LINE",
        ),
    ] = None,
    position: Annotated[
        int | None, option("--position", "Show what is read at this position, from 0.", "N", min=0)
    ] = None,
    step: Annotated[
        int | None, option("--step", "Show what this step of the run reads, from 1.", "N", min=0)
    ] = None,
    tokens: Annotated[bool, option("--tokens", "Show the first three sequences as tokens.")] = False,
    shards: Annotated[
        Path | None,
        option(
            "--shards",
            "Shards of the run or mix. Default: those that the run read, or those next to the mix.",
            "DIR",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show at which positions of a mix, and in which steps of a run, a document is read; or what is read there.

        pretok trace run --doc data/it/a.jsonl.zst:1742

        pretok trace run --step 81

        pretok trace work/mix.json --position 0 --tokens

    The answer is computed from the order of the mix. `done` shows whether the run has read it, up to its newest
    checkpoint. Positions that the run will never reach are not listed.
    """
    from pretok.documents.audit.trace import open_traced, read_of_name, read_there, with_origins

    if sum(given is not None for given in (doc, position, step)) != 1:
        raise UsageError("give one of --doc, --position and --step")
    console, segments = terminal(context), open_traced(target, shards)
    read = read_there(segments, position, step or 0) if doc is None else read_of_name(segments, doc)
    if late := sum(reading.done is False for _, reading in read):
        console.notice(
            f"{late:,} of {plural(len(read), 'reading')} are in the future: the newest checkpoint is of step "
            f"{segments[-1].steps:,}, the run ends with step {segments[-1].last:,}"
        )
    if tokens:
        _show_sequences([(traced, reading.position) for traced, reading in read], json, console)
        return
    rows = [
        asdict(row)
        for segment in segments
        for row in with_origins(segment, [reading for traced, reading in read if traced is segment])
    ]
    if json:
        print_json(rows)
    elif not rows:
        console.notice(f"{doc} is in the shards, but {target} never reads it")
    else:
        files = {row["file"] for row in rows}
        # One file is the title: in a cell, a terminal would break its path.
        empty = {"removed": False} | ({"file": rows[0]["file"]} if len(files) == 1 else {})
        columns = [name for name in rows[0] if any(row[name] not in (None, empty.get(name)) for row in rows)]
        cells = [_cells(row[name] for name in columns) for row in rows]
        console.show(table(files.pop() if len(files) == 1 else "trace", columns, cells), result=True)


def _show_sequences(places: list[tuple[Traced, int]], json: bool, console: Console) -> None:
    """Show the first sequences of some positions as tokens."""
    from pretok.documents.audit.show import seen_sequence, sequence_heading
    from pretok.shards.texts import load_vocabulary

    places = [place for number, place in enumerate(places) if place not in places[:number]]
    shown = [seen_sequence(traced, load_vocabulary(traced.manifest), at) for traced, at in places[:SEQUENCES]]
    if len(places) > SEQUENCES:
        positions = f"positions {places[0][1]} to {places[-1][1]}"
        console.notice(f"{positions}: the first {SEQUENCES} sequences are shown")
    if json:
        print_json([asdict(sequence) for sequence in shown])
        return
    for sequence in shown:
        _show_tokens(sequence_heading(sequence), sequence.tokens, sequence.learned, console)


def certify(
    context: typer.Context,
    *,
    target: Annotated[Path | None, argument("RUN", "Folder of a run.")] = None,
    step: Annotated[
        int | None,
        option(
            "--step",
            "Prove what this step read, from 1. With --check: the step that the certificate must be of.",
            "N",
            min=0,
        ),
    ] = None,
    out: Annotated[
        Path | None, option("--out", "File to write. Default: step-N.certificate.", "FILE")
    ] = None,
    shards: Annotated[
        Path | None, option("--shards", "Shards of the run. Default: those that it read.", "DIR")
    ] = None,
    check: Annotated[
        Path | None, option("--check", "Check this certificate. No shards are needed.", "FILE")
    ] = None,
    root: Annotated[
        str | None,
        option(
            "--root",
            "With --check: root of the shards, as the maker of the certificate published it.",
            "HASH",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Create a proof of the data that a step read, for somebody without the shards. Or check such a proof.

        pretok certify run --step 81 --out step-81.certificate

        pretok certify --check step-81.certificate --root ROOT

    The file holds the tokens of the step, and the hashes that lead from them to the root of the shards. `pretok status`
    prints the root; publish it before.
    """
    console = terminal(context)
    if check is not None:
        from pretok.documents.certificate.check import check_certificate, sentences

        if root is None or any(given is not None for given in (target, out, shards)):
            raise UsageError("--check needs --root, which the maker of the shards published, and no run")
        proof = check_certificate(check, root, step)
        if json:
            print_json(proof)
        else:
            for line in sentences(proof):
                console.show(line, result=True)
        return
    if target is None or root is not None or step is None:
        raise UsageError("give a run with --step, or --check FILE with --root")
    from pretok.documents.certificate.certify import certify_step

    out = out or Path(f"step-{step}.certificate")
    certificate = certify_step(target, step, shards, out)
    if json:
        print_json(certificate)
    else:
        parts = f"{plural(certificate.sequences, 'sequence')} of {plural(certificate.shards, 'shard')}"
        console.show(f"{out}: {parts}, {human_bytes(out.stat().st_size)}", result=True)
        console.notice(f"check it with pretok certify --check {out} --root {certificate.root}")
