"""Pipelines train the model that one process trains, and say what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import needs

needs("torch")
from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.storage import read_lines
from tests.train_support import column, random_shards, run_jobs
from train.config import TrainConfig
from train.model.sizes import PRESETS, ModelConfig
from train.parallel.layout import Batch, bubble, check_pipeline, split_layers

SIZES = "vocab_size = 60\ndim = 16\nlayers = 4\nheads = 4\nkv_heads = 4\nhidden = 16\ntied = false\nqk_norm = true\n"
STEPS = 4
PLAIN = ("--micro-batch", 2)
"""What all runs of a kind have in common, and of each the ranks and what is its own."""
CASES: dict[str, tuple[int, tuple[object, ...]]] = {
    "two": (2, ("--pipeline", 2, *PLAIN, "--checkpointing", "0.5")),
    "context": (4, ("--pipeline", 2, "--shard", 2, "--context", 2, *PLAIN)),
    "no-pipeline": (4, ("--tensor", 2, "--shard", 2, "--context", 2, "--micro-batch", 4)),
    "four": (4, ("--pipeline", 4, *PLAIN, "--checkpointing", "ops")),
}
EIGHT = (8, ("--pipeline", 2, "--shard", 2, "--tensor", 2, *PLAIN))
# A longer sequence in the middle of the run: the shapes that stages exchange change, and so does their number.
PHASES = '[{"at": 128, "seq_len": 16, "global_batch": 16}]'


def run_cases(folder: Path, cases: dict[str, tuple[int, tuple[object, ...]]]) -> Path:
    """FOLDER/NAME for each of them, and FOLDER/one of one process."""
    shards = random_shards(folder / "shards")
    (folder / "model.toml").write_text(SIZES)
    common: tuple[object, ...] = ("--shards", shards, "--model", folder / "model.toml", "--seq-len", 8)
    common += ("--global-batch", 8, "--steps", STEPS, "--workers", 0, "--log-every", 99, "--lr", 0.01)
    common += ("--warmup", 0, "--schedule", "constant", "--save-every", "never")
    common += ("--val-every", 2, "--val-sequences", 7)  # which do not divide among ranks
    common += ("--z-loss", 0.01, "--attention", "document", "--clip", 0.3, "--phases", PHASES)
    every = {"one": (1, ()), **cases}
    run_jobs([(n, [*common, *own, "--out", folder / name]) for name, (n, own) in every.items()], folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(tmp_path_factory.mktemp("runs"), CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_pipeline_equals_one_process(runs: Path, name: str) -> None:
    assert_equal(runs / name, runs / "one")


@pytest.mark.slow
def test_a_pipeline_of_shards_and_tensor_ranks_equals_one_process(tmp_path: Path) -> None:
    runs = run_cases(tmp_path, {"eight": EIGHT})
    assert_equal(runs / "eight", runs / "one")


def assert_equal(run: Path, one: Path) -> None:
    """Loss, norm over all stages before clipping, which is in force, z-loss, validation and its bits per byte."""
    assert len(set(column(one, "loss"))) == STEPS
    assert min(column(one, "grad_norm")) > 0.3
    assert column(run, "data_hash") == column(one, "data_hash")
    assert column(run, "loss") == pytest.approx(column(one, "loss"), rel=1e-5)
    assert column(run, "grad_norm") == pytest.approx(column(one, "grad_norm"), rel=1e-4)
    for found, expected in zip(*(read_lines(path / "validation.jsonl") for path in (run, one)), strict=True):
        assert found["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-5)
        assert found["bits_per_byte"] == pytest.approx(expected["bits_per_byte"], rel=1e-5)


def test_blocks_are_divided_by_their_time() -> None:
    """The last stage has the output matrix, which is about one block of this model."""
    model = PRESETS["italia-9b"]
    parts = split_layers(model, 4)
    assert [len(part) for part in parts] == [10, 10, 11, 9]
    assert [number for part in parts for number in part] == list(range(40))
    for layers in range(2, 12):
        for stages in range(1, layers + 1):
            found = split_layers(replace(model, layers=layers), stages)
            assert all(found)
            assert [number for part in found for number in part] == list(range(layers))


def test_the_bubble() -> None:
    assert bubble(4, 12) == pytest.approx(3 / 15)
    assert bubble(1, 12) == 0.0


@pytest.mark.parametrize(
    ("model", "batch", "words"),
    [
        ({"tied": True}, Batch(8, 1, 8, 1), "needs a separate output matrix"),
        ({"layers": 3}, Batch(8, 1, 8, 1), "4 is more than the 3 blocks"),
        ({}, Batch(8, 4, 2, 1), "at least 4 micro-batches per step and rank; there are 2"),
    ],
)
def test_what_does_not_go_with_a_pipeline_is_refused_by_name(
    model: dict[str, object], batch: Batch, words: str
) -> None:
    sizes: ModelConfig = replace(PRESETS["italia-9b"], **model)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words):
        check_pipeline(TrainConfig(pipeline=4), sizes, batch)
    check_pipeline(TrainConfig(pipeline=4), PRESETS["italia-9b"], Batch(8, 1, 8, 1))
