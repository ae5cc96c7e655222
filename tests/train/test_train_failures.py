"""What a machine does to a run comes out as one line that says what to do; a run that goes on is never silent."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT, needs, until

torch = needs("torch")
from pretok.base.errors import Stopped
from pretok.base.records import replace
from pretok.base.storage import read_lines
from tests.train_support import Ranks, tiny_config, tiny_flags
from train import __main__, loop, metrics, report
from train.checkpoint import HungSave, save
from train.config import TrainConfig
from train.report import Reporter, explain


def ended(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code and last words of a command."""
    with pytest.raises(SystemExit) as caught:
        __main__.main([str(argument) for argument in arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code, capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "tune", "--shards=x"])
def test_without_torch_one_line_says_what_to_install(command: str) -> None:
    script = "import sys; sys.modules['torch'] = None\nfrom train.__main__ import main\n"
    done = subprocess.run(
        [sys.executable, "-c", script + f"main(['{command}'])"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(
        "train: the package torch is not installed for this Python: run pip install"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you"
        ),
        MemoryError(),
    ],
)
def test_out_of_memory_names_what_to_lower(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def make_plan(config: TrainConfig, world: int) -> None:
        raise error

    monkeypatch.setattr("train.start.make_plan", make_plan)
    code, text = ended(capsys, "--shards", "x", "--out", tmp_path / "run", "--micro-batch", 4)
    assert code == 2
    assert text.startswith("train: out of memory on rank 0 of ")
    assert "lower --micro-batch (now 4)" in text
    assert "--checkpointing ops or full (now none)" in text
    assert text.count("\n") == 1


def test_a_bug_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: TrainConfig) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(loop, "train", train)
    with pytest.raises(RuntimeError, match="shapes differ"):
        __main__.main(["--shards", "x"])


def test_out_on_a_file_or_where_nothing_can_be_made(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    code, text = ended(capsys, "--shards", shards, "--out", tmp_path / "file")
    assert code == 2
    assert text.startswith(
        f"train: --out: {tmp_path / 'file/flight'} cannot be created: Not a directory; name a folder"
    )
    assert text.count("\n") == 1


def test_what_the_system_refuses_is_one_line() -> None:
    known = explain(PermissionError(13, "Permission denied", "RUN/metrics.jsonl"))
    assert f"{known}" == "RUN/metrics.jsonl: Permission denied"
    assert "No space left on device: free some" in f"{explain(OSError(28, 'No space left on device'))}"
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE):  # the next job may go on
        assert isinstance(explain(OSError(number, os.strerror(number))), Stopped)
    assert explain(FileNotFoundError(2, "No such file", "x")) is None
    assert explain(ModuleNotFoundError("no", name="trains")) is None


def test_an_id_outside_of_the_vocabulary_names_its_shard(shards: Path, tmp_path: Path) -> None:
    """In what a loader process reads and in validation."""
    folder = Path(shutil.copytree(shards, tmp_path / "shards"))
    flags = tiny_flags(folder, tmp_path, steps=None, workers=1, save_every="never")
    for path, more in (
        (folder / "it" / "it-val-00000.bin", ["--val-every", 1, "--val-sequences", 999]),
        (folder / "it" / "it-00000.bin", []),
    ):
        ids = np.fromfile(path, np.uint16)
        ids[20] = 60
        ids.tofile(path)
        ranks = Ranks(1, [*flags, *more], tmp_path)
        assert ranks.wait() == [2]
        assert f"train: {path} holds the id 60, and the vocabulary ends at 59" in ranks.text()
        assert "Traceback" not in ranks.text()


def test_a_node_without_git_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert metrics.provenance.__wrapped__()["commit"] is None


def test_step_lines_say_how_far_and_how_long(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(shards, tmp_path, steps=6)
    loop.train(replace(config, log_every=2))
    text = capsys.readouterr().out
    lines = [line.split("  ") for line in text.splitlines() if " step " in line]
    assert [line[0].split()[2] for line in lines] == ["2/6", "4/6", "6/6"]
    assert [line[1] for line in lines] == ["33%", "67%", "100%"]
    assert lines[-1][2] == "ETA 0 s"
    assert "warning: the warm-up (100 steps) is as long as the schedule" in text
    loop.train(replace(config, out=str(tmp_path / "b"), log_every=100, warmup=2))
    assert "warning" not in capsys.readouterr().out.replace("warning: no GPU", "")


def test_silence_is_broken_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "SILENCE", 0.1)
    began, told = time.monotonic(), list[str]()
    with Reporter(0, tmp_path) as say, Reporter(1, tmp_path) as other:
        say.doing = lambda: "at step 3/9 (saving)"
        other("not from rank 1")
        until(lambda: told.extend(capsys.readouterr().out.splitlines()) or len(told) > 2)
    assert len(told) <= (time.monotonic() - began) / 0.1 + 1
    assert all(re.search(r" still at step 3/9 \(saving\), \d+ s after the start", line) for line in told)


