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
        rows = [
            {
                "id": f"{name}{n}",
                "url": f"https://{'x' if n % 7 else 'y'}.org/{name}{n}",
                "text": f"documento {name} {n} " * (1 + 5 * n % 11),
            }
            for n in range(60)
        ]
        rows[5]["text"] = SAME
        (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        for new in ((), ("more",)):
            run(recipe(work, work, new), engine)
    (work / "scores.jsonl").write_text(
        "".join(json.dumps({"id": f"a{n}", "score": n, "note": f"nota a{n}"}) + "\n" for n in range(60))
    )
    shards = str(work / "shards")
    for line in (
        ["mix", shards, "--out", str(work / "mix.json"), "--weights", "a=0.5,b=0.5", "--seq-len", "16"],
        ["mix", shards, "--out", str(work / "classes.json"), "--seq-len", "16", "--pack", "best-fit", "--class",
         "y=a where url like 'https://y%'", "--weights", "a=0.5,y=0.2,b=0.3"],
        ["annotate", shards, str(work / "scores.jsonl"), "--by", "id", "--name", "q"],
    ):  # fmt: skip
        assert run_command(line) == 0, line
    return work


@pytest.fixture
def work(removable: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return shutil.copytree(removable, tmp_path / "work")
