"""One run goes through every mesh of one, two and four ranks, as if it had always been the same.

A checkpoint knows nothing of meshes: it holds whole tensors by the names of parameters, in pieces whose places are
written down. So not every pair of meshes is tried, but two things are asked: that each mesh writes the tensors that one
process writes, read back without any mesh; and that each goes on from what another one wrote.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import needs

torch = needs("torch")
from tests.train_support import column, read_tensors, run_jobs

MESHES = [
    (1, 1, 1, 1, 1),
    (1, 2, 1, 1, 1),
    (1, 1, 2, 1, 1),
    (1, 1, 1, 2, 1),
    (2, 1, 1, 1, 1),
    (1, 4, 1, 1, 1),
    (1, 2, 2, 1, 1),
    (1, 1, 4, 1, 1),
    (1, 2, 1, 2, 1),
    (1, 1, 2, 2, 1),
    (1, 1, 1, 4, 1),
    (2, 2, 1, 1, 1),
    (2, 1, 2, 1, 1),
    (2, 1, 1, 2, 1),
    (1, 1, 2, 1, 2),
    (1, 2, 2, 1, 2),
    (1, 1, 4, 1, 2),
    (1, 1, 4, 1, 4),
    (1, 1, 2, 2, 2),
    (2, 1, 2, 1, 2),
]
"""pipeline x replicate x shard x tensor, and how many of a shard share each sequence."""
EACH = 2
"""Steps on each mesh: the loss of the first tells of the parameters it read, of the second of the moments too."""

SIZES = (
    "vocab_size = 60\ndim = 16\nlayers = 2\nheads = 4\nkv_heads = 4\nhidden = 16\ntied = false\nwindow = 5\n"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_through_every_mesh_is_that_of_one_process(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text(SIZES)
    whole, through = tmp_path / "whole", tmp_path / "through"

    def job(mesh: tuple[int, ...], run: Path, steps: int) -> tuple[int, list[object]]:
        pipeline, replicate, shard, tensor, context = mesh
        paths = ("--shards", shards, "--out", run, "--model", tmp_path / "model.toml", "--seq-len", 8)
        micro = 4 * context // (pipeline * replicate * shard)  # a pipeline of P stages makes P passes
        batch = ("--global-batch", 4, "--micro-batch", micro, "--steps", steps, "--workers", 0)
        # A large epsilon: else the first steps go by the signs of gradients, of which rounding decides some.
        learning = ("--lr", 0.01, "--eps", 0.001, "--warmup", 0, "--schedule", "constant", "--log-every", 99)
        sizes = ("--pipeline", pipeline, "--shard", shard, "--tensor", tensor, "--context", context)
        saves = ("--save-every", EACH, "--keep-last", 99)
        return pipeline * replicate * shard * tensor, [*paths, *batch, *learning, *sizes, *saves]

    ends = [EACH * number for number in range(1, len(MESHES) + 1)]
    links = [job(mesh, through, end) for mesh, end in zip(MESHES, ends, strict=True)]
    run_jobs([job(MESHES[0], whole, ends[-1]), *links], tmp_path)

    losses = column(whole, "loss")
    assert len(set(losses)) == ends[-1]  # they move, so equality says something
    assert column(through, "data_hash") == column(whole, "data_hash")
    assert column(through, "loss") == pytest.approx(losses, rel=1e-5)
    assert column(through, "grad_norm") == pytest.approx(column(whole, "grad_norm"), rel=1e-4)
    for mesh, end in zip(MESHES, ends, strict=True):
        found, alone = (read_tensors(run / f"checkpoints/step-{end:08d}") for run in (through, whole))
        assert len([name for name in alone if name.startswith("model.")]) == 2 * 9 + 3
        assert found.keys() == alone.keys(), mesh
        for name, value in alone.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=f"{mesh} {name}")
