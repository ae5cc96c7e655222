"""Arrow string arrays as the two numpy arrays that Numba and the engines take, and back.

Input: a large_string array, or bytes in a row with offsets. Output: the other, without a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def buffers(texts: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return (data, offsets) of a large_string array, without a copy: text i is data[offsets[i]:offsets[i + 1]].

    data: uint8, from the first text to the end of the last; offsets: (documents + 1,) int64, starting at 0.
    """
    if len(texts) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    # Arrow may leave the buffer out where all texts are empty.
    if data_buffer is None or offsets[-1] == offsets[0]:
        return np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    # A slice of an array has the buffers of the whole, with offsets that do not begin at 0.
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets if offsets[0] == 0 else offsets - offsets[0]


def from_buffers(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> pa.LargeStringArray:
    """Invert `buffers`, without a copy. It does not check that the bytes are UTF-8."""
    array: Any = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    return array
