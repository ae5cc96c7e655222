"""`pretok inspect`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretok.base.errors import UsageError
from pretok.commands.options import Json, Shards, terminal

if TYPE_CHECKING:
    from pretok.audit.documents import Inspection
    from pretok.base.tell import Teller
    from pretok.shards.manifest import Manifest

MOST = 10
"""Documents that are named where several match."""
SEQUENCES = 3
"""Sequences of a step that are shown."""


def inspect(
    context: typer.Context,
    shards: Shards,
    source: Annotated[
        str | None, typer.Option(help="Name of the source. Default: all, where it may be.")
    ] = None,
    doc: Annotated[int, typer.Option(min=0, help="Number of the document in the source, from 0.")] = 0,
    split: Annotated[str | None, typer.Option(help="train or val.", show_default="train")] = None,
    id: Annotated[str | None, typer.Option(help="Find it by the kept column `id`.")] = None,
    url: Annotated[str | None, typer.Option(help="Find it by the kept column `url`.")] = None,
    hash: Annotated[str | None, typer.Option(help="Find it by the hash of its text.")] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Find it by words in it, as they are spelled.")
    ] = None,
    within: Annotated[str, typer.Option(help="Bytes of text that --search decodes at most.")] = "1G",
    random: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Documents at random, each as likely as any other.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other documents.")] = 0,
    mix: Annotated[
        Path | None, typer.Option(metavar="MIX | RUN", help="A mix.json or a run: what the model saw.")
    ] = None,
    position: Annotated[
        int | None, typer.Option(help="With --mix: the sequence at this position, from 0.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="With --mix RUN: what this step read, from 1.")] = None,
    json: Json = False,
) -> None:
    """Show a document as its tokens, and the file and line or row it came from; or what the model saw.

    On a terminal tokens have colours: two in turns, one for bytes that are no character by themselves, one for special
    tokens. Elsewhere they stand in brackets.

    pretok inspect work/shards --source it --doc 17

    pretok inspect work/shards --search 'mare salato' --within 10G

    pretok inspect work/shards --random 3 --seed 7

    pretok inspect work/shards --mix run --step 81
    """
    from pretok.audit.documents import run_inspect
    from pretok.audit.search import random_places
    from pretok.shards.manifest import load_manifest

    tell = terminal(context)
    named = {"id": id, "url": url, "hash": hash}
    wanted = [(column, value) for column, value in named.items() if value is not None]
    _check_one_way([*wanted, *(way for way in (search, random, mix) if way is not None)], source)
    if mix is None and (position is not None or step is not None):
        raise UsageError("--position and --step are of a mix or a run: name it with --mix")
    if mix is not None:
        _show_sequences(mix, shards, position, step, json, tell)
        return
    manifest = load_manifest(shards)
    if random is not None:
        places = random_places(manifest, source, split, random, seed)
    elif search is not None:
        places = [_searched(manifest, source, split, search, within, tell)]
    elif wanted:
        places = [_named(manifest, source, *wanted[0], tell)]
    else:
        places = [(str(source), split or "train", doc)]
    found = [run_inspect(shards, name, number, part) for name, part, number in places]
    if json:
        _print([asdict(one) for one in found], several=random is not None)
        return
    _show_documents(manifest, found, tell)


def _check_one_way(ways: list[object], source: str | None) -> None:
    if len(ways) > 1 or not (ways or source):
        raise UsageError(
            "name a document by --source and --doc, or by one of --id, --url, --hash, --search, --random and --mix"
        )


def _named(
    manifest: Manifest, source: str | None, column: str, value: str, tell: Teller
) -> tuple[str, str, int]:
    """The first document of a name; the others are told."""
    from pretok.audit.find import find_documents

    places = find_documents(manifest, source, column, value, MOST)
    if not places:
        raise UsageError(f"no document with the {column} {value!r}")
    _tell_others(places, tell)
    return places[0]


def _searched(
    manifest: Manifest, source: str | None, split: str | None, text: str, within: str, tell: Teller
) -> tuple[str, str, int]:
    """The first document that holds a text; the others are told, and how far the search came."""
    from pretok.audit.search import search_text
    from pretok.base.units import parse_count

    try:
        bound = parse_count(within)
    except ValueError as error:
        raise UsageError(f"--within: {error}") from None
    found = search_text(manifest, source, split, text, MOST, bound)
    further = "" if found.whole else "; --within looks further, as in --within 100G"
    if not found.places:
        raise UsageError(f"no document holds {text!r}: {found.extent()}{further}")
    tell.notice(found.extent() + further)
    _tell_others(found.places, tell)
    return found.places[0]


def _tell_others(places: list[tuple[str, str, int]], tell: Teller) -> None:
    (source, split, doc), *others = places
    if others:
        named = ", ".join(f"{name} {part} {number}" for name, part, number in others)
        more = " and maybe more" if len(places) == MOST else ""
        tell.notice(f"{source} {split} {doc} is shown; there are also {named}{more}")


def _show_documents(manifest: Manifest, found: list[Inspection], tell: Teller) -> None:
    from pretok.audit.show import document_heading, load_shown, marked

    vocab = load_shown(manifest)
    for one in found:
        for line in document_heading(one, vocab):
            tell.show(line, result=True)
        tell.show(marked(vocab, one.ids, one.tokens), result=True)


def _show_sequences(
    mix: Path, shards: Path, position: int | None, step: int | None, json: bool, tell: Teller
) -> None:
    """What stands at a position, or the first sequences of a step."""
    from pretok.audit.show import load_shown, marked, seen_sequence, sequence_heading
    from pretok.audit.trace import open_traced, positions_of_step, reading_at

    if (position is None) == (step is None):
        raise UsageError("with --mix, give either --position or --step")
    legs = open_traced(mix, shards)
    if position is not None:
        places = [(traced, position) for traced in reading_at(legs, position)]
    else:
        leg, positions = positions_of_step(legs, step or 0)
        places = [(leg, at) for at in positions]
    vocab = load_shown(legs[-1].manifest)
    shown = [seen_sequence(traced, vocab, at) for traced, at in places[:SEQUENCES]]
    if len(places) > len(shown):
        if step is None:
            what = f"{len(places)} parts of the run read position {position}"
        else:
            what = f"step {step} read positions {places[0][1]} to {places[-1][1]}"
        tell.notice(f"{what}: the first {len(shown)} are shown")
    if json:
        _print([asdict(one) for one in shown], several=step is not None or len(shown) > 1)
        return
    for one in shown:
        for line in sequence_heading(one):
            tell.show(line, result=True)
        tell.show(marked(vocab, one.ids, one.tokens), result=True)


def _print(found: list[dict[str, object]], several: bool) -> None:
    """One object, or a list where several may have been asked for."""
    from pretok.base.console import print_json

    print_json(found if several else found[0])
