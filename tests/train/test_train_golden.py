"""Checkpoints of this version load on any mesh: `tests/golden/checkpoints.tar.xz` keeps their tensors.

It holds two runs of one model on the golden shards, by one process and by a mesh of 2 shards x 2 tensor, each with its
checkpoint of step 3 and the losses of the three steps after it.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from support import needs
from test_golden import GOLDEN, golden_shards

needs("torch")
from pretok.base.errors import MismatchError
from tests.train_support import column, reseal, run_ranks
from train.checkpoint.meta import read_meta
from train.run.metrics import read_lines

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
    golden_shards(tmp_path / "shards")
    shutil.copy(GOLDEN / "mix.json", tmp_path)
    return tmp_path


def arguments(place: Path, run: Path) -> list[object]:
    paths = ("--shards", place / "shards", "--mix", place / "mix.json", "--out", run)
    return [*paths, "--model", place / "checkpoints/model.toml", *FLAGS]


@pytest.mark.parametrize("saved", ["1x1x1", "1x2x2"])
@pytest.mark.parametrize(("ranks", "mesh"), [(1, ""), (4, "--shard 2 --tensor 2"), (2, "--shard 1")])
def test_a_run_goes_on_on_any_mesh(place: Path, saved: str, ranks: int, mesh: str) -> None:
    run = place / "checkpoints" / saved
    before = read_lines(run / "metrics.jsonl")
    text = run_ranks(ranks, [*arguments(place, run), *mesh.split()], place)
    assert "resumed from step 3\n" in text
    assert column(run, "data_hash") == [record["data_hash"] for record in before]
    assert column(run, "loss") == pytest.approx([record["loss"] for record in before], rel=1e-5)
    assert column(run, "grad_norm") == pytest.approx([record["grad_norm"] for record in before], rel=1e-3)


@pytest.mark.parametrize(
    ("line", "missing"),
    [(',\n   "qk_norm": false', "identity.model.qk_norm"), (',\n  "phase": 0', "progress.phase")],
)
def test_a_checkpoint_that_lacks_a_field_is_refused_by_name(place: Path, line: str, missing: str) -> None:
    """As another version of the trainer would write it."""
    path = place / "checkpoints/1x1x1/checkpoints/step-00000003"
    text = (path / "meta.json").read_text()
    assert line in text
    (path / "meta.json").write_text(text.replace(line, ""))
    reseal(path)
    with pytest.raises(
        MismatchError, match=f"lacks {missing}: another version of train wrote it; go on with"
    ):
        read_meta(path)
