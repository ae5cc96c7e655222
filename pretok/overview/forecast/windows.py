"""The inputs of a source -> windows: small pieces at equal distances, each of which stands for an equal part.

Input: the probed inputs of a source. Output: `Window`s. Each of at most POINTS files gets points by its size, at least
one, and stands for itself. Of more files, POINTS points lie at equal distances along all of them, the first at a seeded
place (systematic sampling with probability proportional to size), and only some small files get one. At each point a
window of whole records begins.

A compressed file cannot be entered in the middle. Its first PREFIX bytes are unpacked once, and its points are spread
over these. A window of a Parquet file is a row group, one of a saved dataset a range of rows.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

from pretok.base.records import replace
from pretok.base.storage import FULL, tried, writing
from pretok.read.files import READ_SIZE, CorruptInputError, InputFile, decompress, open_input
from pretok.read.format import Piece, Probe
from pretok.read.formats.jsonl import line_starts
from pretok.read.formats.tokens import around

POINTS = 64
WINDOW = 128 << 10
"""Bytes of a window; all windows of a source are a few MB."""
PREFIX = 64 << 20
"""Bytes of a compressed file, unpacked, from which its windows are taken."""
ROWS = 200
"""Rows of a saved dataset in a window."""


@dataclass(frozen=True, slots=True)
class Window:
    """A piece to read."""

    piece: Piece
    units: float
    """How much it holds itself."""
    amount: float
    """How much of the file it stands for: bytes of records (unpacked) or of a Parquet column (from the footer), or rows
    of a saved dataset."""
    text: int = WINDOW
    """How many bytes of its text are encoded."""
    path: str = ""
    """Of the input: the piece may be of its unpacked beginning."""


def windows(probes: Sequence[Probe], seed: str, errors: dict[str, str]) -> Iterator[Window]:
    """Yield the windows of one source, in the order of its inputs.

    Read each window before asking for the next, since the unpacked beginning of a compressed file is then removed. A
    file that cannot be read gives no window, and `errors` says why, by path; errors that may pass are tried again.
    """
    probes = [probe for probe in probes if _weight(probe)]
    ends = list(accumulate(_weight(probe) for probe in probes))
    if not ends:
        return
    step = ends[-1] / POINTS
    every = len(probes) <= POINTS
    if every:
        chosen = {number: max(1, round(_weight(probe) / step)) for number, probe in enumerate(probes)}
    else:
        first = random.Random(seed).random()
        files = [bisect_right(ends, (first + point) * step) for point in range(POINTS)]
        chosen = Counter(min(file, len(probes) - 1) for file in files)
    for number, points in chosen.items():
        probe = probes[number]
        # One random start for all windows of a file, which then lie at equal distances: less spread than places drawn
        # one by one, and the same at every call.
        start = random.Random(f"{seed}/{number}").random() / points
        places = [start + place / points for place in range(points)]
        try:
            for window in _of_file(probe, places, _weight(probe) if every else points * step):
                yield replace(window, path=probe.file.path)
        except (CorruptInputError, OSError) as error:
            errors[probe.file.path] = str(error)


def _weight(probe: Probe) -> float:
    """Return the size of an input, in a unit that all inputs of its source have.

    It is the bytes of the column in Parquet, rows in a saved dataset, else bytes on disk.
    """
    return float(sum(probe.parts) or probe.file.size)


def _of_file(probe: Probe, places: Sequence[float], stored: float) -> Iterator[Window]:
    """Yield windows at `places` (fractions of the file's length) that together stand for `stored` bytes on disk."""
    file = probe.file
    amount = stored / len(places)
    if probe.tokens is not None and probe.size > WINDOW * len(places):
        for place in places:
            piece, units = around(probe, place, WINDOW)
            if units:
                yield Window(piece, units, amount)
    elif probe.parts:
        ends = list(accumulate(probe.parts))
        groups = Counter(min(bisect_right(ends, place * ends[-1]), len(ends) - 1) for place in places)
        for group, points in groups.items():  # a group is read whole, once
            units = probe.parts[group]
            part = stored * units / ends[-1] if len(groups) == len(ends) else amount * points
            yield Window(Piece(file, group, group + 1), units, part, WINDOW * points)
    elif file.compression:
        with TemporaryDirectory(prefix="pretok-") as folder:
            unpacked, packed = tried(lambda: _unpack(file, Path(folder) / "prefix"))
            yield from _of_plain(unpacked, places, amount * unpacked.size / packed)
    else:
        yield from _of_plain(file, places, amount)


def _of_plain(file: InputFile, places: Sequence[float], amount: float) -> Iterator[Window]:
    # A text file is read from its start: documents end at a separator or with the file.
    if file.format != "jsonl" or file.size <= WINDOW * len(places):
        yield Window(Piece(file), file.size, amount * len(places), WINDOW * len(places))
        return
    for place in places:
        at, back = max(1, int(place * file.size)), WINDOW
        while True:
            borders = tried(partial(line_starts, file, [0, at, min(at + WINDOW, file.size), file.size]))
            start = next(border for border in borders if border >= at)
            if start < file.size or at == 1:
                break
            at, back = max(1, at - back), 2 * back  # no record begins after the point: use one before it
        start = start if start < file.size else 0
        stop = next(border for border in borders if border > start)
        if start < stop:
            yield Window(Piece(file, start, stop), stop - start, amount)


def _unpack(file: InputFile, to: Path) -> tuple[InputFile, int]:
    """Unpack the first PREFIX bytes of a compressed file as a file of whole records.

    Returns (that file, how many packed bytes its records were).
    """
    packed = size = 0

    def blocks() -> Iterator[bytes]:
        nonlocal packed
        with open_input(file.path, READ_SIZE) as stream:
            while block := stream.read(1 << 16):
                packed += len(block)
                yield block

    with writing(to, FULL), to.open("wb") as out:
        for text in decompress(blocks(), file.compression):
            out.write(text)
            size += len(text)
            if size >= PREFIX:
                break
    if size >= PREFIX and file.format == "jsonl":  # a line that was cut is no record
        with to.open("rb+") as cut:
            whole_lines = cut.read().rfind(b"\n") + 1
            cut.truncate(whole_lines)
    kept = to.stat().st_size
    return replace(file, path=str(to), compression="", size=kept), max(1, round(packed * kept / max(1, size)))
