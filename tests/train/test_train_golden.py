"""Checkpoints of this version load on any mesh: `tests/golden/checkpoints.tar.xz` keeps their tensors.

It holds two runs of one model on the golden shards, by one process and by a mesh of 2 shards x 2 tensor, each with its
checkpoint of step 3 and the losses of all six. `PYTHONPATH=.:tests python tests/train/test_train_golden.py` writes it
anew where its format changes.
"""

from __future__ import annotations

import re
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest
from support import needs
from test_golden import GOLDEN, golden_shards

needs("torch")
from pretok.base.storage import read_lines
from tests.train_support import column, reseal, run_jobs
from train.__main__ import main

FLAGS = ("--global-batch", 8, "--steps", 6, "--warmup", 2, "--lr", 0.01, "--workers", 0, "--save-every", 99)
MESHES = {"1x1x1": (1, ()), "1x2x2": (4, ("--shard", 2, "--tensor", 2))}
"""Each run -> its ranks and their mesh."""


def unpacked(folder: Path) -> Path:
    """The two runs as they were, checkpoints/model.toml, shards and mix.json."""
    with tarfile.open(GOLDEN / "checkpoints.tar.xz") as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    golden_shards(folder / "shards")
    shutil.copy(GOLDEN / "mix.json", folder)
    return folder / "checkpoints"


def test_each_run_goes_on_on_the_mesh_of_the_other(tmp_path: Path) -> None:
    before, jobs = unpacked(tmp_path), []
    paths = (
        "--shards",
        tmp_path / "shards",
        "--mix",
        tmp_path / "mix.json",
        "--model",
        before / "model.toml",
    )
    for run, other in zip(MESHES, reversed(MESHES), strict=True):
        out = shutil.copytree(before / run, tmp_path / run)
        ranks, mesh = MESHES[other]
        jobs.append((ranks, [*paths, "--out", out, *FLAGS, *mesh]))
    assert run_jobs(jobs, tmp_path).count("resumed from step 3\n") == 2
    for run in MESHES:
        lines = read_lines(before / run / "metrics.jsonl")
        for name, exact in (("data_hash", None), ("loss", 1e-5), ("grad_norm", 1e-3)):
            wanted = [line[name] for line in lines]
            assert column(tmp_path / run, name) == (pytest.approx(wanted, rel=exact) if exact else wanted)


def test_a_checkpoint_of_another_version_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By all that read it, and it stays as it is: it is not damaged."""
    run = unpacked(tmp_path) / "1x1x1"
    reseal(run / "checkpoints/step-00000003", version=1)
    begin = f"--shards {tmp_path}/shards --mix {tmp_path}/mix.json --steps 6 --out"
    words = "step-00000003/meta.json has format version 1, this program reads 2: resume with the train that"
    for command in (
        f"{begin} {run} --model debug",
        f"{begin} {tmp_path}/new --init-from {run}",
        f"verify {run}",
        f"export --run {run} --out {tmp_path}/model",
    ):
        with pytest.raises(SystemExit, match="2"):
            main(command.split())
        assert words in capsys.readouterr().err
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000003"]


def write_golden() -> None:
    """Train both runs, and keep of each what stands in the archive, without times, hosts and folders."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before, made = unpacked(folder), folder / "made/checkpoints"
        shutil.copytree(before, made, ignore=shutil.ignore_patterns("1x*"))
        paths = ("--shards", folder / "shards", "--mix", folder / "mix.json", "--model", made / "model.toml")
        flags = (*FLAGS[:-1], 3)
        run_jobs(
            [(ranks, [*paths, "--out", made / run, *flags, *mesh]) for run, (ranks, mesh) in MESHES.items()],
            folder,
        )
        for run in MESHES:
            kept = {"metrics.jsonl", "segments.jsonl", "checkpoints", "step-00000003"}
            for path in [*(made / run).iterdir(), *(made / run / "checkpoints").iterdir()]:
                if path.name not in kept:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            for path in (made / run).glob("*.jsonl"):
                text = path.read_text().replace(name, "")
                text = re.sub(r'"time": "[^"]*"', '"time": "2026-01-01T00:00:00.000+00:00"', text)
                path.write_text(re.sub(r'"host": "[^"]*"', '"host": "host"', text))
        nobody = {"mtime": 0, "uid": 0, "gid": 0, "uname": "", "gname": "", "deep": False}
        with tarfile.open(GOLDEN / "checkpoints.tar.xz", "w:xz") as archive:
            archive.add(made, made.name, filter=lambda entry: entry.replace(**nobody))


if __name__ == "__main__":
    write_golden()
