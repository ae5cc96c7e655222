"""Compressed zstd data -> slices whose text is bounded.

Input: blocks of a zstd file, cut anywhere. Output: the same bytes in slices of at most BLOCKS zstd blocks, which are
128 KiB of text each at most (RFC 8878, 3.1.1.2), whatever they shrank to: 32 KiB of a file can hold 1 GB of text, and a
decompressor gives all of what it is fed at once.
"""

from __future__ import annotations

from collections.abc import Iterator

BLOCKS = 32
"""Blocks per slice at most: 4 MiB of text."""

_FRAME = b"\x28\xb5\x2f\xfd"
_RLE = 1
"""Kind of a block that is one byte, repeated."""


class FrameWalk:
    """Follows the headers of frames and blocks; what is no zstd it passes on, for the decompressor to refuse."""

    def __init__(self) -> None:
        self._header = b""  # of what comes next, as far as it is there
        self._skip = 0  # bytes before the next header
        self._in_frame = False
        self._checksum = 0
        self._lost = False

    def slices(self, data: bytes) -> Iterator[bytes]:
        """`data` in slices."""
        start = at = blocks = 0
        while at < len(data) and not self._lost:
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
            else:
                step = 1
                self._header += data[at : at + 1]
                blocks += self._read_header()
            at += step
            if blocks == BLOCKS:
                yield data[start:at]
                start, blocks = at, 0
        yield data[start:]

    def _read_header(self) -> int:
        """Take the header in, once it is whole; 1 where it is a block's."""
        header, size = self._header, len(self._header)
        if self._in_frame:
            if size < 3:
                return 0
            word = int.from_bytes(header, "little")  # last block: 1 bit, kind: 2, size: 21
            last, kind = word & 1, word >> 1 & 3
            self._skip = (1 if kind == _RLE else word >> 3) + (self._checksum if last else 0)
            self._in_frame = not last
            self._header = b""
            return 1
        if (
            size == 4
            and header != _FRAME
            and not (header[0] & 0xF0 == 0x50 and header[1:] == b"\x2a\x4d\x18")  # of a skippable frame
        ):
            self._lost = True
        elif size == 5 and header.startswith(_FRAME):
            flags = header[4]  # of what the frame header holds: window, dictionary, size of the content
            single = flags >> 5 & 1
            self._checksum = 4 * (flags >> 2 & 1)
            self._skip = (not single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
            self._in_frame = True
            self._header = b""
        elif size == 8:  # a skippable frame
            self._skip = int.from_bytes(header[4:], "little")
            self._header = b""
        return 0
