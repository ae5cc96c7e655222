"""What a run says: numbers, where its time went, which rank is slow, logs; and what a machine does to it comes out as
one line that says what to do."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import children, needs, until

torch = needs("torch")
from pretok.base.errors import IntegrityError, PretokError, Stopped, UsageError
from pretok.base.storage import read_lines
from pretok.base.version import PRETOK_VERSION
from pretok.shards.manifest import load_manifest
from pretok.stream import View
from pretok.stream.mix_file import natural_mix
from tests.train_support import Ranks, Trial, around, column, run_jobs, tiny_flags
from train import loop, metrics, report
from train.__main__ import main
from train.checkpoint import HungSave, save
from train.metrics import Goodput, Lines
from train.report import Reporter, explain
from train.stragglers import NOTABLE, slowest


def test_wandb_is_offline_with_one_id_for_the_chain_and_knows_code_and_data(trial: Trial) -> None:
    calls: list[dict[str, Any]] = []
    logged: list[int] = []

    def begin(**options: Any) -> Any:
        calls.append(options)
        log = lambda numbers, step: logged.append(step if "loss" in numbers else 0)  # noqa: E731
        return types.SimpleNamespace(log=log, finish=lambda: logged.append(-1))

    trial.patch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=begin))
    for steps in (2, 4):
        trial.train(wandb="p", steps=steps, schedule="constant")
    assert logged == [1, 2, -1, 3, 4, -1]
    assert [call["mode"] for call in calls] == ["offline", "offline"]
    assert calls[0]["id"] == calls[1]["id"]
    provenance = calls[0]["config"]["provenance"]
    assert calls[0]["config"]["seq_len"] == 16
    assert provenance["manifest"] == load_manifest(trial.shards).fingerprint
    assert provenance["tokenizer"] == load_manifest(trial.shards).tokenizer.fingerprint
    assert provenance["version"] == PRETOK_VERSION
    assert provenance["stream"]
    assert provenance["torch"] == torch.__version__
    assert {"commit", "command", "environment", "host"} <= provenance.keys()


def leveldb_records(data: bytes, offset: int) -> Iterator[bytes]:
    """The records of a log of LevelDB, the form of wandb's files, whose first block begins `offset` bytes before."""
    block, parts, at = 32768, b"", 0
    while at < len(data):
        if block - (offset + at) % block < 7:  # too short for a header
            at += block - (offset + at) % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.peers
def test_each_start_leaves_version_settings_and_fingerprints_in_wandbs_files(trial: Trial) -> None:
    """The package itself, offline: what `wandb sync` uploads, a file for each start."""
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    for steps in (2, 4):
        trial.train(wandb="p", steps=steps, schedule="constant")
    manifest = load_manifest(trial.shards)
    known = {
        "version": PRETOK_VERSION,
        "manifest": manifest.fingerprint,
        "tokenizer": manifest.tokenizer.fingerprint,
        "stream": View(manifest, natural_mix(manifest, "train", 16, manifest.sources, 0)).fingerprint,
    }
    logged = []
    starts = sorted((trial.run / "wandb").glob("offline-run-*/*.wandb"))
    assert len(starts) == 2
    for path, steps in zip(starts, (2, 4), strict=True):
        config = {}
        for record in map(Record.FromString, leveldb_records(path.read_bytes()[7:], offset=7)):
            for update in (*record.run.config.update, *record.config.update):
                config[update.key] = json.loads(update.value_json)
            logged += [item for item in record.history.item if "loss" in (item.key, *item.nested_key)]
        assert config["provenance"] == config["provenance"] | known
        assert config["provenance"]["commit"] == metrics.provenance()["commit"]
        assert (config["steps"], config["seq_len"], config["lr"]) == (steps, 16, trial.config().lr)
    assert len(logged) == 4


def test_a_node_without_git_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert metrics.provenance.__wrapped__()["commit"] is None


def test_goodput_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 40.0, 45.0, 95.0])
    monkeypatch.setattr("train.metrics.time.monotonic", lambda: next(clock))
    path = tmp_path / "goodput.jsonl"
    goodput = Goodput(0.0, path, lost=(7.2, 7.2))
    goodput.enter("training")  # at 10
    with goodput.spent("saving"):  # from 40 to 45
        pass
    said = goodput.write(10, 8.0)
    spent = {"initialisation": 10.0, "training": 72.0, "validation": 0.0, "saving": 5.0, "data": 8.0}
    [line] = read_lines(path)
    assert line == line | spent | {"steps": 10, "lost_steps": 2, "lost_seconds": 14.4}
    # 72 s of training less 14.4 s done twice, of 95 s.
    assert said.startswith("goodput: 60.6% of 0.03 h in 1 attempts")


