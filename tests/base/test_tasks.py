"""What the log learns of the tasks of a step, and what their workers did."""

from __future__ import annotations

from datetime import datetime

import pytest
from support import ROOT  # noqa: F401
from telling import Told

from pretok.base.errors import InternalError, PartitionsFailed, Stopped
from pretok.base.failures import TaskError
from pretok.base.tasks import Usage, run_all, run_tasks

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


@pytest.mark.parametrize(("kept", "said"), [(True, "is done and kept"), (False, "nothing was changed")])
def test_all_are_done_before_failures_are_raised(here, tmp_path, kept, said):
    tries.clear()
    (tmp_path / ".half.tmp").touch()
    found = []
    with pytest.raises(InternalError) as error:
        found.extend(
            run_all(
                square,
                [2, 3, 4],
                ["two", "three", "four"],
                "number",
                here,
                Told(),
                folder=tmp_path,
                kept=kept,
            )
        )
    assert (found, tries) == ([(0, 4), (2, 16)], [2, 3, 4, 4, 4])
    assert "1 numbers met an internal error" in str(error.value)
    assert "  three: ZeroDivisionError: three" in str(error.value)
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_results_come_with_their_indices(here):
    tries.clear()
    assert sorted(run_all(square, [4, 2], ["four", "two"], "number", here, Told())) == [(0, 16), (1, 4)]


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
