"""One process and any mesh of four train the same model on the same data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train_support import column, model_file, random_shards, run_ranks

pytest.importorskip("torch")

STEPS = 6


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_shards(tmp_path_factory.mktemp("shards"))


def arguments(shards: Path, run: Path, model: str) -> list[object]:
    return [
        *("--shards", shards, "--out", run, "--model", model, "--seq-len", 16, "--global-batch", 16),
        *("--steps", STEPS, "--lr", 0.01, "--warmup", 2, "--workers", 0, "--save-every", 1000),
    ]


@pytest.fixture(scope="module")
def alone(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    runs = {}
    for tied in (True, False):
        folder = tmp_path_factory.mktemp("alone")
        run_ranks(1, arguments(shards, folder / "run", model_file(folder, tied=tied)), folder)
        runs[tied] = folder / "run"
    return runs


@pytest.mark.parametrize(
    ("extra", "tied"),
    [
        (["--shard", 2], True),
        (["--shard", 2, "--accumulation", 2], False),
        (["--shard", 2, "--micro-batch", 1, "--sync", "last"], True),
        (["--shard", 1], True),
        (["--shard", 4, "--no-reshard", "--checkpointing", "full"], True),
        (["--shard", 2, "--tensor", 2], True),
        (["--shard", 1, "--tensor", 2, "--micro-batch", 2, "--checkpointing", "every-2"], False),
    ],
    ids=["2x2", "2x2-scatter", "2x2-last", "ddp", "zero-2", "2-tensor-2", "replicate-2-tensor-2"],
)
def test_four_processes_equal_one(
    shards: Path, alone: dict[bool, Path], tmp_path: Path, extra: list[object], tied: bool
) -> None:
    run = tmp_path / "run"
    run_ranks(4, [*arguments(shards, run, model_file(tmp_path, tied=tied)), *extra], tmp_path)
    assert column(run, "data_hash") == column(alone[tied], "data_hash")
    assert column(run, "loss") == pytest.approx(column(alone[tied], "loss"), rel=1e-5)
    assert column(run, "grad_norm") == pytest.approx(column(alone[tied], "grad_norm"), rel=1e-4)
    assert len(set(column(run, "loss"))) == STEPS  # the losses move, so equality says something


def test_bf16_accumulation_offload_and_document_mask_on_a_mesh(
    shards: Path, alone: dict[bool, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    extra = ["--precision", "bf16", "--offload", "--micro-batch", 2, "--checkpointing", "ops", "--shard", 2]
    run_ranks(4, [*arguments(shards, run, model_file(tmp_path)), *extra, "--attention", "document"], tmp_path)
    assert column(run, "data_hash") == column(alone[True], "data_hash")
    # Another precision and another mask: near, and not equal.
    assert column(run, "loss") == pytest.approx(column(alone[True], "loss"), rel=0.02)
    assert column(run, "loss") != pytest.approx(column(alone[True], "loss"), rel=1e-6)
