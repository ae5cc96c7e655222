"""A run killed or stopped anywhere goes on, on any number of processes, as if nothing had happened; which checkpoints
it keeps; and one run at a time in a folder."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import needs

torch = needs("torch")
from pretok.base import lock
from pretok.base.errors import FolderInUse, MismatchError, Stopped
from pretok.base.storage import read_json, read_lines
from tests.train_support import Ranks, Trial, around, column, flags, tiny_config
from train import evaluate, loop
from train import step as steps_of
from train.__main__ import main
from train.checkpoint import save
from train.checkpoint.meta import Identity, Meta, RunState, TokenizerOrigin, read_meta
from train.checkpoint.save import to_keep
from train.config import TrainConfig
from train.model.sizes import PRESETS

STEPS = 20
DEFAULTS = {"steps": STEPS, "lr": 0.001, "warmup": 2, "save_every": "4", "keep_last": 2}
"""At ten times this rate rounding alone moves the losses by 3e-4 in 40 steps."""


@pytest.fixture(scope="module")
def whole(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config(shards, tmp_path_factory.mktemp("whole"), **DEFAULTS)
    loop.train(config)
    return Path(config.out)


def assert_same_run(run: Path, whole: Path) -> None:
    assert column(run, "data_hash") == column(whole, "data_hash")
    assert column(run, "loss") == pytest.approx(column(whole, "loss"), rel=1e-5)
    assert read_json(run / "done.json") == read_json(whole / "done.json")


def saved(run: Path) -> list[str]:
    return sorted(path.name.removeprefix("step-0000") for path in (run / "checkpoints").iterdir())


def signal_itself(
    number: signal.Signals, step: int, times: int = 1, rank: int = 0, put: Any = setattr
) -> None:
    """A rank sends itself the signal before it begins `step`, or a later one; a kill waits for a checkpoint."""
    done: list[int] = []

    def before(state: Any, _: Any, at: int, *rest: Any) -> None:
        checkpoints = Path(state.config.out, "checkpoints")
        ready = number != signal.SIGKILL or any(checkpoints.glob("step-*"))
        if at >= step and ready and not done and torch.distributed.get_rank() == rank:
            done.append(at)
            for _ in range(times):
                os.kill(os.getpid(), number)

    around(loop, "train_step", before, put=put)


KILL, TERM, USR1 = signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1


def test_interrupted_run_goes_on_with_any_number_of_processes(trial: Trial, whole: Path) -> None:
    run = trial.run
    chain = [(2, KILL, 5), (4, TERM, 10), (1, USR1, 15), (2, None, STEPS)]
    for link, (count, number, step) in enumerate(chain):
        before = None if number is None else partial(signal_itself, number, step, rank=count - 1)
        arguments = flags(trial.config(workers=1, shard=2 if count == 4 else 1))
        ranks = Ranks([(count, arguments)], trial.folder, before)
        if number == KILL:  # of one rank; what starts the ranks then kills the others
            ranks.processes[-1].join(120)
            for process in ranks.processes:
                process.kill()
        codes, code = ranks.wait(), {None: 0, KILL: -KILL}.get(number, 75)
        assert codes[-1] == code, ranks.text()
        # Of other signals to one rank, all of them stop. Of a kill, some may have ended before they were killed.
        assert number == KILL or codes == [code] * count, ranks.text()
        assert ("resumed from step" in ranks.text()) == (link > 0)
        assert (run / "done.json").exists() == (number is None)
    assert_same_run(run, whole)
    # Stops lose no step; a kill loses those since the checkpoint before it, and its segment's line.
    lost = [record["lost_steps"] for record in read_lines(run / "goodput.jsonl")]
    assert len(lost) == 3
    assert lost[1:] == [0, 0]


@pytest.mark.parametrize(
    ("times", "save_every", "words"),
    [
        (1, "4", "stopped after step 4 of 20 (received SIGINT); saved; run the same"),
        (1, "never", "nothing saved (--save-every never)"),
        (2, "4", "train: interrupted before it could save"),
    ],
)
def test_control_c_saves_and_twice_ends_at_once(
    trial: Trial, times: int, save_every: str, words: str
) -> None:
    signal_itself(signal.SIGINT, 3, times, put=trial.patch.setattr)
    with pytest.raises(SystemExit, match="75"):
        main(flags(trial.config(save_every=save_every)))
    out, err = trial.capture.readouterr()
    assert words in err
    line = "received SIGINT: the run ends after the current steps; Ctrl-C again ends"
    assert out.count(line) == (times == 1)
    assert "Traceback" not in err


@pytest.mark.parametrize(("long", "last"), [(0.0, 4), (1e9, 6)])
def test_a_stop_in_a_long_step_costs_no_other(trial: Trial, long: float, last: int) -> None:
    """A rank is asked after it has told the others of this step that it was not."""
    trial.patch.setattr(loop, "LONG_STEP", long)
    times: list[int] = []

    def ask(*_: Any) -> None:
        times.append(0)
        if len(times) == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    trial.around(steps_of, "update", ask)
    trial.ends_with(Stopped, f"stopped after step {last} of 20", save_every="99")
    assert saved(trial.run) == [f"{last:04d}"]


def test_torchruns_patience_is_compared_with_what_a_stop_takes(trial: Trial) -> None:
    trial.patch.setenv("TORCHELASTIC_RUN_ID", "1")
    for limit, warnings in (("0", 1), ("100", 0)):
        trial.patch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", limit)
        trial.train(limit, steps=3)
        assert trial.said().count(f"torchrun kills its ranks {limit} s after a SIGTERM") == warnings


def test_end_of_the_job_stops_in_time(trial: Trial) -> None:
    trial.patch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 20))
    trial.ends_with(Stopped, "stopped after step 2 of 20", keep_last=1)
    assert "the job ends in" in trial.said()
    assert saved(trial.run) == ["0002"]


@pytest.mark.parametrize(("steps", "save_every"), [(STEPS, "4"), (10, "1000")])
def test_a_validation_that_a_stop_left_out_is_made_up_for(
    trial: Trial, whole: Path, steps: int, save_every: str
) -> None:
    """At the end of the run too, which is complete only then; and once."""
    done: list[int] = []
    changes: dict[str, Any] = {"val_every": 10, "keep_best": 1, "save_every": save_every}
    with trial.patch.context() as patch:
        stopping = lambda state, *_: (  # noqa: E731
            len(done) == steps and os.kill(os.getpid(), signal.SIGTERM)
        )
        around(loop, "train_step", lambda *_: done.append(0), put=patch.setattr)
        around(evaluate, "_batches", stopping, put=patch.setattr)
        trial.ends_with(Stopped, f"stopped after step {steps} of {STEPS}", **changes)
    assert not (trial.run / "done.json").exists()
    before = [record["step"] for record in read_lines(trial.run / "validation.jsonl")]
    assert before == [10] * (steps == STEPS)
    for _ in range(2):
        trial.train(**changes)
        found = read_lines(trial.run / "validation.jsonl")
        assert [record["step"] for record in found] == [10, STEPS]
    assert_same_run(trial.run, whole)
    metas = {meta.step: meta for meta in map(read_meta, (trial.run / "checkpoints").iterdir())}
    assert metas[STEPS].val_loss == found[-1]["val_loss"]
    assert metas[STEPS].progress.best == (min(record["val_loss"] for record in found),)


losses = st.none() | st.floats(0, 10)


def meta_of(step: int, val_loss: float | None) -> Meta:
    identity = Identity(PRESETS["debug"], 8, 0, "", "", {})
    return Meta(step, RunState(step=step), val_loss, identity, {}, 0, TokenizerOrigin("", ""), {})


@given(
    st.dictionaries(st.integers(1, 500), losses, min_size=1),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([0, 7, 100]),
)
def test_retention_keeps_the_newest_the_best_and_milestones(
    rated: dict[int, float | None], last: int, best: int, milestone: int
) -> None:
    steps = sorted(rated)
    metas = {Path(f"step-{step:08d}"): meta_of(step, rated[step]) for step in steps}
    kept = to_keep(metas, TrainConfig(keep_last=last, keep_best=best, milestone=milestone, val_every=1))
    by_loss = sorted((loss, step) for step, loss in rated.items() if loss is not None)
    wanted = {*steps[-last:], *(step for _, step in by_loss[:best])}
    wanted |= {step for step in steps if milestone and step % milestone == 0}
    assert {metas[path].step for path in kept} == wanted


def test_checkpoints_that_a_kill_left_are_deleted_at_the_next_start(trial: Trial) -> None:
    changes = {"steps": 5, "keep_last": 1, "milestone": 4, "schedule": "constant"}
    run = trial.train(save_every="1", **changes)
    assert saved(run) == ["0004", "0005"]
    shutil.copytree(run / "checkpoints/step-00000005", run / "checkpoints/step-00000003")
    trial.train(save_every="never", **changes)  # which deletes nothing
    assert saved(run) == ["0003", "0004", "0005"]
    trial.train(save_every="1", **changes)
    assert saved(run) == ["0004", "0005"]


def test_training_goes_on_while_an_old_checkpoint_is_deleted(trial: Trial) -> None:
    """Its files may be many on a slow file system; the end of the run waits for it."""
    passed, waits = threading.Event(), list[bool]()
    trial.around(save, "_delete", lambda _: waits.append(passed.wait(100)))
    trial.around(loop, "_record", None, lambda _, run, *__: run.progress.step > 6 and passed.set())
    assert saved(trial.train(steps=8, save_every="2", keep_last=1)) == ["0008"]
    assert waits == [True] * 3


def test_best_by_validation_is_saved_at_once(trial: Trial) -> None:
    more = {"steps": 6, "lr": 0.01, "val_every": 1, "val_sequences": 9, "keep_best": 1, "keep_last": 1}
    run = trial.train(save_every="1000", **more)
    found = read_lines(run / "validation.jsonl")
    assert [record["step"] for record in found] == [1, 2, 3, 4, 5, 6]
    assert set(found[0]["sources"]) == {"it", "en"}
    best = min(found, key=lambda record: float(record["val_loss"]))
    assert f"{best['step']:04d}" in saved(run)


def test_saves_by_the_clock(trial: Trial) -> None:
    # Asked for at once, agreed one step later, and the last.
    assert len(saved(trial.train(steps=8, save_every="0.00001m", keep_last=100))) >= 3
    # The clock would hardly meet the step of a milestone, which is saved for its own sake.
    run = trial.train("milestones", steps=8, save_every="10m", keep_last=1, milestone=3)
    assert saved(run) == ["0003", "0006", "0008"]


def test_a_second_run_is_refused_on_all_ranks_by_the_name_of_the_first(trial: Trial) -> None:
    with lock.hold(trial.run, "train"):
        second = Ranks([(2, flags(trial.config()))], trial.folder)
        assert second.wait() == [75, 75]
    assert f"run is in use by train (host {os.uname().nodename}, process {os.getpid()}" in second.text()
    assert not (trial.run / "checkpoints").exists()
    trial.train(steps=2)
    assert not (trial.run / lock.LOCK_FILE).exists()


def test_shards_that_are_trained_on_are_not_taken_back(trial: Trial) -> None:
    def look(*_: Any) -> None:
        with pytest.raises(FolderInUse, match="in use by train"):
            lock.refuse_readers(trial.shards)
        raise KeyboardInterrupt

    trial.around(loop, "_one_step", look)
    with pytest.raises(KeyboardInterrupt):
        trial.train()
    lock.refuse_readers(trial.shards)
    assert not list(trial.shards.glob(f"{lock.READERS}*"))


def test_a_run_that_lost_its_folder_ends_without_saving(trial: Trial) -> None:
    """Another run took the folder over while this one hung: nothing of this one is written any more."""
    trial.patch.setattr(lock, "HEARTBEAT", 0.02)

    def taken_over(run: Any, *_: Any) -> None:
        (trial.run / lock.LOCK_FILE).write_text("another's")
        assert run.lost.wait(100)

    trial.around(loop, "_one_step", taken_over)
    trial.ends_with(MismatchError, "another run, which now owns the folder")
    assert saved(trial.run) == []
    assert (trial.run / lock.LOCK_FILE).read_text() == "another's"
