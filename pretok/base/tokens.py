"""Token ids: in which type they are kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.int32]


def token_dtype(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """uint16 for at most 65,536 entries (ids 0 to 65,535), else int32; both little-endian."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<i4")
