"""Which rank is slow, and by how much.

Input: what each rank needed for its own work. Output: the slowest rank, for metrics.jsonl and, from NOTABLE on, for a
line.

All ranks end a step together, because each waits for the others, so the length of a step says nothing of who was late.
Three things are a rank's own, the first two as means of a step since the last look:

- data: seconds it waited for sequences;
- host: seconds its host needed to queue a step, without that wait (on a CPU, where nothing is queued, it is not told);
- device: seconds of one matrix product of a fixed size, right after a step, when the device is as warm as it gets.

They are gathered every EVERY steps among hosts, by a group of its own: numbers are of steps that the host knows to be
done, and the device's stream waits for nothing.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from train.step import Mark

EVERY = 50
"""Steps between two looks."""
SIZE = {"cuda": 4096, "cpu": 256}
"""Rows and columns of the matrices: a millisecond or less."""
NOTABLE = 0.1
"""Part of a step that a rank must cost for a line."""
KINDS = {"data": "waits for data", "host": "queues a step in", "device": "needs for a matrix product"}


def slowest(table: Sequence[Sequence[float]], hosts: Sequence[str], step_seconds: float) -> dict[str, Any]:
    """The rank that costs most: `rank`, `host`, `kind`, its `seconds`, the `median` of all ranks, and how far it is
    `behind`: the part of a step that it costs all. table: of each rank the seconds of KINDS.

    A device that is a tenth slower makes the whole step a tenth longer; data and host cost what they take.
    """
    found = []
    for column, kind in enumerate(KINDS):
        values = [row[column] for row in table]
        rank, median = max(range(len(values)), key=values.__getitem__), statistics.median(values)
        whole = median if kind == "device" else step_seconds
        behind = (values[rank] - median) / whole if whole else 0.0
        of = {"rank": rank, "host": hosts[rank], "kind": kind, "seconds": values[rank], "median": median}
        found.append(of | {"behind": behind})
    return max(found, key=lambda one: one["behind"])


class Stragglers:
    """Looks at all ranks every EVERY steps; all of them call its methods at the same steps."""

    def __init__(self, device: torch.device, timeout: int) -> None:
        self._ranks = dist.get_world_size()
        self._device = device
        self._busy = 0.0  # seconds in which the host queued steps
        self._since = (0, 0.0, 0.0)
        self._probe: tuple[Mark, Mark] | None = None
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._matrix = torch.ones((SIZE[device.type],) * 2, dtype=dtype, device=device)

    def queued(self, step: int, seconds: float) -> None:
        """Step `step` is queued, which the host needed so many seconds for: put a matrix product behind it where it is
        one to look at."""
        self._busy += seconds
        if self._ranks > 1 and step % EVERY == 0:
            begin = Mark(self._device)
            torch.mm(self._matrix, self._matrix)
            self._probe = begin, Mark(self._device)

    def done(self, step: int, seconds: float, waited: float) -> dict[str, Any] | None:
        """Step `step` is done and took `seconds`, and so is what was queued with it. waited: seconds by now that this
        rank's host waited for data. Returns who was slowest, where it is a step to look at."""
        if self._probe is None or step % EVERY:
            return None
        (begin, end), self._probe = self._probe, None
        first, waited_then, busy_then = self._since
        steps = max(1, step - first)
        self._since = step, waited, self._busy
        host = (self._busy - busy_then) / steps if self._device.type == "cuda" else 0.0
        mine = os.uname().nodename, ((waited - waited_then) / steps, host, end.seconds_since(begin))
        found: list[Any] = [None] * self._ranks
        dist.all_gather_object(found, mine, group=self._group)
        hosts, table = zip(*found, strict=True)
        return slowest(table, hosts, seconds)
