"""Checkpoints of the first version load for ever: `tests/golden/checkpoints.tar.xz` keeps their tensors.

It holds two runs of one model on the golden shards, by one process and by a mesh of 2 shards x 2 tensor, each with its
checkpoint of step 3 and the losses of the three steps after it.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from support import needs

needs("torch")
from pretok.base.errors import MismatchError
from tests.train_support import column, reseal, run_ranks
from train.checkpoint.meta import read_meta
from train.config import TrainConfig
from train.run import loop
from train.run.metrics import read_lines

GOLDEN = Path(__file__).parents[1] / "golden"
FLAGS = [
    "--global-batch",
    "8",
    "--steps",
    "6",
    "--warmup",
    "2",
    "--lr",
    "0.01",
    "--workers",
    "0",
    "--save-every",
    "99",
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """checkpoints/MESH, checkpoints/model.toml, shards and mix.json as they were."""
    with tarfile.open(GOLDEN / "checkpoints.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.copytree(GOLDEN / "v1", tmp_path / "shards")
    (tmp_path / "shards/mix.json").rename(tmp_path / "mix.json")
    shutil.copytree(GOLDEN / "docs", tmp_path / "shards/docs")
    shutil.copy(GOLDEN / "tokenizer.json", tmp_path / "shards")
    return tmp_path


def arguments(place: Path, run: Path) -> list[object]:
    paths = ("--shards", place / "shards", "--mix", place / "mix.json", "--out", run)
    return [*paths, "--model", place / "checkpoints/model.toml", *FLAGS]


@pytest.mark.parametrize("saved", ["1x1x1", "1x2x2"])
@pytest.mark.parametrize(("ranks", "mesh"), [(1, ""), (4, "--shard 2 --tensor 2"), (2, "--shard 1")])
def test_an_old_run_goes_on_on_any_mesh(place: Path, saved: str, ranks: int, mesh: str) -> None:
    run = place / "checkpoints" / saved
    before = read_lines(run / "metrics.jsonl")
    text = run_ranks(ranks, [*arguments(place, run), *mesh.split()], place)
    assert "resumed from step 3\n" in text
    assert column(run, "data_hash") == [record["data_hash"] for record in before]
    assert column(run, "loss") == pytest.approx([record["loss"] for record in before], rel=1e-5)
    assert column(run, "grad_norm") == pytest.approx([record["grad_norm"] for record in before], rel=1e-3)


@pytest.mark.parametrize(
    ("line", "message"),
    [("", None), ("norm_eps = 1e-6", r"settings: model\.norm_eps was 1e-05, is 1e-06\. Give")],
)
def test_a_field_that_an_old_file_lacks_has_its_default(place: Path, line: str, message: str | None) -> None:
    """As if `tied` and `norm_eps` had come later: no difference where the default is meant, else one with a name."""
    run = place / "checkpoints/1x1x1"
    path = run / "checkpoints/step-00000003/meta.json"
    text = path.read_text().replace(',\n   "norm_eps": 1e-05', "").replace('   "tied": true,\n', "")
    assert text.count("tied") == text.count("norm_eps") == 0
    path.write_text(text)
    reseal(path.parent)
    model = place / "checkpoints/model.toml"
    model.write_text(f"{model.read_text()}{line}\n")
    config = TrainConfig(
        shards=str(place / "shards"), mix=str(place / "mix.json"), model=str(model), out=str(run), global_batch=8,
        steps=4, workers=0,
    )  # fmt: skip
    if message is None:
        loop.train(config)
        assert len(column(run, "loss")) == 4
    else:
        with pytest.raises(MismatchError, match=message):
            loop.train(config)


def test_whole_numbers_in_the_sizes_of_an_old_file(place: Path) -> None:
    """A TOML file may say rope_theta = 10000, and a checkpoint then said so too."""
    path = place / "checkpoints/1x1x1/checkpoints/step-00000003"
    text = (path / "meta.json").read_text()
    (path / "meta.json").write_text(text.replace('"rope_theta": 500000.0', '"rope_theta": 500000'))
    reseal(path)
    assert repr(read_meta(path).identity.model.rope_theta) == "500000.0"