def test_a_run_leaves_a_log_and_says_when_and_where_in_every_line(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    run = tmp_path / "run"
    config = tiny_config(shards, tmp_path, steps=2)
    loop.train(config)
    [path] = (run / "logs").iterdir()
    log = read_lines(path)
    records = read_lines(run / "metrics.jsonl") + read_lines(run / "goodput.jsonl")
    for line in [*log, *records]:
        assert {"time", "host"} <= line.keys()
        assert line["job"] == "4711"
    assert all((line["command"], line["rank"]) == ("train", 0) for line in log)
    assert (log[0]["event"], log[0]["settings"]["seq_len"]) == ("start", 16)
    assert (log[-1]["event"], log[-1]["exit_code"]) == ("end", 0)
    told = "\n".join(line["message"] for line in log if line["event"] == "notice")
    assert told == capsys.readouterr().out.rstrip("\n")

    path.unlink()
    monkeypatch.setattr(loop, "train_step", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        loop.train(replace(config, steps=4))
    [path] = (run / "logs").iterdir()
    error, end = read_lines(path)[-2:]
    assert (error["event"], end["event"], end["exit_code"]) == ("error", "end", None)
    assert "ZeroDivisionError" in error["traceback"]


def test_a_rank_that_fails_has_a_file_of_its_own_and_one_that_stops_none(tmp_path: Path) -> None:
    with pytest.raises(Stopped), Reporter(1, tmp_path):
        raise Stopped("at the end of the job")
    with Reporter(2, tmp_path) as say:
        say("not from rank 2")
    assert not (tmp_path / "logs").exists()
    with pytest.raises(ZeroDivisionError), Reporter(3, tmp_path):
        raise ZeroDivisionError("no such thing")
    [path] = (tmp_path / "logs").iterdir()
    assert path.name.startswith("train-rank3-")
    error, end = read_lines(path)
    assert (error["rank"], error["message"], end["event"]) == (3, "no such thing", "end")


def _no_meta_on_rank_0() -> None:
    def write_meta(*_: object) -> None:
        raise OSError(28, "No space left on device")

    save.write_meta = write_meta
    save.PATIENCE = 0.0


def _bug_on_rank_1() -> None:
    from train.data import Feed

    if os.environ["RANK"] == "1":
        Feed.__iter__ = lambda feed: 1 / 0  # type: ignore[assignment, method-assign, return-value]


@pytest.mark.parametrize(
    ("before", "codes", "words", "tracebacks"),
    [
        (
            _no_meta_on_rank_0,
            [75, 75, 75],
            "checkpoint of step 1 could not be written: No space",
            0,
        ),
        (_bug_on_rank_1, [1, 1, 1], "rank 1 ended the run: ZeroDivisionError", 1),
    ],
)
def test_what_ends_one_rank_ends_all_with_its_words(
    shards: Path, tmp_path: Path, before: Callable[[], None], codes: list[int], words: str, tracebacks: int
) -> None:
    flags = tiny_flags(shards, tmp_path, global_batch=6, steps=5, save_every="1")
    ranks = Ranks(3, flags, tmp_path, before)
    assert ranks.wait() == codes, ranks.text()
    assert ranks.text().count(words) >= 2
    assert ranks.text().count("Traceback") == tracebacks


def test_a_save_that_hangs_ends_the_run(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    original = save.write_pieces

    def write(*arguments: Any, **named: Any) -> Any:
        released.wait(60)
        return original(*arguments, **named)

    monkeypatch.setattr(save, "write_pieces", write)
    config = tiny_config(shards, tmp_path, steps=2, timeout=2)
    with pytest.raises(
        HungSave, match=r"checkpoint of step 2 could not be written: not done after --timeout 2 s"
    ):
        loop.train(config)
    released.set()


def test_what_cannot_be_deleted_is_told_and_ends_nothing(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(save, "_delete", refuse)
    loop.train(tiny_config(shards, tmp_path, steps=3, save_every="1", keep_last=1))
    text = capsys.readouterr().out
    assert "step-00000001 is no longer needed and cannot be deleted: Permission denied" in text
    assert len(list((tmp_path / "run/checkpoints").glob("step-*"))) == 3


def test_collectives_of_every_group_end_after_the_timeout(shards: Path, tmp_path: Path) -> None:
    """Of a mesh, and of the saves beside training: their defaults are 10 and 30 minutes whatever --timeout says."""
    more = {"steps": 3, "timeout": 78, "shard": 2, "context": 2}
    ranks = Ranks(2, tiny_flags(shards, tmp_path, **more), tmp_path, _print_timeouts)
    assert ranks.wait() == [0, 0], ranks.text()
    found = [line.split() for line in ranks.text().splitlines() if line.startswith("timeouts")]
    assert found == 4 * [["timeouts", "78.0"]], ranks.text()


def _print_timeouts() -> None:
    import torch.distributed.distributed_c10d as c10d

    from train import loop

    original = loop._one_step

    def _one_step(run: Any, batches: Any) -> None:
        groups = list(c10d._world.pg_map)
        found = {group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups}
        assert len(groups) > 2
        if run.progress.step < 2:
            print("timeouts", *sorted(found), flush=True)
        original(run, batches)

    loop._one_step = _one_step
