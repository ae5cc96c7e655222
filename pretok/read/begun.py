"""The pieces of a partition -> each with its batches, begun before its turn where it is on a server.

Enters: pieces, and what reads one. Leaves: the same in their order. While one is read, the next ones are opened and
read up to their first batch, so that their requests wait beside its encoding: small files several at once, of large
ones the next. Local files are read when their turn comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice

from pretok.read.batches import TextBatch
from pretok.read.files import READ_SIZE
from pretok.read.partition import Piece
from pretok.read.paths import is_remote
from pretok.read.servers import REQUESTS

PIECES = 8
"""Pieces begun before their turn at most."""
ROOM = REQUESTS * READ_SIZE
"""Bytes of a worker's memory for what they ask for; the batches made of that come to it."""

Batches = Iterator[TextBatch]


def begun(
    pieces: Sequence[Piece], read: Callable[[int, Piece], Batches], pool: Executor
) -> Iterator[tuple[int, Piece, Batches]]:
    """Number, piece and batches of each. What reading raises is raised by the batches."""
    waiting: deque[tuple[Batches, int]] = deque()
    for index, piece in enumerate(pieces):
        if not waiting:
            waiting.append((_begin(index, piece, read, pool), 0))
        batches, _ = waiting.popleft()
        held = sum(size for _, size in waiting)
        for ahead in range(index + 1 + len(waiting), min(index + 1 + PIECES, len(pieces))):
            held += (size := _held(pieces[ahead]))
            if held > ROOM or not is_remote(pieces[ahead].file.path):
                break
            waiting.append((_begin(ahead, pieces[ahead], read, pool), size))
        yield index, piece, batches


def _held(piece: Piece) -> int:
    """Bytes that are asked for before the first batch is used, at most."""
    return min(ROOM, piece.file.size)


def _begin(index: int, piece: Piece, read: Callable[[int, Piece], Batches], pool: Executor) -> Batches:
    """The batches of a piece, which the pool reads to the first one."""
    batches = read(index, piece)
    if not is_remote(piece.file.path):
        return batches
    first: list[TextBatch] = []
    done = pool.submit(lambda: first.extend(islice(batches, 1)))

    def rest() -> Batches:
        done.result()
        while first:
            yield first.pop()  # nothing here holds it while its consumer works on it
        yield from batches

    return rest()
