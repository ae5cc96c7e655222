"""What every job begins with, whether a command or a call from Python starts it.

Input: settings, still a mapping. Output: a Recipe of which all tables are checked; the engine that runs its tasks; the
folder of its log. Nothing heavy is loaded before it is used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pretok.base.errors import UsageError
from pretok.base.joblog import LOGS

if TYPE_CHECKING:
    from pretok.base.execute import Engine
    from pretok.config import Recipe

TINY = 5 << 20
"""Fewer stored bytes are tokenized, compressed or not, before workers would have started (`Engine.choose`)."""


def complete_recipe(
    data: Mapping[str, object], origin: str, given: Mapping[str, object], names: Mapping[str, str]
) -> Recipe:
    """Override settings of a recipe that is still a mapping by `given`, and validate all its tables.

    names: dotted key -> the option that sets it, for error messages.
    """
    from pretok.config import make_recipe, with_settings

    recipe = make_recipe(with_settings(data, given), origin, names)
    _check_out(recipe.out)
    _check_other_tables(recipe)
    return recipe


def _check_out(out: Path) -> None:
    """Refuse a folder of results inside of WORK: the shards would go to shards/shards."""
    results = {"shards": "manifest.json", "counts": "counts.json", "vocab": "tokenizer.json"}
    if (out / results.get(out.resolve().name, "/")).is_file():
        parent = out.parent if out.name else out.resolve().parent
        raise UsageError(f"{out} is a folder of results itself; did you mean {parent}?")


def _check_other_tables(recipe: Recipe) -> None:
    """Refuse now what a later step would refuse: for [train] only on a GPU node, after the queue."""
    from pretok.config import located

    if recipe.vocab.path is None:
        from pretok.vocab.build_vocab_job import check_settings

        with located(recipe, "vocab", "pattern"):
            check_settings(recipe.vocab)
    if recipe.shards.against is not None:
        from pretok.screen.benchmark import read_benchmark

        with located(recipe, "shards", "against"):
            read_benchmark(recipe.shards.against)
    for name, source in recipe.sources.items():
        with located(recipe, "sources", name, "tools"):
            source.record_format()
    if recipe.train:
        from train.config import check_table

        with located(recipe, "train"):
            check_table(recipe.train)


def work_of(result: Path) -> Path | None:
    """Return the folder of `result` if it has logs of jobs, else None: folders of other programs get no logs."""
    return result.parent if (result.parent / LOGS).is_dir() else None


def _is_tiny(recipe: Recipe) -> bool:
    """Whether all inputs are files named one by one, and small: a look that costs less than to list them."""
    paths = [
        path for source in recipe.sources.values() for inputs in source.inputs_by_append for path in inputs
    ]
    left = TINY
    for path in paths:
        with suppress(OSError, ValueError):  # of a name that is no path: a glob, a URL, a sample
            if stat.S_ISREG((found := os.stat(path)).st_mode):  # noqa: PTH116
                left -= found.st_size
                continue
        if not path.startswith("sample:"):
            return False
    return left > 0


@contextmanager
def start_engine(
    workers: int | None, address: str | None, module: str = "", recipe: Recipe | None = None
) -> Iterator[Engine]:
    """Start an engine that stops for signals and before the Slurm job ends.

    module: what the workers of this node load while the command imports and plans, unless the inputs of the recipe are
    so few that this process does the work.
    """
    from pretok.base.execute import Engine
    from pretok.base.startup import without_pandas
    from pretok.base.stop import StopFlag

    if not (workers is None or (isinstance(workers, int) and workers >= 0)):
        raise UsageError(
            f"--workers {workers!r}: give a whole number, such as 4, or 0 to work in this process"
        )
    if workers == 0 and address is not None:
        raise UsageError(
            "--address: nothing reads it with --workers 0, which works in this process; leave it out"
        )
    early = "" if recipe and workers is None and _is_tiny(recipe) else module
    with StopFlag() as stop, Engine(workers, address, stop, early) as engine:
        without_pandas()
        yield engine
