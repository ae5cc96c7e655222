"""What a run says of itself beside its numbers, and the settings that make it tell more or run otherwise."""

from __future__ import annotations

import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
from pretok.shards.manifest import load_manifest
from tests.train_support import column, tiny_config
from train import loop
from train.parallel.devices import deterministic

settings = partial(tiny_config, steps=2, warmup=1)


def test_wandb_knows_code_and_data(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[dict[str, Any]] = []

    def init(**options: Any) -> Any:
        told.append(options["config"])
        return types.SimpleNamespace(log=lambda numbers, step: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    loop.train(settings(shards, tmp_path, wandb="p"))
    found = told[0]["provenance"]
    assert found["manifest"] == load_manifest(shards).fingerprint
    assert found["torch"] == torch.__version__
    assert {"commit", "command", "environment", "host"} <= found.keys()
    assert told[0]["seq_len"] == 16
    text = capsys.readouterr().out
    assert "attention: causal; blocks are not compiled\n" in text


def test_deterministic_holds_from_the_start_of_a_run(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    seen: list[tuple[bool, bool]] = []
    original = loop.train_step

    def train_step(*arguments: Any, **named: Any) -> Any:
        fills = torch.utils.deterministic.fill_uninitialized_memory
        seen.append((torch.are_deterministic_algorithms_enabled(), fills))
        return original(*arguments, **named)

    monkeypatch.setattr(loop, "train_step", train_step)
    for name, wanted in (("a", True), ("b", True), ("c", False)):
        loop.train(settings(shards, tmp_path, out=str(tmp_path / name), deterministic=wanted))
    assert seen == [(True, False)] * 4 + [(False, False)] * 2
    assert column(tmp_path / "a", "loss") == column(tmp_path / "b", "loss")
    deterministic(True)
    with pytest.raises(RuntimeError, match="deterministic"):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    deterministic(False)
    torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
