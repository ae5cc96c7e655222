"""A rank that is slow is named, with its host, what it is slow in and what that costs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support import needs

needs("torch")
from pretok.base.storage import read_lines
from tests.train_support import Ranks, tiny_flags
from train.run.stragglers import NOTABLE, slowest


def test_the_rank_that_costs_most_is_the_slowest() -> None:
    hosts = ["a", "b", "c"]
    found = slowest([(0.0, 0.2, 1e-3), (0.1, 0.2, 1.5e-3), (0.0, 0.2, 1e-3)], hosts, 1.0)
    assert (found.rank, found.host, found.kind) == (1, "b", "device")
    assert found.behind == pytest.approx(
        0.5
    )  # a device that is half slower, and not the tenth of a second of data
    found = slowest([(0.0, 0.2, 1e-3), (0.1, 0.2, 1e-3), (0.0, 0.5, 1e-3)], hosts, 2.0)
    assert (found.rank, found.kind, found.behind) == (2, "host", pytest.approx(0.15))
    assert slowest([(0.1, 0.1, 0.1)] * 3, hosts, 1.0).behind == 0.0


class _Steady:
    """A mark beside a matrix product that takes a millisecond on every rank, however busy the machine is."""

    def __init__(self, device: object) -> None: ...

    def seconds_since(self, _begin: object) -> float:
        return 1e-3


def _slow_data_on_rank_1() -> None:
    from train.run import stragglers
    from train.steps.data import Feed

    stragglers.EVERY = 4
    stragglers.Mark = _Steady  # type: ignore[assignment,misc]
    if os.environ["RANK"] != "1":
        return
    original = Feed.__iter__

    def slow(feed: Feed) -> Any:
        for fetched in original(feed):
            feed.waited += 30.0  # far longer than a step may take
            yield fetched

    Feed.__iter__ = slow  # type: ignore[method-assign]


def test_a_slow_rank_is_named_in_metrics_and_on_the_terminal(shards: Path, tmp_path: Path) -> None:
    flags = tiny_flags(shards, tmp_path, global_batch=6, steps=12, save_every="never")
    ranks = Ranks(3, flags, tmp_path, _slow_data_on_rank_1)
    assert ranks.wait() == [0, 0, 0], ranks.text()
    looks = [line["slowest"] for line in read_lines(tmp_path / "run/metrics.jsonl") if line["slowest"]]
    assert len(looks) == 2  # the last is not waited for
    for look in looks:
        assert (look["rank"], look["kind"]) == (1, "data")
        assert 30 <= look["seconds"] < 40  # at the first look one more was fetched than steps were done
        assert look["behind"] > NOTABLE
    assert f"slow: rank 1 on {os.uname().nodename} waits for data 3" in ranks.text()
