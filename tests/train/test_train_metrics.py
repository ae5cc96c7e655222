"""Where a run's numbers go: files, Weights & Biases, TensorBoard, a profile."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
from pretok.base.errors import UsageError
from pretok.base.storage import read_lines
from tests.train_support import tiny_config
from train.run import loop
from train.run.lines import Lines


def test_lines_that_were_not_saved_go_and_half_a_line_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = Lines(path)
    for step in range(1, 6):
        lines.add({"step": step})
    with path.open("a") as file:
        file.write('{"step": 6')  # a kill
    lines = Lines(path, lambda record: bool(record["step"] <= 3))
    assert [record["step"] for record in lines.dropped] == [4, 5]

    class Broken:
        """A file system that takes half of the line and is gone for a moment."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def seek(self, place: int) -> None:
            self.file.seek(place)

        def write(self, line: bytes) -> int:
            if len(tries) < 3:
                tries.append(self.file.write(line[:7]))
                raise OSError(error, os.strerror(error))
            return int(self.file.write(line[:20]))

        def close(self) -> None:
            self.file.close()

    error, tries = errno.ESTALE, list[int]()
    original = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda *rest, **named: Broken(original(*rest, **named)))
    lines.add({"step": 4})
    assert [record["step"] for record in read_lines(path)] == [1, 2, 3, 4]
    assert tries == [7, 7, 7]
    error = errno.ENOSPC
    tries.clear()
    lines.close()
    with pytest.raises(OSError, match="No space left") as caught:
        lines.add({"step": 5})
    assert (caught.value.filename, len(tries)) == (str(path), 1)


def test_wandb_is_offline_with_one_id_for_the_chain(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    logged: list[int] = []

    class _Run:
        def log(self, numbers: dict[str, float], step: int) -> None:
            assert "loss" in numbers
            logged.append(step)

        def finish(self) -> None:
            logged.append(-1)

    def init(**options: Any) -> _Run:
        calls.append(options)
        return _Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    for steps in (2, 4):
        loop.train(tiny_config(shards, tmp_path, wandb="p", steps=steps, schedule="constant"))
    assert [call["mode"] for call in calls] == ["offline", "offline"]
    assert calls[0]["id"] == calls[1]["id"]
    assert logged == [1, 2, -1, 3, 4, -1]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="needs the package wandb"):
        loop.train(tiny_config(shards, tmp_path, wandb="p", steps=4, schedule="constant"))


def test_tensorboard(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, int]] = []

    class _Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert (Path(folder).name, purge_step) == ("tensorboard", 1)

        def add_scalar(self, key: str, value: float, step: int) -> None:
            assert math.isfinite(value)
            written.append((key, step))

        def close(self) -> None:
            pass

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=_Writer))
    loop.train(tiny_config(shards, tmp_path, tensorboard=True, steps=2))
    assert {("loss", 1), ("loss", 2), ("grad_norm", 2)} <= set(written)


def test_profile(shards: Path, tmp_path: Path) -> None:
    loop.train(tiny_config(shards, tmp_path, profile=1, steps=5))
    assert json.loads((tmp_path / "run/profile.json").read_text())["traceEvents"]