def test_goodput_of_killed_attempts(trial: Trial) -> None:
    """A killed attempt leaves its line, and what was lost is taken off in seconds: never less than nothing."""
    path = trial.run / "goodput.jsonl"
    for _ in range(2):
        with trial.patch.context() as patch:
            around(loop, "train_step", lambda _, __, step, *___: 1 // (7 - step), put=patch.setattr)
            with pytest.raises(ZeroDivisionError):
                trial.train(save_every="100", log_every=2)
        with path.open("a") as file:
            file.write('{"initialisation": 3')  # a line that the kill cut short
    trial.train(save_every="100")
    assert re.search(r"5 steps after step 0 \(.*\) were lost: the last attempt ended", trial.said())
    lines = read_lines(path)
    assert [line["steps"] for line in lines] == [5, 5, 8]  # the line before the kill
    assert [line["lost_steps"] for line in lines] == [0, 5, 5]
    assert lines[1]["lost_seconds"] > 0


def test_goodput_of_a_restart_inside_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the last line of the attempt before to the start of the process nothing useful was done."""
    path = tmp_path / "goodput.jsonl"
    monkeypatch.setattr("train.metrics.time.monotonic", lambda: 100.0)
    monkeypatch.setenv("PRETOK_RESTART", "exit code 137")
    Goodput(100.0, path).write(1, 0.0)
    (line,) = read_lines(path)
    assert (line["restart"], line["restarting"]) == ("exit code 137", 0.0)  # nothing went before
    path.write_text(json.dumps(line | {"time": "2026-01-01T00:00:00Z", "training": 50.0}) + "\n")
    monkeypatch.setattr("train.metrics.time.time", lambda: 1767225600.0 + 50)  # 50 s after
    said = Goodput(90.0, path).write(1, 0.0)
    assert read_lines(path)[1]["restarting"] == 40
    assert "restarting 40.0%" in said
    monkeypatch.delenv("PRETOK_RESTART")
    assert Goodput(100.0, path).write(1, 0.0)
    assert read_lines(path)[2]["restarting"] == 0.0  # the next job; the queue is not counted


def test_the_rank_that_costs_most_is_the_slowest() -> None:
    hosts = ["a", "b", "c"]
    found = slowest([(0.0, 0.2, 1e-3), (0.1, 0.2, 1.5e-3), (0.0, 0.2, 1e-3)], hosts, 1.0)
    assert (found["rank"], found["host"], found["kind"]) == (1, "b", "device")
    # A device that is half slower, and not the tenth of a second of data.
    assert found["behind"] == pytest.approx(0.5)
    found = slowest([(0.0, 0.2, 1e-3), (0.1, 0.2, 1e-3), (0.0, 0.5, 1e-3)], hosts, 2.0)
    assert (found["rank"], found["kind"], found["behind"]) == (2, "host", pytest.approx(0.15))
    assert slowest([(0.1, 0.1, 0.1)] * 3, hosts, 1.0)["behind"] == 0.0


def test_a_save_that_hangs_ends_the_run(trial: Trial) -> None:
    released, now = threading.Event(), time.monotonic

    def jump(*_: Any) -> None:
        trial.patch.setattr(time, "monotonic", lambda: now() + 1000)

    trial.around(save, "write_pieces", lambda *_: released.wait(60))
    trial.around(save.Checkpoints, "save", None, jump)
    words = "checkpoint of step 2 could not be written: not done after --timeout 600 s"
    trial.ends_with(HungSave, words, steps=2, timeout=600)
    released.set()


def test_a_checkpoint_that_cannot_be_deleted_is_a_warning_and_ends_nothing(trial: Trial) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    trial.patch.setattr(save, "_delete", refuse)
    trial.train(steps=3, save_every="1", keep_last=1)
    words = "step-00000001 is no longer needed and cannot be deleted: Permission denied"
    assert words in trial.said()
    assert len(list((trial.run / "checkpoints").glob("step-*"))) == 3


def test_lines_that_were_not_saved_go_and_half_a_line_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = Lines(path)
    for step in range(1, 6):
        lines.add({"step": step})
    with path.open("a") as file:
        file.write('{"step": 6')  # a kill
    lines = Lines(path, lambda record: bool(record["step"] <= 3))
    assert [record["step"] for record in lines.dropped] == [4, 5]

    error, tries = errno.ESTALE, list[int]()
    original = os.fdopen

    def broken(*rest: Any, **named: Any) -> Any:
        """A file system that takes half of the line, and fails three times."""
        if len(tries) < 3:
            with original(*rest, **named) as file:
                file.seek(0, os.SEEK_END)
                tries.append(file.write(b'{"half'))
            raise OSError(error, os.strerror(error))
        return original(*rest, **named)

    monkeypatch.setattr(os, "fdopen", broken)
    lines.add({"step": 4})
    assert [record["step"] for record in read_lines(path)] == [1, 2, 3, 4]
    error = errno.ENOSPC
    tries.clear()
    with pytest.raises(OSError, match="No space left"):
        lines.add({"step": 5})
    assert len(tries) == 1
    warnings = list[str]()
    lines = Lines(path, full=warnings.append)
    for step in (5, 6, 7):  # the first two find no space
        tries[:] = [0, 0] if step < 7 else [0, 0, 0]
        lines.add({"step": step})
    assert warnings == [f"warning: {path}: {os.strerror(error)}: lines are dropped until there is space"]
    assert [record["step"] for record in read_lines(path)] == [1, 2, 3, 4, 7]


def test_a_slow_disk_delays_no_step_but_a_checkpoint(trial: Trial) -> None:
    """No line is written before all steps are done; and none is missing from a checkpoint, or after the run."""
    began, released, seen, waits = threading.Event(), threading.Event(), list[bool](), list[bool]()
    trial.around(loop, "_one_step", lambda *_: began.set())  # the segment is written before
    trial.around(metrics.Lines, "_put", lambda *_: began.is_set() and waits.append(released.wait(100)))
    trial.around(loop, "_record", None, lambda _, __, done: done._step == 6 and released.set())
    trial.around(save, "write_pieces", lambda *_: seen.append(released.is_set()))
    run = trial.train(save_every="4", steps=7, log_every=99, schedule="constant")
    assert column(run, "step") == [1, 2, 3, 4, 5, 6, 7]
    assert seen == [True, True]
    assert waits
    assert all(waits)
    [line] = read_lines(run / "goodput.jsonl")
    assert line["steps"] == 7
    assert line["stop_seconds"] > loop.FIRST_MARGIN  # with the measured step and save


def test_a_disk_that_fails_ends_the_run(trial: Trial) -> None:
    def fail(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    trial.around(metrics.Lines, "_put", fail)
    trial.ends_with(PretokError, r"jsonl: Permission denied", save_every="never")


def test_deterministic_holds_from_the_start_of_a_run(trial: Trial) -> None:
    trial.patch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    seen: list[bool] = []
    trial.around(loop, "train_step", lambda *_: seen.append(torch.are_deterministic_algorithms_enabled()))
    runs = [trial.train(name, steps=2, deterministic=name != "c") for name in "abc"]
    assert seen == [True] * 4 + [False] * 2
    assert column(runs[0], "loss") == column(runs[1], "loss")


def _slow_data_on_rank_1() -> None:
    """Rank 1 waits for data far longer than a step may take, and all devices take a millisecond, however busy the
    machine is. Each rank says within which time the collectives of its groups have to end."""
    import torch.distributed.distributed_c10d as c10d

    from train import stragglers
    from train.data import Feed

    stragglers.EVERY = 4
    stragglers.Mark.seconds_since = lambda *_: 1e-3  # type: ignore[method-assign, assignment]
    original = Feed.__iter__

    def slow(feed: Feed) -> Any:
        for fetched in original(feed):
            feed.waited += 30.0 if os.environ["RANK"] == "1" else 0.0
            yield fetched

    Feed.__iter__ = slow  # type: ignore[method-assign]

    def look(run: Any, *_: Any) -> None:
        backends = [group._get_backend(torch.device("cpu")) for group in c10d._world.pg_map]
        if run.progress.step in (run.first, run.first + 1):
            timeouts = {backend.options._timeout.total_seconds() for backend in backends}
            print("timeouts of", len(backends), sorted(timeouts), flush=True)
            print("lazy", os.environ["TORCH_GLOO_LAZY_INIT"], flush=True)

    around(loop, "_one_step", look)


def test_a_slow_rank_is_named_in_metrics_and_on_the_terminal(shards: Path, tmp_path: Path) -> None:
    """And --timeout holds for every group after the first step; torch has 10 and 30 minutes. Saves make no group."""
    more = {"global_batch": 4, "timeout": 78, "shard": 2, "context": 2, "schedule": "constant"}
    jobs = [(2, tiny_flags(shards, tmp_path, steps=steps, **more)) for steps in (8, 12)]
    text = run_jobs(jobs, tmp_path, before=_slow_data_on_rank_1)
    looks = [line["slowest"] for line in read_lines(tmp_path / "run/metrics.jsonl") if line["slowest"]]
    assert [(look["rank"], look["kind"]) for look in looks] == [(1, "data")] * 3
    assert min(look["behind"] for look in looks) > NOTABLE
    assert min(look["seconds"] for look in looks) > 20  # of one step, also right after a resume
    assert f"slow: rank 1 on {os.uname().nodename}: waiting for data takes 3" in text
    assert text.count("timeouts of 5 [1800.0]\n") == 4  # the world, three dimensions of the mesh, context
    assert text.count("timeouts of 5 [78.0]\n") == 4
    assert text.count("communicators: default_pg ") == 2
    assert "lazy 1\n" in text


def test_a_full_disk_or_a_closed_pipe_behind_the_terminal_ends_no_run(trial: Trial) -> None:
    """RUN/logs has the lines; only what is printed last may be lost."""
    with Path("/dev/full").open("w", buffering=1) as full:
        for name in ("stdout", "stderr"):
            trial.patch.setattr(sys, name, full)
        with pytest.raises(SystemExit, match="2"):
            main(["verify", str(trial.folder)])
        run = trial.train(steps=2, log_every=1)
        trial.patch.undo()
        with suppress(OSError):
            full.close()
    assert (run / "done.json").exists()
    [log] = (run / "logs").iterdir()
    assert "step 2/2" in log.read_text()


def test_step_lines_say_how_far_and_how_long(trial: Trial) -> None:
    """And a profile is written where one is asked for."""
    trial.train(steps=6, log_every=2, profile=1)
    assert json.loads((trial.run / "profile.json").read_text())["traceEvents"]
    text = trial.said()
    assert "attention: causal; blocks are not compiled\n" in text
    lines = [line.split("  ") for line in text.splitlines() if " step " in line]
    assert [line[0].split()[2] for line in lines] == ["2/6", "4/6", "6/6"]
    assert [line[1] for line in lines] == ["33%", "67%", "100%"]
    assert lines[-1][2] == "ETA 0 s"
    assert "warning: the warm-up (100 steps) is as long as the schedule" in text


def test_silence_is_broken_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "SILENCE", 0.01)
    texts = list[str]()
    say = Reporter(0, tmp_path)
    say.doing = lambda: "at step 3/9 (saving)"
    with say, Reporter(1, tmp_path) as other:
        other("not from rank 1")
        until(lambda: texts.append(capsys.readouterr().out) or "".join(texts).count("\n") > 2)
    for line in "".join(texts).splitlines()[:3]:  # of the last one a part may have been read
        assert re.search(r" still at step 3/9 \(saving\), \d+ s after the start$", line)


def test_a_run_leaves_a_log_and_says_when_and_where_in_every_line(trial: Trial) -> None:
    trial.patch.setenv("SLURM_JOB_ID", "4711")
    trial.patch.delenv("SLURM_JOB_END_TIME", raising=False)
    run = trial.train(steps=2)
    [path] = (run / "logs").iterdir()
    log = read_lines(path)
    for line in [*log, *read_lines(run / "metrics.jsonl"), *read_lines(run / "goodput.jsonl")]:
        assert {"time", "host"} <= line.keys()
        assert line["job"] == "4711"
    assert (log[0]["event"], log[0]["settings"]["seq_len"]) == ("start", 16)
    assert (log[-1]["event"], log[-1]["exit_code"]) == ("end", 0)
    notices = "\n".join(line["message"] for line in log if line["event"] == "notice")
    assert notices == trial.said().rstrip("\n")


def test_a_rank_that_fails_has_a_file_of_its_own_and_one_that_stops_none(tmp_path: Path) -> None:
    for rank, error in ((1, Stopped("at the end of the job")), (3, ZeroDivisionError("no such thing"))):
        with pytest.raises(type(error)), Reporter(rank, tmp_path):  # a bug stays one
            raise error
    [path] = (tmp_path / "logs").iterdir()
    assert path.name.startswith("train-rank3-")
    error, end = read_lines(path)
    assert (error["rank"], error["message"], end["event"]) == (3, "no such thing", "end")
    assert "ZeroDivisionError" in error["traceback"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you"),
        MemoryError(),
    ],
)
def test_out_of_memory_names_what_to_lower(trial: Trial, error: Exception) -> None:
    def make_plan(*_: object) -> None:
        raise error

    trial.patch.setattr("train.start.make_plan", make_plan)
    lower = r"out of memory on rank 0 of .*lower --micro-batch \(now 4\).*--checkpointing ops or full \(now none\)"
    trial.ends_with(UsageError, lower, micro_batch=4)


def test_what_the_system_refuses_is_one_line() -> None:
    known = explain(PermissionError(13, "Permission denied", "RUN/metrics.jsonl"))
    assert f"{known}" == "RUN/metrics.jsonl: Permission denied"
    assert "No space left on device: free some" in f"{explain(OSError(28, 'No space left on device'))}"
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE):  # the next job may go on
        assert isinstance(explain(OSError(number, os.strerror(number))), Stopped)
    assert explain(FileNotFoundError(2, "No such file", "x")) is None
    assert isinstance(explain(ModuleNotFoundError("no", name="torch")), UsageError)
    assert explain(ModuleNotFoundError("no", name="trains")) is None


@pytest.mark.parametrize(("name", "val_every"), [("it-val-*", 1), ("it-0*", 0)])
def test_shards_overwritten_with_zeros_are_noticed_at_the_next_start(
    trial: Trial, name: str, val_every: int
) -> None:
    """Zeros are ids as any: the loss would go on."""
    trial.shards = Path(shutil.copytree(trial.shards, trial.folder / "shards"))
    more: dict[str, Any] = {"val_every": val_every, "val_sequences": 8}
    trial.train(steps=2, **more)
    for path in (trial.shards / "it").glob(f"{name}.bin"):
        path.write_bytes(bytes(path.stat().st_size))
    trial.ends_with(IntegrityError, r"it-\S+\.bin is damaged", steps=4, **more)


@pytest.mark.parametrize(("name", "val_every"), [("it-val-00000", 1), ("it-00000", 0)])
def test_an_id_outside_of_the_vocabulary_names_its_shard(trial: Trial, name: str, val_every: int) -> None:
    """In validation and in what a loader thread reads, where no drawn place shows the damage."""
    trial.patch.setattr(View, "compare_places", lambda *_: None)
    trial.shards = Path(shutil.copytree(trial.shards, trial.folder / "shards"))
    path = trial.shards / "it" / f"{name}.bin"
    ids = np.fromfile(path, np.uint16)
    ids[20] = 60
    ids.tofile(path)
    words = "holds the id 60, but the largest id of the vocabulary is 59: the shard was damaged"
    with pytest.raises(PretokError, match=f"{path} {words}"):
        trial.train(steps=None, workers=1, save_every="never", val_sequences=999, val_every=val_every)


def test_threads_read_ahead_and_no_process_is_forked_beside_collectives(trial: Trial) -> None:
    """A fork beside the threads of CUDA, NCCL and gloo may hang. The batches are those that the trainer reads alone."""
    before, during = children(os.getpid()), []
    trial.around(loop, "train_step", lambda *_, **__: during.append(children(os.getpid())))
    runs = [trial.train(f"{workers}", workers=workers, steps=4) for workers in (0, 1, 3)]
    assert during == [before] * 12
    for name in ("data_hash", "loss"):
        assert column(runs[0], name) == column(runs[1], name) == column(runs[2], name)


def test_loader_threads_end_with_their_feed(trial: Trial) -> None:
    """Also if nobody takes what they have read, and with the error that one of them meets."""
    fail = lambda *_, **__: threading.current_thread().name != "loader-1" or 1 / 0  # noqa: E731
    trial.around(View, "batch", fail)
    with pytest.raises(ZeroDivisionError):
        trial.train(workers=2)
    end = time.monotonic() + 10
    while any(thread.name.startswith("loader-") for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)


def _no_meta_on_rank_0() -> None:
    around(save, "write_meta", lambda *_: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    save.PATIENCE = 0.0


def _bug_on_rank_1() -> None:
    from train.data import Feed

    if os.environ["RANK"] == "1":
        Feed.__iter__ = lambda feed: 1 / 0  # type: ignore[assignment, method-assign, return-value]


@pytest.mark.parametrize(
    ("before", "code", "words", "tracebacks"),
    [
        (_no_meta_on_rank_0, 75, "checkpoint of step 1 could not be written: No space", 0),
        (_bug_on_rank_1, 1, "rank 1 ended the run: ZeroDivisionError", 1),
    ],
)
def test_what_ends_one_rank_ends_all_with_its_words(
    shards: Path, tmp_path: Path, before: Callable[[], None], code: int, words: str, tracebacks: int
) -> None:
    arguments = tiny_flags(shards, tmp_path, global_batch=6, steps=5, save_every="1")
    ranks = Ranks([(3, arguments)], tmp_path, before)
    assert ranks.wait() == [code] * 3, ranks.text()
    assert ranks.text().count(words) >= 2
    assert ranks.text().count("Traceback") == tracebacks
