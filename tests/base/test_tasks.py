"""What the log learns of the tasks of a step, and what their workers did."""

from __future__ import annotations

from datetime import datetime

import pytest
from support import ROOT  # noqa: F401
from telling import Told

from pretok.base.errors import PartitionsFailed, Stopped
from pretok.base.failures import TaskError
from pretok.base.tasks import Usage, run_tasks

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
    return item**2


def test_every_task_is_an_event_and_all_workers_one(here):
    tries.clear()
    told, usage = Told(), Usage()
    items = [2, 3, 4]
    found = list(run_tasks(square, items, ["two", "three", "four"], "number", here, told, told, usage))
    assert [outcome.result for outcome in found if not isinstance(outcome.result, TaskError)] == [4, 16]
    events = [(name, details.get("item"), details.get("tries")) for name, details in told.events]
    assert events == [
        ("tasks", None, None),
        ("task", "two", 1),
        ("task_failed", "three", 1),
        ("task", "four", 3),
        ("workers", None, None),
    ]
    assert told.events[0][1] == {"what": "number", "tasks": 3, "workers": 1}
    for name, details in told.events[1:4]:
        began, ended = (datetime.fromisoformat(details[key]) for key in ("began", "ended"))
        assert abs((ended - began).total_seconds() - details["seconds"]) < 0.01
        assert details["what"] == "number"
        assert details["peak_bytes"] > 1e6
        assert ("traceback" in details) == (name == "task_failed")
    failed = told.events[2][1]
    assert failed["message"] == "ZeroDivisionError: three"
    assert "in square" in failed["traceback"]
    workers = told.events[-1][1]
    assert workers["nodes"] == {found[0].node: 2} == dict(usage.nodes)
    assert workers["workers"] == 1
    assert 0 <= workers["idle"] == round(usage.idle, 4) < 1
    assert told.counts["items"] == 5


def test_a_stop_still_tells_what_the_workers_did(here):
    told = Told()
    with pytest.raises(Stopped):
        list(run_tasks(square, [2, 5], ["a", "b"], "number", here, told))
    assert [name for name, _ in told.events] == ["tasks", "task", "workers"]


def test_no_tasks_start_nothing(here):
    told = Told()
    assert list(run_tasks(square, [], [], "number", here, told)) == []
    assert told.events == []


def test_a_worker_that_dies_is_an_event_without_times():
    from pretok.base.execute import NO_INDEX, Outcome
    from pretok.base.tasks import _log

    told = Told()
    _log(
        Outcome(NO_INDEX, TaskError("worker died", "", PartitionsFailed, again=True), tries=4),
        "it-00000",
        "part",
        told,
    )
    [(name, details)] = told.events
    assert name == "task_failed"
    assert "began" not in details
    assert (details["tries"], details["message"]) == (4, "worker died")
