"""Hash trees: what seals a file so that a part of it is checked, proven or changed without the rest.

Input: the bytes of a file. Output: its root, and its nodes in a file beside it. The tree is the Merkle tree of
RFC 9162, section 2.1, with SHA-256:

    leaf   SHA-256(0x00 || 4,096 bytes of the file); the last leaf may have fewer
    inner  SHA-256(0x01 || left || right); of n leaves the left part has the largest power of two below n
    root   the one over all leaves, as 64 hexadecimal digits; of an empty file SHA-256 of nothing
    entry  SHA-256(0x02 || what is said of a file): the leaves of a tree over files
    nodes  NAME.nodes: 32 bytes for each MiB (2^20 bytes) of the file, the hash over its 256 leaves, and the last over
           those that are left

A MiB begins at a multiple of 256 leaves, so its hash stands in the tree: the root follows from the nodes alone. They
need no checksum, as the root is theirs.
The standard library only.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from pathlib import Path

from pretok.base.errors import IntegrityError
from pretok.base.storage import NewFile, damaged, reading, write_bytes

LEAF = 4096
"""Bytes of the file in a leaf."""
NODE = 1 << 20
"""Bytes of the file below a node."""
HASH = 32
"""Bytes of a hash."""
NODES_SUFFIX = ".nodes"
_LEAF, _INNER = sha256(b"\x00"), b"\x01"
_LEAVES = NODE // LEAF
_READ = 4 * NODE


class Tree:
    """Takes the bytes of a file, one piece after the other, as `hashlib` does; keeps the nodes and less than a MiB."""

    def __init__(self) -> None:
        self.size = 0
        self._rest = b""  # less than a leaf
        self._leaves: list[bytes] = []  # fewer than a node has
        self._nodes: list[bytes] = []

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes."""
        view = memoryview(data).cast("B")
        self.size += len(view)
        if self._rest:
            missing = LEAF - len(self._rest)
            self._rest += view[:missing]
            view = view[missing:]
            if len(self._rest) == LEAF:
                self._add([leaf_hash(self._rest)])
                self._rest = b""
        whole = len(view) - len(view) % LEAF
        for at in range(0, whole, NODE):
            self._add(_leaf_hashes(view[at : min(at + NODE, whole)]))
        self._rest += view[whole:]

    def _add(self, leaves: list[bytes]) -> None:
        self._leaves += leaves
        if len(self._leaves) >= _LEAVES:
            self._nodes.append(fold(self._leaves[:_LEAVES]))
            del self._leaves[:_LEAVES]

    @property
    def nodes(self) -> list[bytes]:
        """Of what was added so far."""
        last = self._leaves + ([leaf_hash(self._rest)] if self._rest else [])
        return self._nodes + ([fold(last)] if last else [])

    def hexdigest(self) -> str:
        """The root of what was added so far."""
        return fold(self.nodes).hex()


class TreeFile(NewFile):
    """A `NewFile` that is summed up in a tree instead of a checksum."""

    @cached_property
    def _digest(self) -> Tree:
        return Tree()

    @property
    def root(self) -> str:
        """Of all that was written."""
        return self._digest.hexdigest()

    @property
    def nodes(self) -> list[bytes]:
        """Of all that was written."""
        return self._digest.nodes


def write_rooted(path: Path, data: bytes) -> str:
    """Write a whole file atomically; its root."""
    with TreeFile(path) as file:
        file.write(data)
        file.seal()
    return file.root


def entry_hash(data: bytes) -> bytes:
    """That of what is said of a file, as a leaf of the tree over many files."""
    return sha256(b"\x02" + data).digest()


def leaf_hash(data: bytes | memoryview) -> bytes:
    """That of one leaf."""
    found = _LEAF.copy()  # a tenth faster than to put the domain in front
    found.update(data)
    return found.digest()


def inner_hash(left: bytes, right: bytes) -> bytes:
    """That over two parts."""
    return sha256(_INNER + left + right).digest()


def fold(hashes: Sequence[bytes]) -> bytes:
    """The hash over parts that have the same power of two of leaves each, of which the last may have fewer."""
    if not hashes:
        return sha256().digest()
    level = list(hashes)
    while len(level) > 1:
        # What is left over goes up as it is: so the left part of each has a power of two.
        odd = level[-1:] if len(level) % 2 else []
        level = [inner_hash(*pair) for pair in zip(level[::2], level[1::2], strict=False)] + odd
    return level[0]


def _leaf_hashes(data: memoryview) -> list[bytes]:
    return [leaf_hash(data[at : at + LEAF]) for at in range(0, len(data), LEAF)]


def node_hash(data: bytes | bytearray) -> bytes:
    """The hash over the leaves of a MiB."""
    return fold(_leaf_hashes(memoryview(data)))


