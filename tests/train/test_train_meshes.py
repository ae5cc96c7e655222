"""Every mesh of one, two and four ranks goes on where every other one stopped, as if it had always been the same."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import needs

needs("torch")
from tests.train_support import column, random_shards, run_jobs

MESHES = [
    (1, 1, 1, 1),
    (1, 2, 1, 1),
    (1, 1, 2, 1),
    (1, 1, 1, 2),
    (2, 1, 1, 1),
    (1, 4, 1, 1),
    (1, 2, 2, 1),
    (1, 1, 4, 1),
    (1, 2, 1, 2),
    (1, 1, 2, 2),
    (1, 1, 1, 4),
    (2, 2, 1, 1),
    (2, 1, 2, 1),
    (2, 1, 1, 2),
]
"""pipeline x replicate x shard x tensor."""
SAVED, LAST = 2, 4
"""Two steps more: the loss of the first tells of the parameters, that of the second of the moments as well. Pairs that
do one step compare the norms of the moments."""

SIZES = "vocab_size = 60\ndim = 16\nlayers = 2\nheads = 4\nkv_heads = 4\nhidden = 16\ntied = false\n"
PAIRS = "pairs.json"


def _go_on_from_every_run() -> None:
    """A run that is resumed first loads the checkpoint of each run beside its own and does a step, which costs a part
    of what starting a command does; then it goes on as it would have."""
    import torch.distributed as dist

    from train.checkpoint.restore import Reader, restore
    from train.run import loop
    from train.steps.optim import global_norm
    from train.steps.step import train_step

    original = loop._loop

    def go_on(run: Any, folder: Path) -> list[float]:
        trainee = run.trainee
        restore(trainee.state(), Reader(folder / f"checkpoints/step-{SAVED:08d}"))
        moments = [
            global_norm([trainee.optimizer.state[part][name] for part in trainee.parameters], trainee.groups)
            for name in ("exp_avg", "exp_avg_sq")
        ]
        with closing(iter(run.feed)) as batches:
            step = train_step(trainee, batches, SAVED + 1, run.leg.rate(SAVED), stop=False, save=False).read()
        return [step.loss, step.grad_norm, *(norm.item() for norm in moments)]

    def _loop(run: Any) -> None:
        out = Path(run.plan.config.out)
        if run.progress.step == SAVED:
            found = {folder.name: go_on(run, folder) for folder in sorted(out.parent.glob("saved-*"))}
            if dist.get_rank() == 0:
                (out / PAIRS).write_text(json.dumps(found))
            restore(run.trainee.state(), Reader(out / f"checkpoints/step-{SAVED:08d}"))
        original(run)

    loop._loop = _loop


def test_every_mesh_resumes_from_every_other(tmp_path: Path) -> None:
    shards = random_shards(tmp_path / "shards")
    (tmp_path / "model.toml").write_text(SIZES)

    def job(mesh: tuple[int, ...], run: Path, steps: int, *more: object) -> tuple[int, list[object]]:
        pipeline, replicate, shard, tensor = mesh
        paths = ("--shards", shards, "--out", run, "--model", tmp_path / "model.toml", "--seq-len", 8)
        batch = ("--global-batch", 4, "--accumulation", pipeline, "--steps", steps, "--workers", 0)
        learning = ("--lr", 0.01, "--warmup", 0, "--schedule", "constant", "--log-every", 99)
        sizes = ("--pipeline", pipeline, "--shard", shard, "--tensor", tensor)
        return pipeline * replicate * shard * tensor, [*paths, *batch, *learning, *sizes, *more]

    def run_of(kind: str, mesh: tuple[int, ...]) -> Path:
        return tmp_path / f"{kind}-{'x'.join(map(str, mesh))}"

    run_jobs([job(mesh, run_of("saved", mesh), SAVED) for mesh in MESHES], tmp_path)
    # Each goes on where its neighbour stopped by the command itself, and in the same process from all others.
    for before, mesh in zip([MESHES[-1], *MESHES], MESHES, strict=False):
        shutil.copytree(run_of("saved", before), run_of("goes-on", mesh))
    jobs = [job(mesh, run_of("goes-on", mesh), LAST, "--save-every", "never") for mesh in MESHES]
    run_jobs([job(MESHES[0], tmp_path / "whole", LAST), *jobs], tmp_path, before=_go_on_from_every_run)

    whole = tmp_path / "whole"
    losses, norms = column(whole, "loss"), column(whole, "grad_norm")
    assert len(set(losses)) == LAST  # they move, so equality says something
    alone = run_of("goes-on", MESHES[0])
    *_, mean, square = json.loads((alone / PAIRS).read_text())[run_of("saved", MESHES[0]).name]
    moments = [mean, square]
    for mesh in MESHES:
        run = run_of("goes-on", mesh)
        assert column(run, "data_hash") == column(whole, "data_hash"), mesh
        assert column(run, "loss") == pytest.approx(losses, rel=1e-5), mesh
        pairs = json.loads((run / PAIRS).read_text())
        assert len(pairs) == len(MESHES)
        for saved, (loss, norm, *found) in pairs.items():
            assert loss == pytest.approx(losses[SAVED], rel=1e-5), (saved, mesh)
            assert norm == pytest.approx(norms[SAVED], rel=1e-4), (saved, mesh)
            assert found == pytest.approx(moments, rel=1e-4), (saved, mesh)
