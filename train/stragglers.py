"""Finds the slowest rank, and by how much it is slower.

Input: the time each rank needed for its own work. Output: the slowest rank, for metrics.jsonl and, from NOTABLE on, for
a line on the terminal.

All ranks end a step together, because each waits for the others, so the length of a step does not show who was late.
Three times belong to one rank alone; the first two are means per step since the last check:

- data: seconds it waited for sequences;
- host: seconds its host needed to queue a step, without that wait (0 on a CPU, where nothing is queued);
- device: seconds of one matrix product of fixed size, right after a step, when the device is at its warmest.

Every EVERY steps gloo gathers them between the hosts. The numbers are those of finished steps, so
the device does not wait for anything.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from train.step import Mark

EVERY = 50
"""Steps between two checks."""
SIZE = {"cuda": 4096, "cpu": 256}
"""Rows and columns of the matrices; the product takes a millisecond or less."""
NOTABLE = 0.1
"""Fraction of a step that a rank must cost to be reported on the terminal."""
KINDS = {"data": "waiting for data", "host": "queueing a step", "device": "a matrix product"}


def slowest(table: Sequence[Sequence[float]], hosts: Sequence[str], step_seconds: float) -> dict[str, Any]:
    """Return the rank that costs the most time.

    table: for each rank the seconds of KINDS, in their order. Returns `rank`, `host`, `kind`, its `seconds`, the
    `median` of all ranks, and `behind`, the fraction of a step that it costs all ranks. A device that is a tenth slower
    makes the whole step a tenth longer; data and host cost the seconds they take.
    """
    costs = []
    for column, kind in enumerate(KINDS):
        values = [row[column] for row in table]
        rank, median = max(range(len(values)), key=values.__getitem__), statistics.median(values)
        whole = median if kind == "device" else step_seconds
        behind = (values[rank] - median) / whole if whole else 0.0
        cost = {"rank": rank, "host": hosts[rank], "kind": kind, "seconds": values[rank], "median": median}
        costs.append(cost | {"behind": behind})
    return max(costs, key=lambda cost: cost["behind"])


class Stragglers:
    """Compares all ranks every EVERY steps; every rank must call its methods at the same steps."""

    def __init__(self, device: torch.device, first: int) -> None:
        """Begin to measure. first: steps that were done before this start."""
        self._ranks = dist.get_world_size()
        self._device = device
        self._busy = 0.0  # seconds that the host spent queueing steps
        self._since = (first, 0.0, 0.0)
        self._probe: tuple[Mark, Mark] | None = None
        self._hosts = [""] * self._ranks
        dist.all_gather_object(self._hosts, os.uname().nodename)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._matrix = torch.ones((SIZE[device.type],) * 2, dtype=dtype, device=device)

    def queued(self, step: int, seconds: float) -> None:
        """Note that the host queued step `step` in `seconds`. Before a check, queue a matrix product after the step."""
        self._busy += seconds
        if self._ranks > 1 and step % EVERY == 0:
            begin = Mark(self._device)
            torch.mm(self._matrix, self._matrix)
            self._probe = begin, Mark(self._device)

    def done(self, step: int, seconds: float, waited: float) -> dict[str, Any] | None:
        """Note that step `step` is done and took `seconds`. Every EVERY steps return the slowest rank, else None.

        waited: seconds that this rank's host has waited for data so far.
        """
        if self._probe is None or step % EVERY:
            return None
        (begin, end), self._probe = self._probe, None
        first, waited_then, busy_then = self._since
        steps = max(1, step - first)
        self._since = step, waited, self._busy
        host = (self._busy - busy_then) / steps if self._device.type == "cuda" else 0.0
        mine = [(waited - waited_then) / steps, host, end.seconds_since(begin)]
        # Tensors of the host, so that gloo sends them, in the group that all ranks have anyway.
        table = torch.empty(self._ranks, len(mine), dtype=torch.float64)
        dist.all_gather(list(table), torch.tensor(mine, dtype=torch.float64))
        return slowest(table.tolist(), self._hosts, seconds)
