"""The recipe of a folder from which documents are removed. Not in a test module: a conftest that imports one fixes the
settings of its properties before the profile is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_golden import GOLDEN

from pretok.config import Recipe, make_recipe


def recipe(inputs: Path, out: Path, new: tuple[str, ...], **shards: Any) -> Recipe:
    """The sources `a` and `b` of a folder, and what is new: an append to each of them, or a source `c`."""
    sources: dict[str, Any] = {
        name: {"inputs": [str(inputs / f"{name}.jsonl")], "keep": ["id", "url"]} for name in ("a", "b")
    }
    if "more" in new:
        sources["a"]["append"] = [{"inputs": [str(inputs / "more.jsonl")]}]
    if "append" in new:
        sources["b"]["append"] = [{"inputs": [str(out / "again.jsonl")]}]
    if "source" in new:
        sources["c"] = {"inputs": [str(out / "again.jsonl")], "keep": ["id"]}
    common = {"size": 4000, "val_fraction": "0.2", "max_reject_share": "0.5"}
    vocab = {"path": GOLDEN / "tokenizer.json"}
    return make_recipe({"out": out, "sources": sources, "vocab": vocab, "shards": common | shards}, "test")
