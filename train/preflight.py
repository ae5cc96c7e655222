"""Preflight check of the GPUs: a matrix product on each and an all-reduce over all, seconds before a run of weeks.

Input: a torchrun environment (`python -m train.launch ... -m train.preflight`). Output: one line of JSON per node on
standard output, in the format of `pretok.cluster.node_check`, which finds slow and failed nodes in them.
"""

from __future__ import annotations

from pretok.base.begin import end_with_75, interrupted

if __name__ == "__main__":
    end_with_75()  # torch takes a second to load

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer

TIMEOUT = timedelta(seconds=120)
GPU_NUMBERS, CPU_NUMBERS = 1 << 24, 1 << 18  # size of the all-reduce: 64 MiB and 1 MiB of float32
REPEATS = 3
SHARED = "all-reduce"
"""Name of the check in which any node may cause a failure; `pretok.cluster.node_check` knows it by this name."""


def matrix_product(device: torch.device) -> float:
    """Return the FLOP/s of a square matrix product. ArithmeticError if the product is wrong."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    ones = torch.ones(size, size, device=device, dtype=dtype)
    seconds = Timer("ones @ ones", globals={"ones": ones}).timeit(REPEATS).mean  # waits for the device
    if not bool((ones @ ones == size).all()):
        raise ArithmeticError(f"a product of ones of size {size} is not {size} everywhere")
    return 2 * size**3 / seconds


def all_reduce(device: torch.device, group: dist.ProcessGroup | None) -> float:
    """Return the bytes per second of a sum over all ranks. ArithmeticError if the sum is wrong."""
    numbers = GPU_NUMBERS if device.type == "cuda" else CPU_NUMBERS
    tensor = torch.empty(numbers, device=device)

    def reduce() -> None:  # filled again each time: sums of sums soon exceed what float32 represents exactly
        dist.all_reduce(tensor.fill_(1.0), group=group)

    seconds = Timer("reduce()", globals={"reduce": reduce}).timeit(REPEATS).mean
    expected = float(dist.get_world_size(group))
    if not bool((tensor == expected).all()):
        raise ArithmeticError(f"the sum over all ranks is not {expected} everywhere")
    return numbers * 4 / seconds


def _attempt(
    name: str, unit: float, label: str, measure: Callable[[], float], compared: bool
) -> dict[str, Any]:
    """Run one check and return its row: what `measure` returns, or why it failed, in one line.

    unit, label: the value is shown divided by `unit`, followed by `label`. compared: nodes far below the others are
    bad.
    """
    try:
        value = measure()
        number = value if compared else None
        return {"name": name, "value": f"{value / unit:.3g} {label}", "problem": "", "number": number}
    except Exception as error:  # whatever the error is, the report must name this node
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return {"name": name, "value": "-", "problem": f"rank {os.environ['RANK']}: {text}", "number": None}


def main() -> int:
    """Check this rank's device; the first rank of each node prints the node's worst result. Returns 1 on a problem."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    node = os.uname().nodename
    product = _attempt("matmul", 1e12, "TFLOP/s", lambda: matrix_product(device), compared=cuda)
    # Results are gathered by gloo, on the host: a rank whose device failed can still report, and nobody waits for it.
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rows: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(rows, (node, product))
    reduced = None
    if not any(row["problem"] for _, row in rows):
        # Training uses several groups beside each other, and some machines hang in the second one.
        groups = [dist.new_group(backend="nccl" if cuda else "gloo", timeout=TIMEOUT) for _ in range(2)]
        worst_of = lambda: min(all_reduce(device, group) for group in groups)  # noqa: E731
        reduced = _attempt(SHARED, 1e9, "GB/s", worst_of, compared=False)
    if os.environ["LOCAL_RANK"] == "0":
        mine = [row for name, row in rows if name == node]
        worst = min(mine, key=lambda check: (not check["problem"], check["number"] or 0.0))
        checks = [worst, *([reduced] if reduced else [])]
        print(json.dumps({"node": node, "checks": checks}), flush=True)
    problem = product["problem"] or (reduced and reduced["problem"])
    if not problem:
        dist.destroy_process_group()
    return 1 if problem else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        interrupted()
