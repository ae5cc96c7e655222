"""Vocabulary, shards and mix from a program or a notebook: `pretok.build_vocab`, `pretok.tokenize`, `pretok.mix`.

Input: inputs by the names of their sources, or a recipe's path, and settings named as the keys of a recipe. Output:
the files that the commands leave, made by the same functions behind the same checks, locks and logs. What a command
says before it ends with an exit code is raised as a PretokError.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pretok.api.work import Work, open_work
from pretok.base.joblog import LOGS
from pretok.base.terminal import ConsoleWarnings, Terminal
from pretok.commands.options import complete_recipe, start_engine, work_of
from pretok.commands.steps import tokenize_step
from pretok.config import Recipe, load_toml, make_mix
from pretok.counts.job import refuse_partial
from pretok.shards.manifest import load_manifest, shards_of
from pretok.stream.mix_job import MixReport, MixRequest, run_mix, show_mix
from pretok.vocab.job import refuse_short, run_build_vocab
from pretok.vocab.records import VocabReport

Path_ = str | os.PathLike[str]
Inputs = Path_ | Mapping[str, object]
"""The path of a recipe; or by the name of its source a path or glob, several, or a table as in a recipe."""


def build_vocab(
    inputs: Inputs,
    out: Path_ | None = None,
    *,
    workers: int | None = None,
    address: str | None = None,
    quiet: bool = False,
    **settings: object,
) -> VocabReport:
    """Train a vocabulary on the words of all inputs, under OUT/vocab, as `pretok build-vocab` does; its report.

    inputs: `{"it": "data/it/*.jsonl.zst", "en": ["a.parquet", "b.parquet"]}`, or the path of a recipe, which may say
    `out` itself. settings: keys of [vocab], such as size, pattern, weights. workers, address: those of the command;
    quiet: show no progress. Raises PretokError.
    """
    recipe = _recipe("build_vocab", inputs, out, {f"vocab.{key}": value for key, value in settings.items()})
    with _told("build-vocab", recipe.out, recipe.model_dump(), quiet) as console:
        with start_engine(workers, address) as engine:
            report = run_build_vocab(recipe, engine, console)
        stale = f"{recipe.counts_dir} and {recipe.vocab_dir}"
        refuse_partial("the vocabulary is made", report.failed, stale)
        refuse_short(report, recipe.vocab)
    return report


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
    """Tokenize all inputs into OUT/shards, as `pretok tokenize` does; the finished work, opened.

    inputs, out, workers, address, quiet: as for `build_vocab`; a source may be a table as in a recipe, such as
    `{"inputs": "data/*.jsonl", "field": "content", "keep": ["id"]}`. vocab: a folder or tokenizer.json, OUT/vocab by
    default; eod: its end-of-document token, where it does not name it; bos: a special token to stand before each
    document. settings: keys of [shards], such as val_fraction, size, duplicates. Raises PretokError: PartitionsFailed
    where all but some inputs is done.
    """
    tokenizer = {"vocab.path": vocab, "vocab.eod": eod, "vocab.bos": bos}
    given = tokenizer | {f"shards.{key}": value for key, value in settings.items()}
    recipe = _recipe("tokenize", inputs, out, given)
    with (
        _told("tokenize", recipe.out, recipe.model_dump(), quiet) as console,
        start_engine(workers, address) as engine,
    ):
        tokenize_step(recipe, engine, console)
    return open_work(recipe.out)


def mix(
    work: Path_,
    out: Path_ | None = None,
    *,
    learn: Mapping[str, Collection[str]] | None = None,
    **settings: object,
) -> MixReport:
    """Fix the order of sequences of finished shards in WORK/mix.json, or `out`, as `pretok mix` does; its report.

    work: WORK or its folder of shards. learn: what is learned of conversations, such as `{"chat": ["answer"]}`.
    settings: keys of [mix], such as weights, tokens, seq_len, stages. Nothing is shown: a notebook shows the report.
    Raises PretokError.
    """
    names = {f"mix.{key}": key for key in settings}
    request = MixRequest(make_mix(settings, "pretok.mix", names), learn=learn or {})
    shards = shards_of(Path(work))
    target = shards.absolute().parent / "mix.json" if out is None else Path(out)
    with _told("mix", work_of(target), {"shards": shards, "out": target, **settings}, quiet=True) as console:
        report = run_mix(shards, target, request)
        show_mix(load_manifest(shards), report, console)
    return report


def _recipe(name: str, inputs: Inputs, out: Path_ | None, given: Mapping[str, object]) -> Recipe:
    if isinstance(inputs, Mapping):
        data: dict[str, object] = {"sources": {source: _source(table) for source, table in inputs.items()}}
    else:
        data = load_toml(Path(inputs))
    given = {key: value for key, value in given.items() if value is not None}
    names = {key: "vocab" if key == "vocab.path" else key.partition(".")[2] for key in given}
    return complete_recipe(data, f"pretok.{name}", None if out is None else Path(out), given, names, "out = ")


def _source(given: object) -> dict[str, object]:
    """The table of a source, its inputs as a list; what is neither is left for the check of the recipe to name."""
    table = dict(given) if isinstance(given, Mapping) else {"inputs": given}
    if isinstance(table.get("inputs"), str | os.PathLike):
        table["inputs"] = [table["inputs"]]
    return table


@contextmanager
def _told(name: str, work: Path | None, settings: Mapping[str, object], quiet: bool) -> Iterator[Terminal]:
    """What a job tells things to, with a log below `work` that says how it ended, as a command's does."""
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
