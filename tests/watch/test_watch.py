"""watch: the numbers of its lines against what jobs and runs left; files that come and go."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from support import until

from pretok.base import terminal
from pretok.base.execute import Engine
from pretok.base.joblog import utc
from pretok.base.storage import write_json
from pretok.base.tasks import open_step
from pretok.base.terminal import Terminal
from pretok.cli import run_command
from pretok.watch.lines import blocks, watch_lines

NOW = 1_800_000_000.0


def log(work: Path, *lines: dict[str, Any], name: str = "tokenize-20260301-120000") -> Path:
    """A log with these lines, 2 s old, and one that is being written."""
    always = {"time": utc(NOW - 2), "host": "n7", "job": "41", "command": "tokenize"}
    text = "".join(json.dumps({**always, **line}) + "\n" for line in lines)
    path = work / "logs" / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + '{"event": "ta')
    return path


STEP = {"event": "step", "title": "tokenize"}
PROGRESS = {
    "event": "progress", "title": "tokenize", "seconds": 100.0, "expected_bytes": 10 * 10**9, "partitions": 20,
    "counts": {"bytes": 3_000_000_000, "partitions": 4, "rejected": 12, "bytes:it": 2 * 10**9},
    "before": {"bytes": 10**9, "partitions": 2, "bytes:it": 10**9}, "sources": {"it": 6 * 10**9, "en": 4 * 10**9},
}  # fmt: skip
"""In the middle of the second run of a job."""
NOTHING = ["no job is in a step here; pretok status says what is finished"]


def test_a_job_is_told_by_its_log(tmp_path: Path) -> None:
    task = {"event": "task", "item": "it-00001", "tries": 1}
    bad = {"event": "task_failed", "item": "it-00009", "tries": 3, "message": "cut short"}
    old = [STEP, {"event": "tasks", "what": "bucket", "tasks": 9, "workers": 9}, task, task]
    begun = {"event": "tasks", "what": "partition", "tasks": 18, "workers": 6}
    log(tmp_path, *old, {"event": "step_end"}, STEP, begun, task, PROGRESS, task, task, bad)
    told = [
        "tokenize on n7, Slurm job 41: 2 s ago",
        # 4 of 10 GB, of which this run did 3 in 100 s: 6 are left, at 30 MB/s
        "  tokenize 6/20 40% 4 GB 30 MB/s ETA 3 min rejects 12 it 50% en 0%",
        "  it: ██████████░░░░░░░░░░ 3 GB of about 6 GB",
        "  en: ░░░░░░░░░░░░░░░░░░░░ 0 B of about 4 GB",
        "  6 workers; partitions: 3 of 18 done, 1 failed, 2 tried again",
        "  failed: it-00009: cut short",
    ]
    assert watch_lines(tmp_path, NOW) == told
    log(tmp_path, STEP, name="tokenize-20260228-120000")  # killed, and begun again
    assert watch_lines(tmp_path, NOW) == told
    assert watch_lines(tmp_path, NOW + 400)[0].endswith("no sign for 7 min; killed, or its file system hangs")
    log(tmp_path, STEP)
    assert watch_lines(tmp_path, NOW) == [told[0], "  tokenize 0 s"]
    for over in ("step_end", "end"):
        log(tmp_path, STEP, PROGRESS, {"event": over})
        assert watch_lines(tmp_path, NOW) == NOTHING


def test_files_that_vanish_or_are_damaged_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watch_lines(tmp_path, NOW) == NOTHING
    log(tmp_path).write_text('{"time": \n')
    assert watch_lines(tmp_path, NOW) == NOTHING
    log(tmp_path, STEP)
    assert watch_lines(tmp_path, NOW) != NOTHING
    real = Path.open

    def gone(self: Path, *how: Any) -> Any:
        self.unlink()
        return real(self, *how)

    monkeypatch.setattr(Path, "open", gone)
    assert watch_lines(tmp_path, NOW) == NOTHING


def count(item: int, report: Any) -> int:
    report({"bytes": item})
    return item


def test_a_real_job_is_watched_and_then_over(
    tmp_path: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.02)
    monkeypatch.setattr(terminal, "LINES_APART", 0.02)
    console = Terminal(["count"])
    console.keep_log(tmp_path / "logs", "count")
    seen = []
    with open_step("count", here, console) as step:
        step.progress.expect(60, 3, {"it": 60})
        for item, _ in step.map(count, [10, 20, 30], "partition", str):
            step.progress({"partitions": 1, "bytes:it": item})
            number, share, size = len(seen) + 1, [16, 50, 99][len(seen)], [10, 30, 60][len(seen)]
            until(
                lambda text=f"count {number}/3 {share}% {size} B": (
                    text in "".join(watch_lines(tmp_path, time.time()))
                )
            )
            seen.append(watch_lines(tmp_path, time.time()))
    for number, lines in enumerate(seen, 1):
        assert re.fullmatch(r"count on \S+: \d+ s ago", lines[0])
        assert lines[-1] == f"  1 worker; partitions: {number} of 3 done, 0 failed, 0 tried again"
    assert watch_lines(tmp_path, time.time()) == NOTHING
    console.end(0)


def test_a_run_is_told_by_its_newest_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = {"model": {"seq_len": 8}, "steps": 400}
    write_json(tmp_path / "config.json", {"model": "debug", "resolved": resolved})
    assert watch_lines(tmp_path, NOW) == [f"run {tmp_path.name}: no step of 400 is done yet"]
    records = [
        {
            "step": step, "loss": 9.0 - step / 100, "tokens": step * 1000, "seconds": 1.0 if step <= 240 else 2.0,
            "tokens_per_second": 1000.0 if step <= 240 else 500.0, "data_wait": 0.1, "skipped": step // 100,
            "time": utc(NOW - 300 + step),
        }
        for step in range(1, 301)
    ]  # fmt: skip
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 301, "lo')
    (tmp_path / "validation.jsonl").write_text('{"step": 250, "val_loss": 5.25}\n')
    monkeypatch.setattr("pretok.watch.lines.TAIL_BYTES", len(text) // 2)  # begins in the middle of a line
    told = watch_lines(tmp_path, NOW)
    assert told[:2] == [
        f"run {tmp_path.name}: step 300 of 400 (75%), 0 s ago",
        "  2 s a step, 500 tokens/s, ETA 3 min; 300 k tokens done",  # of the newest 60 steps
    ]
    drawn = blocks([9.0 - step / 100 for step in range(241, 301)])
    assert told[2] == f"  loss 6.0000 {drawn} 6.0000 to 6.5900 over 60 steps"
    assert told[3:] == ["  skipped 3; data wait 5.0% of the time", "  validation loss 5.2500 at step 250"]
    assert "no sign for 10 min" in watch_lines(tmp_path, NOW + 600)[0]
    write_json(tmp_path / "done.json", {})
    assert watch_lines(tmp_path, NOW)[0].endswith("(75%), finished")
    assert run_command(["watch", str(tmp_path)]) == 0  # ends by itself: nothing more will come


def test_blocks_rise_with_their_values() -> None:
    assert blocks([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert blocks([3.0, 3.0]) == "▁▁"
    assert blocks([1, -1, 1]) == "█▁█"


def test_the_queue_of_the_newest_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, jobs, at in (("old", "1", 10), ("new", "11 12 13 14", 20)):
        record = tmp_path / "slurm" / name / "chain.tsv"
        record.parent.mkdir(parents=True)
        stages = ["vocab", "tokenize", "tokenize", "train"]
        record.write_text("".join(f"{job}\t{stages[n]}\t{n}\n" for n, job in enumerate(jobs.split())))
        os.utime(record, (at, at))
    (tmp_path / "slurm/new/done-vocab").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert watch_lines(tmp_path, NOW)[1:] == [
        "chain new:", "  vocab 0 (job 11): done", "  tokenize 1 (job 12)", "  tokenize 2 (job 13)",
        "  train 3 (job 14)",
    ]  # fmt: skip
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(
        '#!/bin/sh\ncase "$*" in *--jobs=11,12,13,14*) ;; *) exit 1 ;; esac\n'
        "echo '12|RUNNING|3:20:00|None'\necho '14|PENDING|1-00:00:00|Dependency'\n"
    )
    squeue.chmod(0o755)
    assert watch_lines(tmp_path, NOW)[2:] == [
        "  vocab 0 (job 11): done",
        "  tokenize 1 (job 12): running, 3:20:00 left",
        "  tokenize 2 (job 13): not in the queue",
        "  train 3 (job 14): pending (Dependency)",
    ]


def test_piped_it_prints_plain_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log(tmp_path, STEP, PROGRESS)
    assert run_command(["watch", str(tmp_path), "--once"]) == 0
    told = capsys.readouterr().out
    assert told.count("\n") == 4
    assert "\x1b" not in told
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("pretok.commands.look.time.sleep", sleep)
    assert run_command(["watch", str(tmp_path), "--every", "7"]) == 0
    assert looks == [7.0] * 3
    assert capsys.readouterr().out.count("tokenize on n7") == 3
    assert run_command(["watch", str(tmp_path / "nothing")]) == 2
