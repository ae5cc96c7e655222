"""What a step yields, shows and raises, and what its log says of tasks and workers."""

from __future__ import annotations

import errno
import os
import time
from datetime import datetime

import pytest
from recording import RecordingConsole
from support import ROOT  # noqa: F401

from pretok.base.errors import InternalError, NoSpace, PartitionsFailed, Stopped
from pretok.base.failures import TaskError
from pretok.base.pool import Outcome
from pretok.base.tasks import open_step

NAMES = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
ERRORS = {3: ZeroDivisionError("three"), 5: Stopped("enough"), 6: OSError(errno.ENOSPC, "disk")}
tries: list[int] = []


def square(item, report):
    report({"items": 1})
    tries.append(item)
    if item in ERRORS:
        raise ERRORS[item]
    if item == 4 and tries.count(4) < 3:
        raise TimeoutError("no answer")
    return item**2


@pytest.fixture
def console():
    tries.clear()
    return RecordingConsole()


@pytest.fixture
def step(here, console):
    with open_step("square", here, console) as step:
        yield step


def test_every_task_is_an_event_and_all_workers_one(step, console):
    failures = []
    assert list(step.map(square, [2, 3, 4], "number", NAMES.get, failures=failures)) == [(2, 4), (4, 16)]
    assert list(step.map(square, [], "number", NAMES.get)) == []
    assert [(name, failed.message) for name, failed in failures] == [("three", "ZeroDivisionError: three")]
    assert console.notices == ["number three failed: ZeroDivisionError: three"]
    assert [(name, details.get("item"), details.get("tries")) for name, details in console.events] == [
        ("task", "two", 1), ("task_failed", "three", 1), ("task", "four", 3), ("workers", None, None),
    ]  # fmt: skip
    for _, details in console.events[:3]:
        assert abs(datetime.fromisoformat(details["began"]).timestamp() - time.time()) < 60
        assert details["what"] == "number"
        assert 0 <= details["seconds"] < 60
        assert details["peak_bytes"] > 1e6
    assert "in square" in console.events[1][1]["traceback"]
    workers = console.events[-1][1]
    assert (workers["nodes"], workers["workers"]) == ({os.uname().nodename: 2}, 1)
    assert 0 <= workers["idle"] < 1
    assert console.counts["items"] == 2  # not those of tries that failed


KEPT = {
    True: ("enough; 2 of 4 numbers are done and kept", "is done and kept"),
    False: ("enough", "nothing was changed"),
}
"""What is said of a stop and of failures, if results are kept and if they are not."""


@pytest.mark.parametrize("kept", KEPT)
def test_a_stop_and_failures_say_what_is_kept(step, tmp_path, kept):
    with pytest.raises(Stopped) as stopped:
        list(step.map(square, [2, 5, 1], "number", NAMES.get, done=1, kept=kept))
    assert (str(stopped.value), tries) == (KEPT[kept][0], [2, 5])
    (tmp_path / ".half.tmp").touch()
    found = []
    with pytest.raises(InternalError, match=f"1 numbers failed:\n  three: (?s:.*){KEPT[kept][1]}"):
        found.extend(step.map(square, [3, 4], "number", NAMES.get, folder=tmp_path, kept=kept))
    assert found == [(4, 16)]  # all else is done before it is raised
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_ends_the_step_at_once(step):
    with pytest.raises(NoSpace, match="disk"):
        list(step.map(square, [6, 2], "number", NAMES.get))
    assert tries == [6]


def test_a_worker_that_dies_is_an_event_without_times_and_all_nodes_are_named(step, console, monkeypatch):
    lost = TaskError("worker died", "", PartitionsFailed, again=True)
    outcomes = [
        Outcome(lost, index=0, tries=4),
        *(Outcome(4, f"n{n}", seconds=9e9, index=1) for n in (2, 1, 2)),
    ]
    monkeypatch.setattr(step.engine, "map", lambda *_: (outcome for outcome in outcomes))
    list(step.map(square, [1, 2], "number", NAMES.get, failures=[]))
    assert console.events[0] == (
        "task_failed", {"what": "number", "item": "one", "tries": 4, "message": "worker died", "traceback": ""}
    )  # fmt: skip
    assert console.notices[-1] == "numbers per node: n1 1, n2 2"
    # More workers than at the start: `status` refuses a log with less.
    assert console.events[-1][1]["idle"] == 0
