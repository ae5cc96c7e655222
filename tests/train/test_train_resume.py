"""A run killed or stopped anywhere goes on, on any number of processes, as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import needs

from pretok.base.storage import read_json, read_lines
from tests.train_support import Ranks, column, model_file, run_jobs, run_ranks

needs("torch")

STEPS = 20


def arguments(shards: Path, run: Path, **extra: object) -> list[object]:
    settings: dict[str, object] = {
        "shards": shards,
        "out": run,
        "model": run.parent / "model-True.toml",
        "seq-len": 16,
        "global-batch": 8,
        "steps": STEPS,
        "lr": 0.001,  # at ten times this, rounding alone moves the losses by 3e-4 in 40 steps
        "warmup": 2,
        "workers": 1,
        "save-every": 4,
        "keep-last": 2,
    }
    settings |= {name.replace("_", "-"): value for name, value in extra.items()}
    model_file(run.parent)
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


@pytest.fixture(scope="module")
def whole(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    run_ranks(1, arguments(shards, run), run.parent)
    return run


def assert_same_run(run: Path, whole: Path) -> None:
    assert column(run, "data_hash") == column(whole, "data_hash")
    assert column(run, "loss") == pytest.approx(column(whole, "loss"), rel=1e-5)
    assert read_json(run / "done.json") == read_json(whole / "done.json")


def _signal_itself(number: signal.Signals, step: int, rank: int, run: Path) -> None:
    """The rank sends itself the signal before it begins `step`; a kill waits for the first checkpoint."""
    if os.environ["RANK"] != str(rank):
        return
    import train.loop

    original = train.loop.train_step

    def train_step(trainee: Any, batches: Any, at: int, *rest: Any, **named: Any) -> Any:
        if at >= step and (number != signal.SIGKILL or any(run.glob("checkpoints/step-*"))):
            os.kill(os.getpid(), number)
        return original(trainee, batches, at, *rest, **named)

    train.loop.train_step = train_step


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param(
            [(4, signal.SIGKILL, 5), (2, signal.SIGTERM, 10), (1, signal.SIGUSR1, 15), (4, None, STEPS)],
            id="4-2-1-4",
        ),
        pytest.param(
            [(2, signal.SIGUSR1, 3), (4, signal.SIGTERM, 8), (1, signal.SIGKILL, 14), (2, None, STEPS)],
            id="2-4-1-2",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_interrupted_run_goes_on_with_any_number_of_processes(
    shards: Path, whole: Path, tmp_path: Path, chain: list[tuple[int, signal.Signals | None, int]]
) -> None:
    run = tmp_path / "run"
    for link, (count, number, step) in enumerate(chain):
        before = None if number is None else partial(_signal_itself, number, step, count - 1, run)
        ranks = Ranks(count, [*arguments(shards, run), "--shard", 2 if count == 4 else 1], tmp_path, before)
        if number == signal.SIGKILL:  # of one rank; what starts the ranks then kills the others
            ranks.processes[-1].join(120)
            ranks.signal(signal.SIGKILL, range(count - 1))
            assert ranks.wait() == [-signal.SIGKILL] * count, ranks.text()
        else:  # of one rank, and all of them stop
            assert ranks.wait() == [0 if number is None else 75] * count, ranks.text()
        assert ("resumed from step" in ranks.text()) == (link > 0)
        assert (run / "done.json").exists() == (number is None)
    assert_same_run(run, whole)
    # Stops lose no step; a kill loses those since the checkpoint before it, and its segment's line.
    lost = [record["lost_steps"] for record in read_lines(run / "goodput.jsonl")]
    killed = [number for _, number, _ in chain].index(signal.SIGKILL)
    assert len(lost) == 3
    assert all(count == 0 for link, count in enumerate(lost) if link != killed)


def _die_in_second_save() -> None:
    from train.checkpoint import save

    original = save.write_pieces
    calls = []

    def write(*arguments: Any, **named: Any) -> Any:
        calls.append(0)
        result = original(*arguments, **named)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    save.write_pieces = write


def _die_before_renaming_the_second() -> None:
    import train.checkpoint.save

    original = train.checkpoint.save.write_meta
    calls = []

    def write(*arguments: Any) -> None:
        calls.append(0)
        original(*arguments)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    train.checkpoint.save.write_meta = write


@pytest.mark.parametrize("before", [_die_in_second_save, _die_before_renaming_the_second])
def test_kill_during_a_save_leaves_the_one_before(
    shards: Path, whole: Path, tmp_path: Path, before: Callable[[], None]
) -> None:
    run = tmp_path / "run"
    started = Ranks(1, arguments(shards, run), tmp_path, before)
    assert started.wait() == [-signal.SIGKILL]
    folder = run / "checkpoints"
    assert [path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != "."] == [
        "step-00000004"
    ]
    assert list(folder.glob(".*.tmp"))
    output = run_ranks(1, arguments(shards, run), tmp_path)
    assert "resumed from step 4\n" in output
    assert not list(folder.glob(".*.tmp"))
    assert_same_run(run, whole)


@pytest.mark.parametrize("damage", ["shorter file", "wrong bytes", "no meta.json"])
def test_broken_newest_checkpoint_is_reported_and_the_one_before_used(
    shards: Path, whole: Path, tmp_path: Path, damage: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    newest = run / "checkpoints" / f"step-{STEPS:08d}"
    data = next(newest.glob("*.safetensors"))
    if damage == "shorter file":
        os.truncate(data, data.stat().st_size - 1)
    elif damage == "wrong bytes":
        data.write_bytes(bytes(data.stat().st_size))
    else:
        (newest / "meta.json").unlink()
    output = run_ranks(1, arguments(shards, run), tmp_path)
    assert "is damaged, trying the previous one" in output
    assert f"resumed from step {STEPS - 4}\n" in output
    assert_same_run(run, whole)


def test_all_broken_is_refused(shards: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for meta in run.glob("checkpoints/*/meta.json"):
        meta.write_text("{")
    ranks = Ranks(1, arguments(shards, run), tmp_path)
    assert ranks.wait() == [2]
    assert "no checkpoint" in ranks.text()


def test_other_settings_are_refused_and_the_checkpoints_stay(
    shards: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    ranks = Ranks(2, arguments(shards, run, seed=1), tmp_path)
    assert ranks.wait() == [2, 2]
    assert "was started with other settings: seed was 0, is 1" in ranks.text()
    assert len(list(run.glob("checkpoints/step-*"))) == 2


def test_only_what_differs_is_named(shards: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    ranks = Ranks(1, arguments(shards, run, seq_len=12), tmp_path)
    assert ranks.wait() == [2]
    assert "with other settings: model.seq_len was 16, is 12; stream was " in ranks.text()
    assert "vocab_size" not in ranks.text()


def _sigints_in_step_3(count: int) -> None:
    import train.loop

    original = train.loop.train_step

    def train_step(trainee: Any, batches: Any, at: int, *rest: Any, **named: Any) -> Any:
        for _ in range(count if at == 3 else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return original(trainee, batches, at, *rest, **named)

    train.loop.train_step = train_step


def test_control_c_saves_and_twice_ends_at_once(shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    once = Ranks(1, arguments(shards, run), tmp_path, partial(_sigints_in_step_3, 1))
    assert once.wait() == [75]
    assert "stopped after step 4 of 20 (received SIGINT); saved; run the same" in once.text()
    assert once.text().count("received SIGINT: the run ends after the current steps; Ctrl-C again ends") == 1
    unsaved = arguments(shards, tmp_path / "never", save_every="never")
    never = Ranks(1, unsaved, tmp_path, partial(_sigints_in_step_3, 1))
    assert never.wait() == [75]
    assert "nothing saved (--save-every never)" in never.text()
    twice = Ranks(1, arguments(shards, tmp_path / "twice"), tmp_path, partial(_sigints_in_step_3, 2))
    assert twice.wait() == [75]
    assert "train: interrupted before it could save" in twice.text()
    for ranks in (once, never, twice):
        assert "Traceback" not in ranks.text()


def test_end_of_the_job_stops_in_time(shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = Ranks(1, arguments(shards, run, keep_last=1), tmp_path, _job_ends_soon)
    assert started.wait() == [75]
    assert "the job ends in" in started.text()
    assert [path.name for path in run.glob("checkpoints/step-*")] == ["step-00000002"]


def _job_ends_soon() -> None:
    os.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 20)


def _stop_in_validation() -> None:
    import train.evaluate

    original = train.evaluate._batches

    def batches(*arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments)  # type: ignore[arg-type]

    train.evaluate._batches = batches  # type: ignore[assignment]


def test_stop_during_validation(shards: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = Ranks(2, arguments(shards, run, val_every=10), tmp_path, _stop_in_validation)
    assert started.wait() == [75, 75]
    assert len(column(run, "loss")) == 10
    assert read_lines(run / "validation.jsonl") == []
    run_ranks(1, arguments(shards, run), tmp_path)
    assert_same_run(run, whole)


def test_finished_run_can_be_extended(shards: Path, whole: Path, tmp_path: Path) -> None:
    constant = {"schedule": "wsd", "decay": 0}
    short, long = tmp_path / "a" / "run", tmp_path / "b" / "run"
    short.parent.mkdir()
    long.parent.mkdir()
    jobs = [
        (1, arguments(shards, run, steps=n, **constant)) for run, n in ((short, 8), (short, 12), (long, 12))
    ]
    run_jobs(jobs, tmp_path)
    assert column(short, "loss") == column(long, "loss")
    assert read_json(short / "done.json")["step"] == 12


def tell_restores() -> None:
    """Let a rank say that it reads a checkpoint."""
    from train.checkpoint import tensors

    original = tensors.restore

    def told(*given: Any) -> None:
        print(f"rank {os.environ['RANK']} reads")
        original(*given)

    tensors.restore = told


def test_one_replica_reads_a_checkpoint_for_all(shards: Path, tmp_path: Path) -> None:
    """A replica with others would learn otherwise from the next step on."""

    def job(ranks: int, name: str, steps: int, *more: object) -> tuple[int, list[object]]:
        common = arguments(shards, tmp_path / name, steps=steps, workers=0, schedule="constant", warmup=0)
        return ranks, [*common, "--lr", 0.01, *more]

    first = ("--init-from", tmp_path / "run/checkpoints/step-00000004")
    jobs = [job(1, "whole", 6), job(1, "run", 4), job(1, "again", 2, *first)]
    jobs += [job(4, "run", 6, "--shard", 2), job(2, "shared", 2, "--shard", 1, *first)]
    text = run_jobs(jobs, tmp_path, before=tell_restores)
    assert sorted(line for line in text.splitlines() if line.endswith("reads")) == [
        *("rank 0 reads", "rank 0 reads", "rank 0 reads", "rank 1 reads"),
    ]
    assert column(tmp_path / "run", "loss") == pytest.approx(column(tmp_path / "whole", "loss"), rel=1e-5)
    assert column(tmp_path / "shared", "loss") == pytest.approx(column(tmp_path / "again", "loss"), rel=1e-5)
