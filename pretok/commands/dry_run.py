"""What a command would do, and the commands to type: nothing is written.

Input: a recipe and the step that would run first. Output: tables of the inputs and of what is there already, and lines
that can be copied. Inputs are listed, not opened further than their first bytes.
"""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

from pretok.base.console import table
from pretok.base.terminal import Terminal
from pretok.base.units import human_bytes, plural
from pretok.config import Recipe
from pretok.read.recognise import list_inputs
from pretok.shards.manifest import has_manifest, load_manifest, unit_name, unit_words
from pretok.shards.unfinished import unfinished
from pretok.tokenizer.vocabulary import load_vocab

FLAG = "--dry-run"
SHARED = ("--field", "--workers", "--address")
"""Options that every step over inputs has."""


def tell_dry_run(command: str, inputs: list[str], recipe: Recipe, console: Terminal) -> None:
    """Show what `command` (run, count, build-vocab or tokenize) would read and make. Raises UsageError for inputs or a
    vocabulary that are not there, as the command would."""
    if command == "tokenize":
        load_vocab(recipe.vocab_dir, recipe.vocab.eod, recipe.vocab.bos)
    if command == "build-vocab":
        from pretok.vocab.job import check_settings

        check_settings(recipe.vocab)
    if command == "run":
        from pretok.commands.steps import check_steps

        check_steps(recipe)
    rows = []
    listed = [
        (unit_words(unit_name(name, append)), globs, source.format)
        for name, source in recipe.sources.items()
        for append, globs in enumerate(source.inputs_by_append)
        if not append or command in ("run", "tokenize")  # a vocabulary is made before anything is appended
    ]
    for name, globs, format in listed:
        files, notices = list_inputs(globs, format)
        for text in notices:
            console.notice(text)
        kinds = Counter(".".join(filter(None, (file.format, file.compression))) for file in files)
        size = sum(file.size for file in files)
        shown = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
        rows.append((name, f"{len(files):,}", human_bytes(size), shown))
    console.show(table("would be read", ("source", "files", "on disk", "formats"), rows), result=True)
    made = [row for row in _results(recipe) if row[0] in MAKES[command]]
    console.show(table("would be made", ("what", "where", "now"), made), result=True)
    given = [argument for argument in console.arguments if argument != FLAG]
    steps = [given, *_next(command, [*inputs, "--out", str(recipe.out), *_shared(given)], recipe)]
    lines = "\n  ".join(f"pretok {shlex.join(words)}" for words in steps)
    console.show(f"nothing was written. To do it, and then go on:\n\n  {lines}", result=True)


MAKES = {
    "count": ("counts",),
    "build-vocab": ("counts", "vocabulary"),
    "tokenize": ("shards",),
    "run": ("counts", "vocabulary", "shards", "mix"),
}
"""What each command leaves."""


def _results(recipe: Recipe) -> list[tuple[str, str, str]]:
    """(what, where, what is there now) of every step of a recipe."""
    places = [("shards", recipe.shards_dir, _shards_now(recipe.shards_dir))]
    if recipe.vocab.path is None:
        counts, vocabulary = recipe.counts_dir / "counts.json", recipe.vocab_dir / "tokenizer.json"
        places = [
            ("counts", recipe.counts_dir, _now(counts)),
            ("vocabulary", recipe.vocab_dir, _now(vocabulary)),
            *places,
        ]
    if recipe.mix is not None:
        places.append(("mix", recipe.mix_path, _now(recipe.mix_path)))
    return [(what, str(where), now) for what, where, now in places]


def _now(result: Path) -> str:
    return "finished; compared with the recipe and kept" if result.exists() else "nothing"


def _shards_now(shards: Path) -> str:
    parts = [
        f"{unit_words(unit)}: {done} of {plural(planned, 'partition')} done"
        for unit, (done, planned) in unfinished(shards).items()
    ]
    if has_manifest(shards):
        totals = load_manifest(shards).totals
        parts.insert(0, f"{plural(totals.tokens, 'token')} sealed; compared with the recipe and kept")
    return "; ".join(parts) or "nothing"


def _next(command: str, same: list[str], recipe: Recipe) -> list[list[str]]:
    """The arguments of the commands behind this one; same: what they share with it."""
    shards, mix = str(recipe.shards_dir), str(recipe.out / "mix.json")
    return {
        "count": [["build-vocab", *same, "--counts", str(recipe.counts_dir)]],
        "build-vocab": [["tokenize", *same]],
        "tokenize": [["verify", shards], ["mix", shards, "--out", mix]],
        "run": [["report", str(recipe.out)]],
    }[command]


def _shared(given: list[str]) -> list[str]:
    """The options among the arguments that the other steps have too."""
    shared = []
    for number, argument in enumerate(given):
        name, equals, _ = argument.partition("=")
        if name in SHARED:
            shared += [argument] if equals else given[number : number + 2]
    return shared
