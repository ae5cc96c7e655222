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
MESHES: dict[int, tuple[object, ...]] = {1: (), 4: ("--shard", 2, "--tensor", 2), 2: ("--shard", 1)}
"""Ranks -> their mesh."""


def unpacked(folder: Path) -> Path:
    """The two runs as they were, checkpoints/model.toml, shards and mix.json."""
    with tarfile.open(GOLDEN / "checkpoints.tar.xz") as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    golden_shards(folder / "shards")
    shutil.copy(GOLDEN / "mix.json", folder)
    return folder / "checkpoints"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """checkpoints/, and a folder in which each run went on as RUN-RANKS, on each mesh."""
    folder = tmp_path_factory.mktemp("golden")
    before, jobs = unpacked(folder), []
    for saved in ("1x1x1", "1x2x2"):
        for ranks, mesh in MESHES.items():
            run = Path(shutil.copytree(before / saved, folder / f"{saved}-{ranks}"))
            paths = ("--shards", folder / "shards", "--mix", folder / "mix.json", "--out", run)
            jobs.append((ranks, [*paths, "--model", before / "model.toml", *FLAGS, *mesh]))
    text = run_jobs(jobs, folder)
    assert text.count("resumed from step 3\n") == len(jobs)
    return before, folder


@pytest.mark.parametrize("saved", ["1x1x1", "1x2x2"])
@pytest.mark.parametrize("ranks", MESHES)
def test_a_run_goes_on_on_any_mesh(runs: tuple[Path, Path], saved: str, ranks: int) -> None:
    before, run = read_lines(runs[0] / saved / "metrics.jsonl"), runs[1] / f"{saved}-{ranks}"
    assert column(run, "data_hash") == [record["data_hash"] for record in before]
    assert column(run, "loss") == pytest.approx([record["loss"] for record in before], rel=1e-5)
    assert column(run, "grad_norm") == pytest.approx([record["grad_norm"] for record in before], rel=1e-3)


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
        meshes = {"1x1x1": 1, "1x2x2": 4}
        flags = (*FLAGS[:-1], 3)
        run_jobs(
            [(n, [*paths, "--out", made / run, *flags, *MESHES[n]]) for run, n in meshes.items()], folder
        )
        for run in meshes:
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
