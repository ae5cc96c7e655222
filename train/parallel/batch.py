"""How a global batch is made of passes.

Enters: ranks that read different data, and the sizes that are given. Leaves: a Batch, all sizes solved. Without torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretok.base.errors import UsageError

USUAL_MICRO_BATCH = 8
"""Sequences in a pass where no size is given."""


@dataclass(frozen=True, slots=True)
class Batch:
    """global_batch = micro_batch x accumulation x data-parallel ranks, all in sequences."""

    global_batch: int
    micro_batch: int
    accumulation: int
    ranks: int


def solve_batch(
    ranks: int, global_batch: int | None, micro_batch: int | None, accumulation: int | None
) -> Batch:
    """Fill in what is not given. Of two unknowns accumulation is 1; with nothing given, micro_batch is 8.

    Raises UsageError with the nearest valid values when it does not divide.
    """
    if global_batch is None:
        micro_batch, accumulation = micro_batch or USUAL_MICRO_BATCH, accumulation or 1
        return Batch(micro_batch * accumulation * ranks, micro_batch, accumulation, ranks)
    if micro_batch is None:
        accumulation = accumulation or 1
    unit = ranks * (micro_batch or 1) * (accumulation or 1)
    both = micro_batch is not None and accumulation is not None
    if global_batch % unit or (both and global_batch != unit):
        below, above = global_batch // unit * unit, -(-global_batch // unit) * unit
        nearest = str(unit) if both else " or ".join(str(n) for n in (below, above) if n)
        factors = [f"{ranks} data-parallel ranks"]
        factors += [f"micro_batch {micro_batch}"] if micro_batch else []
        factors += [f"accumulation {accumulation}"] if accumulation else []
        raise UsageError(
            f"global_batch {global_batch} is not a multiple of {' x '.join(factors)} = {unit}"
            f"{' or not equal to it' if both else ''}; nearest: {nearest}"
        )
    if micro_batch is None:
        return Batch(global_batch, global_batch // unit, accumulation or 1, ranks)
    return Batch(global_batch, micro_batch, global_batch // (ranks * micro_batch), ranks)
