"""`train tune`: trials in fresh processes; and the benchmark for a GPU, where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, needs

torch = needs("torch")
from pretok.base.errors import UsageError
from pretok.base.storage import read_lines
from tests.train_support import model_file, run_ranks
from train import tune
from train.__main__ import main


def test_tune_takes_out_of_memory_as_a_result(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One real trial in a process of its own; the others answer as trials do that do not fit or fail."""
    started = []

    def run(command: list[str], **options: Any) -> Any:
        settings = tomllib.loads(Path(command[-1]).read_text())
        size = str(settings["micro_batch"])
        started.append(size)
        assert options["env"]["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)  # from any folder
        if size == "2":
            assert command[:3] == [sys.executable, "-m", "train"]
            run_ranks(1, command[3:], tmp_path)
            return types.SimpleNamespace(returncode=0, stderr="")
        text = "torch.OutOfMemoryError: CUDA out of memory." if size == "4" else "ValueError: something else"
        return types.SimpleNamespace(returncode=1, stderr=text)

    monkeypatch.setattr(tune.subprocess, "run", run)
    command = ["tune", "--shards", str(shards), "--model", model_file(tmp_path), "--seq-len", "16"]
    command += ["--out", str(tmp_path / "t"), "--try", "micro-batch=8,4,1,2", "--try", "checkpointing=none"]
    command += ["--try", "compile=no", "--try", "shard=1,2"]
    main([*command, "--trial-steps", "5", "--workers", "0"])
    records = [record for record in read_lines(tmp_path / "t/tune.jsonl") if record["shard"] == 1]
    assert [record["outcome"] for record in records] == [
        "failed: ValueError: something else",
        "ok",
        "out of memory",
        "out of memory",
    ]
    others = [record["outcome"] for record in read_lines(tmp_path / "t/tune.jsonl") if record["shard"] == 2]
    assert others == ["failed: shard = 2 does not divide 1 data-parallel ranks; valid: [1]"] * 4
    assert started == ["1", "2", "4"]  # 8 cannot fit where 4 does not
    tuned = (tmp_path / "t/tuned.toml").read_text()
    assert tuned == 'micro_batch = 2\ncheckpointing = "none"\ncompile = false\nshard = 1\n'
    assert "best: micro_batch 2 " in capsys.readouterr().out


def test_what_a_setting_cannot_be_is_not_tried() -> None:
    lists = tune.lists_of(["checkpointing=ops,0.5", "reshard=yes,no"])
    assert lists["checkpointing"] == ["ops", "0.5"]
    assert lists["reshard"] == [True, False]
    assert lists["micro_batch"] == tune.TRIED["micro_batch"]
    for text in ("tensr=2", "tensor=two", "checkpointing=half"):
        with pytest.raises(UsageError):
            tune.lists_of([text])


@pytest.mark.slow
def test_the_table_of_a_gpu_is_made_without_one(tmp_path: Path) -> None:
    script = [
        sys.executable,
        str(ROOT / "benchmarks" / "train_gpu.py"),
        "--json",
        str(tmp_path / "rows.json"),
    ]
    more = ["--models", "debug", "--lengths", "32", "--micro-batch", "1", "--steps", "5"]
    done = subprocess.run([*script, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["attention"], row["outcome"]) for row in rows] == [("causal", "ok"), ("document", "ok")]
    assert rows[0]["tokens_per_second_per_device"] > 0
    assert "dense bf16 peak n/a" in done.stdout
    assert "debug: loss alone, forward and backward: eager" in done.stdout
