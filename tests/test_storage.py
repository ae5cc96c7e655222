"""Storage that fails as it does in a cluster: disks that are full, as small file systems show them, files that change
after they were planned. The error names the file, no finished file is harmed, and the same command completes when the
cause is gone.

Single errors of calls of the system are in tests/test_faults.py, locks and clocks in tests/base/test_lock.py.
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
from support import left, needs, write_inputs

from pretok.cli import run_command

ROOM, FILES, PAGE = 64 << 20, 10_000, 4096
"""Bytes and files of a disk that is not full, and the bytes that it counts in."""
SHARDS, OUT = "{work}/shards", "{work}/new"
INPUTS = ("it={work}/it.jsonl", "en={work}/en.jsonl")
HERE = ("--workers", "0")
TOKENS = ("tokenize", *INPUTS, "--vocab", "{work}/tokenizer.json", "--keep", "id", *HERE, "--out")
MIX = ("mix", SHARDS, "--out", "{work}/new.json", "--weights", "it=0.5,en=0.5", "--seq-len", "16")
LINES = {
    "tokenize": (*TOKENS, OUT),
    "append": (*TOKENS, "{work}", "--append", "it={work}/more.jsonl"),
    "count": ("count", *INPUTS, "--out", OUT, *HERE),
    "build-vocab": ("build-vocab", *INPUTS, "--out", OUT, "--vocab-size", "370", *HERE),
    "mix": (*MIX, "--pack", "best-fit"),
    "materialize": (*MIX, "--materialize", OUT, *HERE),
    "export": ("export", SHARDS, "--to", "olmo", "--out", OUT, *HERE),
    "annotate": ("annotate", SHARDS, "{work}/rows.jsonl", "--name", "q", "--by", "id"),
    "remove": ("remove", SHARDS, "--where", "id = 'it3'", "--reason", "why"),
}
"""Commands that write; {work} holds inputs and shards of them."""


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
        found = os.statvfs(self.path)
        return found.f_blocks - found.f_bfree, found.f_files - found.f_ffree

    def limit(self, pages: int = ROOM // PAGE, files: int = FILES) -> None:
        """Give it so much room, never less than it uses."""
        used = self.used
        size, most = max(pages, used[0]) * PAGE, max(files, used[1])
        assert self._mount("-o", f"remount,size={size},nr_inodes={most}") == ""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    made = Disk(tmp_path_factory.mktemp("storage") / "disk")
    yield made
    subprocess.run(["umount", "--lazy", str(made.path)], check=True)


def typed(line: tuple[str, ...], work: Path) -> list[str]:
    return [part.format(work=work) for part in line]


@pytest.fixture(scope="module")
def made(disk: Disk, vocab_dir: Path) -> Path:
    """What the commands work on, as it is beside the place where they do."""
    work = disk.path / "work"
    work.mkdir()
    write_inputs(work)
    shutil.copy(vocab_dir / "tokenizer.json", work)
    assert run_command(typed((*TOKENS, "{work}"), work)) == 0
    return Path(shutil.copytree(work, disk.path.parent / "made"))


@pytest.fixture
def work(made: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of commands, always at one place: inputs are known by their paths."""
    monkeypatch.setattr("pretok.removal.job._now", lambda manifest: "2026-01-01T00:00:00.000Z")
    return begin(disk.path / "work", made, disk)


def begin(work: Path, made: Path, disk: Disk) -> Path:
    disk.limit()
    shutil.rmtree(work)
    return Path(shutil.copytree(made, work))


@pytest.mark.usefixtures("few_buckets")
@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LINES)
def test_a_full_disk(
    name: str, many: bool, work: Path, made: Path, disk: Disk, capfd: pytest.CaptureFixture[str]
) -> None:
    """Wherever it is full: from no room at all to one page less than the result takes."""
    line, before = typed(LINES[name], work), disk.used
    assert run_command(line) == 0
    wanted, after = left(work), disk.used
    of_pages, of_files = (range(*ends) for ends in zip(before, after, strict=True))
    levels = [{"pages": of_pages[0]}, {"pages": of_pages[len(of_pages) // 2]}]
    if many:
        every = [{"pages": n} for n in of_pages] + [{"files": n} for n in of_files]
        levels = random.Random(name).sample(every, min(12, len(every)))
    codes = []
    for room in levels:
        begin(work, made, disk)
        disk.limit(**room)
        capfd.readouterr()
        codes.append(run_command(line))
        said = capfd.readouterr().err
        assert codes[-1] in (0, 75), (room, said)  # it may have needed less on the way
        if codes[-1]:
            assert re.search(
                rf"cannot write {work}\S+: [^;]*No space left on device; free some space there", said
            ), said
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
    module = import_module({"tokenize": "pretok.shards.task", "count": "pretok.counts.task"}[command])
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


def test_a_disk_that_fills_under_a_run(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Saves are tried again for a while, lines of metrics are left out. The last whole checkpoint stays. Of ranks of
    which one fails tests/train/test_train_records.py has a test."""
    needs("torch")
    from tests.train_support import column, leave_torch_alone, random_shards, tiny_flags
    from train import loop
    from train.__main__ import main
    from train.checkpoint import save

    leave_torch_alone(monkeypatch.setattr)
    monkeypatch.setattr(save, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(save, "PATIENCE", 0.3)
    shards, original = random_shards(tmp_path / "shards"), loop._save
    whole, run = (
        tiny_flags(shards, tmp_path, out=str(out), steps=32, warmup=1, save_every="4")
        for out in (tmp_path / "whole", disk.path / "run")
    )

    def fill(run: Any) -> None:
        if run.progress.step == 8:
            disk.limit(disk.used[0])
        original(run)
        run.checkpoints.wait()  # before a line meets it

    main(whole)
    assert (tmp_path / "whole" / "metrics.jsonl").stat().st_size > 3 * PAGE  # one ends behind step 8
    disk.limit()
    monkeypatch.setattr(loop, "_save", fill)
    with pytest.raises(SystemExit, match="75"):
        main(run)
    said = rf"{disk.path}/run/checkpoints: the checkpoint of step \d+ could not be written: .*No space left on device"
    assert re.search(said, capsys.readouterr().err)
    checkpoints = disk.path / "run" / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000004"]
    main(["verify", str(disk.path / "run")])
    monkeypatch.setattr(loop, "_save", original)
    disk.limit()
    main(run)
    for name in ("loss", "data_hash"):
        assert column(disk.path / "run", name) == column(tmp_path / "whole", name)
