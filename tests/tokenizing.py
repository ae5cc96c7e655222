"""Helpers of the tests that tokenize: a recipe over some inputs, a run of it, and every byte it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from telling import Told

from pretok.base.execute import Engine
from pretok.base.tasks import Step
from pretok.config import Recipe, make_recipe
from pretok.shards.job import run_tokenize


def recipe(
    out: Path,
    vocab: Path,
    sources: dict[str, list[Path | str]],
    keep: Sequence[str] = (),
    on_mismatch: str = "null",
    **shards: object,
) -> Recipe:
    """A recipe over the given inputs; small shards, so that every way of cutting happens."""
    reading = {"keep": list(keep), "on_mismatch": on_mismatch}
    data = {
        "out": out,
        "sources": {name: {"inputs": [str(p) for p in paths], **reading} for name, paths in sources.items()},
        "vocab": {"path": vocab},
        "shards": {"size": 16_000, "val_fraction": "0.1", "max_reject_share": "0.5", **shards},
    }
    return make_recipe(data, "test")


def run(made: Recipe, engine: Engine) -> tuple[Step, list[str]]:
    """Tokenize; (what the workers did, notices)."""
    told = Told()
    return run_tokenize(made, engine, told), told.notices


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
