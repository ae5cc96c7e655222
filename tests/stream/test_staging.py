"""Staging: the nodes together copy what a run reads, a link copies nothing again, and no damaged file arrives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import make_shards

import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.lock import LOCK_FILE
from pretok.stream.staging import stage
from pretok.stream.tapes import FOLDER

DOCUMENTS = {"it": [range(1, 90), range(5, 70)], "en": [range(300)]}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Shards, a mix and a side file, and what is not to be copied."""
    folder = tmp_path / "work"
    shards = make_shards(folder / "shards", DOCUMENTS)
    (folder / "mix.json").write_text("{}")
    (folder / FOLDER).mkdir()
    (folder / FOLDER / "0123.tape").write_bytes(b"tape")
    (shards / f".{LOCK_FILE}").touch()
    (shards / "it" / "half.tmp").touch()
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """The content of all files that a run may read."""
    paths = [path for path in folder.rglob("*") if path.is_file() and LOCK_FILE not in path.name]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.suffix != ".tmp"}


def test_nodes_copy_each_file_once_and_the_next_link_only_what_changed(work: Path, tmp_path: Path) -> None:
    fast = tmp_path / "fast"
    done = [stage(work, fast, node, 3) for node in range(3)]
    assert files(fast) == files(work)
    assert sum(copied for _, copied, _ in done) == len(files(work))
    assert sum(size for size, _, _ in done) == sum(map(len, files(work).values()))
    streams = [pretok.stream.open(folder / "shards", seq_len=5) for folder in (work, fast)]
    assert (streams[0][:] == streams[1][:]).all()
    assert [stage(work, fast, node, 2)[:2] for node in range(2)] == [(0, 0)] * 2
    (work / "mix.json").write_text("[]")  # as long as before
    os.utime(work / "mix.json", (1, 1))
    (fast / "shards" / "it" / "it-00000.bin").write_bytes(b"half")
    assert stage(work, fast, 0, 1)[1] == 2
    assert files(fast) == files(work)


def test_a_damaged_file_does_not_arrive(work: Path, tmp_path: Path) -> None:
    path = work / "shards" / "it" / "it-00000.bin"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=f"{path} is damaged: run pretok verify"):
        stage(work, tmp_path / "fast", 0, 1)
    assert not list((tmp_path / "fast" / "shards" / "it").glob("*it-00000.bin*"))


def test_shards_of_another_project_are_not_replaced(work: Path, tmp_path: Path) -> None:
    make_shards(tmp_path / "fast" / "shards", {"it": [range(9)]})
    before = files(tmp_path / "fast")
    with pytest.raises(MismatchError, match=r"holds other shards than .* slurm\.fast"):
        stage(work, tmp_path / "fast", 0, 1)
    assert files(tmp_path / "fast") == before


def test_the_job_prints_what_it_cost(work: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pretok.stream.staging", str(work), str(tmp_path / "fast"), "0", "1"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"staged {len(files(work))} files, 0.00 GB, in {tmp_path / 'fast'} in " in said
    (work / "shards" / "manifest.json").unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "manifest.json" in done.stderr) == (2, True)
