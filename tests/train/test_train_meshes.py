"""Every mesh of one, two and four ranks goes on where every other one stopped, as if it had always been the same."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest
from support import needs

needs("torch")
from tests.train_support import column, random_shards, run_jobs

MESHES = [
    (1, 1, 1),
    (2, 1, 1),
    (1, 2, 1),
    (1, 1, 2),
    (4, 1, 1),
    (2, 2, 1),
    (1, 4, 1),
    (2, 1, 2),
    (1, 2, 2),
    (1, 1, 4),
]
"""replicate x shard x tensor."""
SAVED, LAST = 2, 4
"""Two steps more: the loss of the first tells of the parameters, that of the second of the moments as well."""

SIZES = "vocab_size = 60\ndim = 16\nlayers = 1\nheads = 4\nkv_heads = 4\nhidden = 16\ntied = false\n"


def test_every_mesh_resumes_from_every_other(tmp_path: Path) -> None:
    shards = random_shards(tmp_path / "shards")
    (tmp_path / "model.toml").write_text(SIZES)

    def job(mesh: tuple[int, int, int], run: Path, steps: int, *more: object) -> tuple[int, list[object]]:
        replicate, shard, tensor = mesh
        paths = ("--shards", shards, "--out", run, "--model", tmp_path / "model.toml")
        batch = ("--seq-len", 8, "--global-batch", 4, "--steps", steps, "--workers", 0, "--log-every", 99)
        learning = (
            "--lr",
            0.01,
            "--warmup",
            0,
            "--schedule",
            "constant",
            "--shard",
            shard,
            "--tensor",
            tensor,
        )
        return replicate * shard * tensor, [*paths, *batch, *learning, *more]

    def run_of(*meshes: tuple[int, int, int]) -> Path:
        return tmp_path / "-".join("x".join(map(str, mesh)) for mesh in meshes)

    run_jobs([job(mesh, run_of(mesh), SAVED) for mesh in MESHES], tmp_path)
    pairs = list(product(MESHES, MESHES))
    for pair in pairs:
        shutil.copytree(run_of(pair[0]), run_of(*pair))
    jobs = [job(pair[1], run_of(*pair), LAST, "--save-every", "never") for pair in pairs]
    run_jobs([job(MESHES[0], tmp_path / "whole", LAST), *jobs], tmp_path)

    whole = tmp_path / "whole"
    assert len(set(column(whole, "loss"))) == LAST  # they move, so equality says something
    for pair in pairs:
        run = run_of(*pair)
        assert column(run, "data_hash") == column(whole, "data_hash"), pair
        assert column(run, "loss") == pytest.approx(column(whole, "loss"), rel=1e-5), pair
        assert column(run, "grad_norm") == pytest.approx(column(whole, "grad_norm"), rel=1e-4), pair
