"""What the log learns of the tasks of a step, and what their workers did."""

from __future__ import annotations

import errno
import os
import time
from datetime import datetime

import pytest
from support import ROOT  # noqa: F401
from telling import Told

from pretok.base.errors import InternalError, NoSpace, PartitionsFailed, Stopped
from pretok.base.execute import Outcome
from pretok.base.failures import TaskError
from pretok.base.tasks import open_step

tries: list[int] = []


def square(item, report):
    report({"items": 1})
    tries.append(item)
    if item == 3:
        raise ZeroDivisionError("three")
    if item == 4 and tries.count(4) < 3:
        raise TimeoutError("no answer")
    if item == 5:
        raise Stopped("enough")
    if item == 6:
        raise OSError(errno.ENOSPC, "disk")
    return item**2


NAMES = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


@pytest.fixture
def told():
    tries.clear()
    return Told()


@pytest.fixture
def step(here, told):
    with open_step("square", here, told) as made:
        yield made


def test_every_task_is_an_event_and_all_workers_one(step, told):
    failures = []
    assert list(step.map(square, [2, 3, 4], "number", NAMES.get, failures=failures)) == [(2, 4), (4, 16)]
    [(name, failed)] = failures
    assert (name, failed.message) == ("three", "ZeroDivisionError: three")
    assert told.notices == ["number three failed: ZeroDivisionError: three"]
    events = [(name, details.get("item"), details.get("tries")) for name, details in told.events]
    assert events == [
        ("task", "two", 1),
        ("task_failed", "three", 1),
        ("task", "four", 3),
        ("workers", None, None),
    ]
    for name, details in told.events[:3]:
        assert abs(datetime.fromisoformat(details["began"]).timestamp() - time.time()) < 60
        assert 0 <= details["seconds"] < 60
        assert details["what"] == "number"
        assert details["peak_bytes"] > 1e6
        assert ("traceback" in details) == (name == "task_failed")
    failed = told.events[1][1]
    assert failed["message"] == "ZeroDivisionError: three"
    assert "in square" in failed["traceback"]
    workers = told.events[-1][1]
    assert workers["nodes"] == {os.uname().nodename: 2}
    assert workers["workers"] == 1
    assert 0 <= workers["idle"] < 1
    assert told.counts["items"] == 5


KEPT = {
    True: ("enough; 2 of 4 numbers are done and kept", "is done and kept"),
    False: ("enough", "nothing was changed"),
}
"""What is said of a stop and of failures, where results are kept and where they are not."""


@pytest.mark.parametrize("kept", KEPT)
def test_a_stop_and_failures_say_what_is_kept(step, told, tmp_path, kept):
    with pytest.raises(Stopped) as stopped:
        list(step.map(square, [2, 5, 1], "number", NAMES.get, done=1, kept=kept))
    assert str(stopped.value) == KEPT[kept][0]
    assert [name for name, _ in told.events] == ["task", "workers"]
    (tmp_path / ".half.tmp").touch()
    found = []
    with pytest.raises(InternalError) as error:
        found.extend(step.map(square, [2, 3, 4], "number", NAMES.get, folder=tmp_path, kept=kept))
    assert (found, tries) == (
        [(2, 4), (4, 16)],
        [2, 5, 2, 3, 4, 4, 4],
    )  # all else is done before it is raised
    assert "1 numbers failed" in str(error.value)
    assert "  three: ZeroDivisionError: three" in str(error.value)
    assert KEPT[kept][1] in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_ends_the_step_at_once(step):
    with pytest.raises(NoSpace, match="disk"):
        list(step.map(square, [6, 2], "number", NAMES.get))
    assert tries == [6]


def test_each_map_logs_its_workers_and_one_without_tasks_nothing(step, told):
    for items in ([1, 2], [], [4]):
        assert len(list(step.map(square, items, "number", NAMES.get))) == len(items)
    assert [sum(event["nodes"].values()) for name, event in told.events if name == "workers"] == [2, 1]


def test_a_worker_that_dies_is_an_event_without_times(step, told):
    lost = Outcome(TaskError("worker died", "", PartitionsFailed, again=True), tries=4)
    step._log(lost, "part", "it-00000")
    [(name, details)] = told.events
    assert name == "task_failed"
    assert "began" not in details
    assert (details["tries"], details["message"]) == (4, "worker died")