def root_of(path: Path) -> str:
    """The root of a file, which is read."""
    tree = Tree()
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ):
            tree.update(data)
    return tree.hexdigest()


def root_of_bytes(data: bytes) -> str:
    """The root of a file that holds `data`."""
    tree = Tree()
    tree.update(data)
    return tree.hexdigest()


def compare_root(path: Path, sealed: str) -> None:
    """Raises IntegrityError where a file is missing or has another root than it was sealed with."""
    with reading(path):
        found = root_of(path)
    if found != sealed:
        raise damaged(path)


def nodes_path(path: Path) -> Path:
    """Where the nodes of a file are."""
    return path.with_suffix(NODES_SUFFIX)


def write_nodes(path: Path, nodes: Sequence[bytes]) -> None:
    """Put the nodes of the file `path` beside it, atomically."""
    write_bytes(nodes_path(path), b"".join(nodes))


def prove_nodes(path: Path, size: int, root: str) -> list[bytes]:
    """The nodes of the file `path` of `size` bytes, which is not read. IntegrityError where they are missing or of a
    file of another size, or `root` does not follow from them."""
    beside = nodes_path(path)
    with reading(beside):
        data = beside.read_bytes()
    if len(data) != HASH * -(-size // NODE):
        raise IntegrityError(
            f"{beside} has {len(data)} bytes, a file of {size} bytes has {-(-size // NODE)} nodes of {HASH}"
        )
    nodes = [data[at : at + HASH] for at in range(0, len(data), HASH)]
    if fold(nodes).hex() != root:
        raise damaged(beside)
    return nodes


def differing(path: Path, nodes: Sequence[bytes]) -> Iterator[int]:
    """The numbers of the MiBs of a file that have another hash than their node; the file is read."""
    with path.open("rb", buffering=0) as file:
        for number, node in enumerate(nodes):
            if node_hash(file.read(NODE)) != node:
                yield number


def prove(wanted: Sequence[int], leaves: int, hash_of: Callable[[int, int], bytes]) -> list[bytes]:
    """What leads from the leaves `wanted` (rising) of so many to the root: the hashes of the largest parts that hold
    none of them, in the order of the file. hash_of: the hash over the leaves `first` to `end - 1`, which are a part of
    the tree."""
    found: list[bytes] = []

    def walk(first: int, end: int) -> None:
        if bisect_left(wanted, first) == bisect_left(wanted, end):
            found.append(hash_of(first, end))
        elif end - first > 1:
            middle = first + _left(end - first)
            walk(first, middle)
            walk(middle, end)

    if leaves:
        walk(0, leaves)
    return found


def proven_root(wanted: Mapping[int, bytes], leaves: int, hashes: Iterator[bytes]) -> bytes:
    """The root of so many leaves, from the hashes of some, by their numbers, and from what `prove` gave, of which as
    much as it needs is taken. StopIteration where that is too little."""
    numbers = sorted(wanted)

    def over(first: int, end: int) -> bytes:
        if bisect_left(numbers, first) == bisect_left(numbers, end):
            return next(hashes)
        if end - first == 1:
            return wanted[first]
        middle = first + _left(end - first)
        return inner_hash(over(first, middle), over(middle, end))

    return over(0, leaves) if leaves else fold([])


def _left(leaves: int) -> int:
    """Leaves of the left part: the largest power of two below their number."""
    return 1 << (leaves - 1).bit_length() - 1


def prove_file(
    path: Path, nodes: Sequence[bytes], size: int, wanted: Sequence[int]
) -> tuple[bytes, list[bytes]]:
    """(the leaves `wanted` (rising) of a file one after the other, what leads from them to its root). Reads the MiBs in
    which they lie. IntegrityError where one is not what its node says."""
    held: dict[int, list[bytes]] = {}  # hashes of the leaves of a MiB
    data: list[bytes] = []
    with reading(path), path.open("rb", buffering=0) as file:
        for number, group in groupby(wanted, lambda leaf: leaf // _LEAVES):
            block = os.pread(file.fileno(), NODE, number * NODE)
            held[number] = _leaf_hashes(memoryview(block))
            if fold(held[number]) != nodes[number]:
                raise damaged(path)
            data += [block[at % _LEAVES * LEAF :][:LEAF] for at in group]

    def hash_of(first: int, end: int) -> bytes:
        if end - first >= _LEAVES or first // _LEAVES not in held:
            return fold(nodes[first // _LEAVES : -(-end // _LEAVES)])
        return fold(held[first // _LEAVES][first % _LEAVES :][: end - first])

    return b"".join(data), prove(wanted, -(-size // LEAF), hash_of)
