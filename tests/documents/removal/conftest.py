"""A folder from which documents are removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from removal_recipe import recipe
from tokenizing import run

from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.cli import run_command

SAME = "ovunque lo stesso testo, parola per parola"


@pytest.fixture(scope="session")
def removable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WORK of two sources in small shards, with validation, kept columns, a text that stands three times, an append, a
    mix of two epochs, one of classes that is packed, and annotations."""
    work = tmp_path_factory.mktemp("removable")
    for name in ("a", "b", "more"):
        urls = [f"https://{'x' if n % 7 else 'y'}.org/{name}{n}" for n in range(60)]
        texts = [f"documento {name} {n} " * (1 + 5 * n % 11) if n != 5 else SAME for n in range(60)]
        rows = [{"id": f"{name}{n}", "url": urls[n], "text": texts[n]} for n in range(60)]
        (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        for new in ((), ("more",)):
            run(recipe(work, work, new), engine)
    scores = [{"id": f"a{n}", "score": n, "note": f"nota a{n}"} for n in range(60)]
    (work / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scores))
    mix, packed = (
        f"mix {work}/shards --seq-len 16 --out {work}",
        "--pack best-fit --weights a=0.5,y=0.2,b=0.3",
    )
    for line, *more in (
        (f"{mix}/mix.json --weights a=0.5,b=0.5",),
        (f"{mix}/classes.json {packed}", "--class", "y=a where url like 'https://y%'"),
        (f"annotate {work}/shards {work}/scores.jsonl --by id --name q",),
    ):
        assert run_command([*line.split(), *more]) == 0, line
    return work


@pytest.fixture
def work(removable: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return shutil.copytree(removable, tmp_path / "work")
