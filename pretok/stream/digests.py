"""The tokens that were read, as one number, so that runs on two trainers can be compared line by line.

Input: positions of a stream, the token ids that were read there, and which targets are learned. Output: `digest`, which
can be summed over micro-batches and ranks; `data_hash`, which chains the sums of a run's steps. It needs only numpy and
the standard library.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def digest(
    positions: Sequence[int], tokens: npt.ArrayLike, learned: npt.NDArray[np.bool_] | None = None
) -> int:
    """Return the sum over n sequences of the CRC-32 of position (int64), token ids (int32) and mask.

    positions: (n,). tokens: (n, seq_len + 1) of any integer dtype. learned: (n, seq_len), whether each target
    contributes to the loss; None is the same as all True. The sum does not depend on how a global batch was divided, so
    ranks add theirs. It is below 2**53, exact in float64, for two million sequences.
    """
    rows = np.ascontiguousarray(tokens, "<i4")
    total = 0
    for number, (position, row) in enumerate(zip(np.asarray(positions, "<i8"), rows, strict=True)):
        crc = zlib.crc32(row, zlib.crc32(position.tobytes()))
        if learned is not None and not learned[number].all():
            crc = zlib.crc32(np.packbits(learned[number]).tobytes(), crc)
        total += crc
    return total


def data_hash(previous: str, step: int) -> str:
    """Return the running hash of everything a run has read, after a step with the digest `step` over all ranks.

    previous: the hash after the step before, "" at the start. `train` logs it under this name.
    """
    return hashlib.blake2b(f"{previous}{step}".encode(), digest_size=8).hexdigest()
