"""Vocabulary, shards and mix from a program or a notebook: `pretok.build_vocab`, `pretok.tokenize`, `pretok.mix`.

Input: the inputs of each source, or the path of a recipe, and settings with the names of a recipe's keys. Output: the
files that the commands write, with the same checks, locks and logs. Where a command ends with an exit code, a
PretokError is raised.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from pretok.base.errors import PretokError, UsageError
from pretok.base.joblog import LOGS
from pretok.base.terminal import ConsoleWarnings, Terminal
from pretok.config import Recipe, load_toml, make_mix
from pretok.config.keys import keys_of, table_at
from pretok.documents.work import Work, open_work
from pretok.session import complete_recipe, start_engine, work_of
from pretok.shards.manifest import load_manifest, shards_of
from pretok.steps import tokenize_step
from pretok.stream.mix_job import MixReport, MixRequest, run_mix, show_mix
from pretok.vocab.build_vocab_job import refuse_short, run_build_vocab
from pretok.vocab.report_file import VocabReport

Path_ = str | os.PathLike[str]
TABLES = ("vocab", "shards")
"""Tables of a recipe whose keys a call may set."""
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*[a-z])\b(?: (?=[\d'\"]))?")
"""An option in a message, with the space before its value."""
NAMES = {"vocab-size": "size", "stage": "stages", "class": "classes"}
"""Options whose parameters have other names."""
P = ParamSpec("P")
R = TypeVar("R")
Inputs = Path_ | Mapping[str, object]
"""The path of a recipe; or for each source, by its name, a path or glob, several, or a table as in a recipe."""


def _without_options(call: Callable[P, R]) -> Callable[P, R]:
    """Let the errors of a call speak of its parameters, `vocab=`, where those of a command name options, `--vocab`."""

    @wraps(call)
    def called(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return call(*arguments, **named)
        except PretokError as error:
            error.args = tuple(_in_python(str(part)) for part in error.args)
            raise

    return called


def _in_python(message: str) -> str:
    """Return a message with parameters for options."""
    return OPTION.sub(lambda option: f"{NAMES.get(option[1], option[1].replace('-', '_'))}=", message)


@_without_options
def build_vocab(
    inputs: Inputs,
    out: Path_ | None = None,
    *,
    workers: int | None = None,
    address: str | None = None,
    quiet: bool = False,
    **settings: object,
) -> VocabReport:
    """Train a vocabulary under OUT/vocab, as `pretok build-vocab` does, and return its report.

    inputs: `{"it": "data/it/*.jsonl.zst", "en": ["a.parquet", "b.parquet"]}`, or the path of a recipe, which may name
    `out` itself. settings: keys of [vocab], such as size, pattern, weights. workers, address: as for the command.
    quiet: show no progress. Raises PretokError.
    """
    given = {f"vocab.{key}": value for key, value in settings.items()}
    recipe = _recipe("build_vocab", inputs, out, given)
    with _console("build-vocab", recipe.out, recipe.model_dump(), quiet) as console:
        with start_engine(workers, address) as engine:
            report = run_build_vocab(recipe, engine, console)
        refuse_short(report, recipe.vocab)
    return report


@_without_options
def tokenize(
    inputs: Inputs,
    out: Path_ | None = None,
    *,
    vocab: Path_ | None = None,
    eod: str | None = None,
    bos: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    quiet: bool = False,
    **settings: object,
) -> Work:
    """Tokenize all inputs into OUT/shards, as `pretok tokenize` does, and open the finished work.

    inputs, out, workers, address, quiet: as for `build_vocab`; a source may be a table as in a recipe, such as
    `{"inputs": "data/*.jsonl", "field": "content", "keep": ["id"]}`. vocab: a folder or tokenizer.json, by default
    OUT/vocab. eod: its end-of-document token, if it does not name one. bos: a special token before each document.
    settings: keys of [shards], such as val_fraction, size, duplicates. Raises PretokError; PartitionsFailed if some
    inputs could not be read, once all others are done.
    """
    given: dict[str, object] = {"vocab.path": vocab, "vocab.eod": eod, "vocab.bos": bos}
    given |= {f"shards.{key}": value for key, value in settings.items()}
    recipe = _recipe("tokenize", inputs, out, given)
    with (
        _console("tokenize", recipe.out, recipe.model_dump(), quiet) as console,
        start_engine(workers, address) as engine,
    ):
        tokenize_step(recipe, engine, console)
    return open_work(recipe.out)


@_without_options
def mix(
    work: Path_,
    out: Path_ | None = None,
    *,
    learn: Mapping[str, Collection[str]] | None = None,
    **settings: object,
) -> MixReport:
    """Write a mix of finished shards to WORK/mix.json, or `out`, as `pretok mix` does, and return its report.

    work: WORK or its folder of shards. learn: for each source of conversations the kinds of tokens with a loss, such as
    `{"chat": ["answer"]}`. settings: keys of [mix], such as weights, tokens, seq_len, stages. It prints the plan,
    as the command does. Raises PretokError.
    """
    request = MixRequest(make_mix(settings, "pretok.mix"), learn=learn or {})
    shards = shards_of(Path(work))
    target = shards.absolute().parent / "mix.json" if out is None else Path(out)
    logged = {"shards": shards, "out": target, **settings}
    with _console("mix", work_of(target), logged, quiet=True) as console:
        report = run_mix(shards, target, request)
        show_mix(load_manifest(shards), report, console)
    return report


def _recipe(name: str, inputs: Inputs, out: Path_ | None, given: Mapping[str, object]) -> Recipe:
    """Validate the recipe of a call. given: dotted key -> value, None if it was not given."""
    if isinstance(inputs, Mapping):
        origin = f"pretok.{name}"
        data: dict[str, object] = {"sources": {source: _source(table) for source, table in inputs.items()}}
    else:
        origin = str(inputs)
        if not origin.endswith(".toml"):
            raise UsageError(
                f"pretok.{name}: {origin!r} is not the path of a recipe (.toml); give inputs by the names of their "
                f"sources, such as {{'it': {origin!r}}}"
            )
        data = load_toml(Path(origin))
        # Unlike those of the recipe, the paths of the call start at the current folder.
        paths = {
            f"{table}.{key.name}"
            for table in TABLES
            for key in keys_of(table_at([table]))
            if key.kind == "path"
        }
        given = {key: Path(str(value)) if value and key in paths else value for key, value in given.items()}
    given = {"out": None if out is None else Path(out), **given}
    given = {key: value for key, value in given.items() if value is not None}
    return complete_recipe(data, origin, given, {})


def _source(given: object) -> dict[str, object]:
    """Make the table of a source, with a list of inputs. Validation refuses anything but sources."""
    table = dict(given) if isinstance(given, Mapping) else {"inputs": given}
    if isinstance(table.get("inputs"), str | os.PathLike):
        table["inputs"] = [table["inputs"]]
    return table


@contextmanager
def _console(name: str, work: Path | None, settings: Mapping[str, object], quiet: bool) -> Iterator[Terminal]:
    """Open the console of a job. If there is a `work`, the job keeps a log there, as a command does."""
    console, code = Terminal(), 1
    console.quiet = quiet
    if work is not None:
        console.keep_log(work / LOGS, name, settings=settings)
    warnings, logger = ConsoleWarnings(console), logging.getLogger("pretok")
    logger.addHandler(warnings)
    try:
        yield console
        code = 0
    except BaseException as error:
        code = getattr(error, "exit_code", code)
        console.event("error", message=str(error) or type(error).__name__, traceback="")
        raise
    finally:
        logger.removeHandler(warnings)
        console.end(code)
