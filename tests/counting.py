"""Helpers of the tests that count: small inputs, a recipe over them, an engine that dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pretok.base.errors import Stopped
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.config import Recipe, make_recipe


def write_lines(path: Path, documents: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")


def recipe(folder: Path, out: str = "out", **vocab: Any) -> Recipe:
    sources = {name: {"inputs": [str(folder / "in" / f"{name}*.jsonl")]} for name in ("it", "en")}
    return make_recipe(
        {"out": folder / out, "sources": sources, "vocab": {"holdout": "0.2", **vocab}}, "test"
    )


def documents(folder: Path, source: str) -> list[str]:
    lines = [
        line
        for path in sorted((folder / "in").glob(f"{source}*"))
        for line in path.read_text(encoding="utf-8").split("\n")
        if line
    ]
    return [text for text in (json.loads(line)["text"] for line in lines) if isinstance(text, str) and text]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Killer(Engine):
    """Works in this process and stops the job when `steps` reports have come."""

    def __init__(self, steps: int) -> None:
        super().__init__(0, None, StopFlag())
        left = iter(range(steps))

        def check() -> None:
            if not self.stop._raising and next(left, None) is None:
                raise Stopped("killed by the test")

        self.stop.check = check  # type: ignore[method-assign]
