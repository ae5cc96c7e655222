"""The inputs of a source -> windows: small pieces, spread evenly over all bytes, that stand for equal parts of it.

Input: the probed inputs of a source. Output: `Window`s. POINTS points lie at equal distances in the row of all inputs,
the first at a seeded place (systematic sampling with probability proportional to size); at each point a window of whole
records begins. A large file is met by many points, of many small files some are met.

What is compressed cannot be entered in the middle: of such a file the first PREFIX bytes are unpacked once, and its
points are spread over those. Of Parquet a window is a row group, of a saved dataset a run of rows.
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
from pretok.read.partition import Piece, line_starts
from pretok.read.probe import Probe

POINTS = 64
WINDOW = 128 << 10
"""Bytes of a window: a few MB of each source in all."""
PREFIX = 64 << 20
"""Unpacked bytes of a compressed file that are looked at."""
ROWS = 200
"""Rows of a saved dataset in a window."""


@dataclass(frozen=True, slots=True)
class Window:
    """A piece to be read. units: how much it holds of what `amount` counts; amount: how much it stands for: bytes of
    records (unpacked), bytes of a Parquet column as its footer gives them, or rows of a saved dataset; text: how many
    bytes of its text are to be encoded."""

    piece: Piece
    units: float
    amount: float
    text: int = WINDOW


def windows(probes: Sequence[Probe], seed: str, errors: list[str]) -> Iterator[Window]:
    """The windows of one source, in the order of its inputs. Each must be read before the next is asked for: then the
    unpacked beginning of a compressed file is removed. A file that cannot be read gives none and is named in `errors`;
    what may pass is tried again before."""
    probes = [probe for probe in probes if _weight(probe)]
    ends = list(accumulate(_weight(probe) for probe in probes))
    if not ends:
        return
    step = ends[-1] / POINTS
    first = random.Random(seed).random()
    met = [bisect_right(ends, (first + point) * step) for point in range(POINTS)]
    for number, points in Counter(min(place, len(probes) - 1) for place in met).items():
        start = random.Random(f"{seed}/{number}").random() / points
        places = [start + place / points for place in range(points)]
        try:
            yield from _of_file(probes[number], places, points * step)
        except (CorruptInputError, OSError) as error:
            errors.append(f"{probes[number].file.path}: {error}")


def _weight(probe: Probe) -> float:
    """Size on disk, of which every input knows the unit that the others of its source have."""
    return float(sum(probe.parts) or probe.file.size)


def _of_file(probe: Probe, places: Sequence[float], stored: float) -> Iterator[Window]:
    """Windows at `places` (shares of the file's length) that stand for `stored` bytes on disk together."""
    file = probe.file
    amount = stored / len(places)
    if probe.parts:
        ends = list(accumulate(probe.parts))
        groups = Counter(min(bisect_right(ends, place * ends[-1]), len(ends) - 1) for place in places)
        for group, points in groups.items():  # a group is read as a whole, once
            yield Window(Piece(file, group, group + 1), probe.parts[group], amount * points, WINDOW * points)
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
        at = int(place * file.size)
        borders = tried(partial(line_starts, file, [0, at, min(at + WINDOW, file.size), file.size]))
        start = next((border for border in borders if border >= at), borders[-1])
        if start == file.size:  # nothing begins behind the point: the last record stands for what is there
            start = borders[-2]
        stop = next(border for border in borders if border > start)
        if start < stop:
            yield Window(Piece(file, start, stop), stop - start, amount)


def _unpack(file: InputFile, to: Path) -> tuple[InputFile, int]:
    """(the first PREFIX bytes of a compressed file as a file of whole records, the packed bytes they took)."""
    packed = size = 0
    whole = True

    def blocks() -> Iterator[bytes]:
        nonlocal packed
        with open_input(file.path, READ_SIZE) as stream:
            while block := stream.read(1 << 16):
                packed += len(block)
                yield block

    with writing(to, FULL), to.open("wb") as out:
        for text in decompress(blocks(), file.compression, partial=True):
            out.write(text)
            size += len(text)
            if size >= PREFIX:
                whole = False
                break
    if not whole and file.format == "jsonl":  # the rest of a cut line is no record
        with to.open("rb+") as cut:
            whole_lines = cut.read().rfind(b"\n") + 1
            cut.truncate(whole_lines)
    kept = to.stat().st_size
    return replace(file, path=str(to), compression="", size=kept), max(1, round(packed * kept / max(1, size)))
