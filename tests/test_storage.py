"""Storage that fails as it does in a cluster: disks that are full, as small file systems show them, files that change
after they were planned. The error names the file, no finished file is harmed, and the same command completes when the
cause is gone.

Single errors of calls of the system are in tests/test_faults.py, locks and clocks in tests/base/test_lock.py, disks
that fill under a training run in tests/train.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import left
from test_faults import LINES, made  # noqa: F401 - a fixture

from pretok.cli import run_command

ROOM, FILES, PAGE = 64 << 20, 10_000, 4096
"""Bytes and files of a disk that is not full, and the bytes that it counts in."""
HERE = ("--workers", "0")
WRITERS = (
    "tokenize",
    "append",
    "count",
    "build-vocab",
    "pack",
    "materialize",
    "export",
    "annotate",
    "remove",
)


class Disk:
    """A file system of its own at `path`, which can be small."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        if why := self._mount("-t", "tmpfs", "-o", f"size={ROOM},nr_inodes={FILES}", "tmpfs"):
            pytest.skip(f"no file system may be mounted here: {why}")

    def _mount(self, *arguments: str) -> str:
        command = ["mount", *arguments, str(self.path)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()

    @property
    def used(self) -> tuple[int, int]:
        """Pages and files."""
        now = os.statvfs(self.path)
        return now.f_blocks - now.f_bfree, now.f_files - now.f_ffree

    def limit(self, pages: int = ROOM // PAGE, files: int = FILES) -> None:
        """Give it so much room, never less than it uses."""
        used = self.used
        size, most = max(pages, used[0]) * PAGE, max(files, used[1])
        assert self._mount("-o", f"remount,size={size},nr_inodes={most}") == ""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk.path)], check=True)


@pytest.mark.usefixtures("few_buckets")
@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk(
    name: str,
    many: bool,
    made: Path,  # noqa: F811
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Wherever it is full: from no room at all to one page less than the result takes."""
    monkeypatch.setattr(
        "pretok.documents.removal.remove_job._now", lambda manifest: "2026-01-01T00:00:00.000Z"
    )
    work = shutil.copytree(made, disk.path / "work")
    line, before = [part.format(work=work) for part in LINES[name]], disk.used
    assert run_command(line) == 0
    wanted, after = left(work), disk.used
    of_pages, of_files = (range(*ends) for ends in zip(before, after, strict=True))
    levels = [{"pages": of_pages[0]}, {"pages": of_pages[len(of_pages) // 2]}]
    if many:
        every = [{"pages": n} for n in of_pages] + [{"files": n} for n in of_files]
        levels = random.Random(name).sample(every, min(12, len(every)))
    codes = []
    for room in levels:
        disk.limit()
        shutil.rmtree(work)
        shutil.copytree(made, work)
        disk.limit(**room)
        capfd.readouterr()
        codes.append(run_command(line))
        said = capfd.readouterr().err
        assert codes[-1] in (0, 75), (room, said)  # it may have needed less on the way
        if codes[-1]:
            named = rf"cannot write {work}\S+: [^;]*No space left on device; free some space there"
            assert re.search(named, said), said
        assert "Traceback" not in said
        disk.limit()
        assert run_command(["verify", str(work / "shards"), *HERE]) == 0, room
        assert run_command(line) == 0, room
        assert left(work) == wanted, room
    assert 75 in codes


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "grown": lambda data: data + data[-40:],
    "shrunk": lambda data: data[:-40],
    "other words": lambda data: (
        data[: len(data) // 2] + data[len(data) // 2 :].replace(b"parola", b"papera", 1)
    ),
    "gone": lambda data: b"",
}
"""What an input is after it was planned."""


@pytest.mark.usefixtures("few_buckets")
@pytest.mark.parametrize("command", ["tokenize", "count"])
@pytest.mark.parametrize(
    ("suffix", "documents"),
    [(".jsonl", 50), (".jsonl", 5000), pytest.param(".parquet", 5000, marks=pytest.mark.slow)],
)
def test_an_input_that_changes_behind_the_plan(
    command: str,
    suffix: str,
    documents: int,
    vocab_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It is named, and its text counts once it is as it was: no other text does in silence."""
    path, out = tmp_path / f"a{suffix}", tmp_path / "out"
    rows = [{"id": f"{n}", "text": f"La parola numero {n}, una di molte."} for n in range(documents)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, compression="none", use_dictionary=False)
    data = path.read_bytes()
    vocab = ("--vocab", str(vocab_dir)) if command == "tokenize" else ()
    line = [command, f"it={path}", "--out", str(out), *vocab, *HERE]
    module = import_module(
        {"tokenize": "pretok.shards.tokenize_task", "count": "pretok.vocab.counts.count_task"}[command]
    )
    assert run_command(line) == 0
    wanted, read = left(out), module.read_documents
    for change, after in CHANGES.items():
        shutil.rmtree(out)

        def read_changed(*arguments: Any, changed: bytes = after(data)) -> Any:
            path.unlink()
            if changed:
                path.write_bytes(changed)
            return read(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(module, "read_documents", read_changed)
            assert run_command(line) == 3, change
        assert f"{path}: changed since it was planned" in capfd.readouterr().err, change
        path.write_bytes(data)
        if command == "count":  # as its message says
            shutil.rmtree(out)
        assert run_command(line) == 0, change
        assert left(out) == wanted, change
