"""Hash trees: they seal a file so that a part of it can be checked, proven or changed without the rest.

Input: the bytes of a file. Output: its root, and its nodes in a file next to it. The tree is the Merkle tree of
RFC 9162, section 2.1, with SHA-256:

    leaf   SHA-256(0x00 || 4,096 bytes of the file); the last leaf may be shorter
    inner  SHA-256(0x01 || left || right); of n leaves the left part has the largest power of two below n
    root   the hash over all leaves, as 64 hexadecimal digits; of an empty file SHA-256 of nothing
    entry  SHA-256(0x02 || a description of a file): the leaves of a tree over files
    nodes  NAME.nodes: 32 bytes for each MiB (2^20 bytes) of the file, the hash over its 256 leaves; the last is the
           hash over those that remain

A MiB begins at a multiple of 256 leaves, so its hash is a node of the tree: the root follows from the nodes alone. They
need no checksum of their own, as the root checks them.
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
from pretok.base.storage import NewFile, compare_checksum, damaged, hash_file, reading, write_bytes

LEAF = 4096
"""Bytes of the file in a leaf."""
NODE = 1 << 20
"""Bytes of the file below a node."""
HASH = 32
"""Bytes of a hash."""
NODES_SUFFIX = ".nodes"
_LEAF, _INNER = sha256(b"\x00"), b"\x01"
_LEAVES = NODE // LEAF


class Tree:
    """The tree of bytes that come piece by piece, as with `hashlib`; keeps the nodes and less than a MiB."""

    def __init__(self, data: bytes = b"") -> None:
        self._rest = bytearray()
        self._nodes: list[bytes] = []
        self.update(data)

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes."""
        self._rest += memoryview(data).cast("B")
        while len(self._rest) >= NODE:
            self._nodes.append(node_hash(self._rest[:NODE]))
            del self._rest[:NODE]

    @property
    def nodes(self) -> list[bytes]:
        """The nodes of all bytes so far."""
        return self._nodes + ([node_hash(self._rest)] if self._rest else [])

    def hexdigest(self) -> str:
        """Return the root of all bytes so far."""
        return fold(self.nodes).hex()


class TreeFile(NewFile):
    """A `NewFile` with a tree instead of a checksum."""

    @cached_property
    def _digest(self) -> Tree:
        return Tree()

    @property
    def root(self) -> str:
        """The root of all that was written."""
        return self._digest.hexdigest()

    @property
    def nodes(self) -> list[bytes]:
        """The nodes of all that was written."""
        return self._digest.nodes


def write_rooted(path: Path, data: bytes) -> str:
    """Write a whole file atomically; return its root."""
    with TreeFile(path) as file:
        file.write(data)
        file.seal()
    return file.root


def entry_hash(data: bytes) -> bytes:
    """Return the leaf, in the tree over many files, of the description of one."""
    return sha256(b"\x02" + data).digest()


def leaf_hash(data: bytes | bytearray | memoryview) -> bytes:
    """Return the hash of one leaf."""
    leaf = _LEAF.copy()  # a tenth faster than to put the prefix in front
    leaf.update(data)
    return leaf.digest()


def inner_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash over two parts."""
    return sha256(_INNER + left + right).digest()


def fold(hashes: Sequence[bytes]) -> bytes:
    """Return the hash over parts, each of the same power of two of leaves; the last part may have fewer."""
    if not hashes:
        return sha256().digest()
    level = list(hashes)
    while len(level) > 1:
        # An odd one out moves up unchanged, so that every left part has a power of two.
        odd = level[-1:] if len(level) % 2 else []
        level = [inner_hash(*pair) for pair in zip(level[::2], level[1::2], strict=False)] + odd
    return level[0]


def _leaf_hashes(data: bytes | bytearray) -> list[bytes]:
    view = memoryview(data)
    return [leaf_hash(view[at : at + LEAF]) for at in range(0, len(view), LEAF)]


def node_hash(data: bytes | bytearray) -> bytes:
    """Return the hash over the leaves of a MiB."""
    return fold(_leaf_hashes(data))


def root_of(path: Path) -> str:
    """Return the root of a file, all of which is read."""
    return hash_file(path, Tree())


def compare_root(path: Path, sealed: str) -> None:
    """Raise IntegrityError if a file is missing or does not have the root that it was sealed with."""
    compare_checksum(path, sealed, root_of)


def nodes_path(path: Path) -> Path:
    """Return the path of the nodes of a file."""
    return path.with_suffix(NODES_SUFFIX)


def write_nodes(path: Path, nodes: Sequence[bytes]) -> None:
    """Write the nodes of the file `path` next to it, atomically."""
    write_bytes(nodes_path(path), b"".join(nodes))


def prove_nodes(path: Path, size: int, root: str) -> list[bytes]:
    """Return the nodes of the file `path` of `size` bytes, which is not read.

    Raises IntegrityError if they are missing, belong to a file of another size, or do not give `root`.
    """
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
    """Yield the numbers of those MiBs of a file whose hash is not their node. Reads the whole file."""
    with path.open("rb", buffering=0) as file:
        for number, node in enumerate(nodes):
            if node_hash(file.read(NODE)) != node:
                yield number


def prove(wanted: Sequence[int], leaves: int, hash_of: Callable[[int, int], bytes]) -> list[bytes]:
    """Return the proof that leads from some leaves to the root.

    It is the hashes of the largest parts of the tree that have none of these leaves, in the order of the file.

    wanted: numbers of the leaves, rising; leaves: how many the tree has; hash_of: gives the hash over a part of the
    tree, the leaves `first` to `end - 1`.
    """
    proof: list[bytes] = []

    def add(first: int, end: int) -> bytes:
        proof.append(hash_of(first, end))
        return b""

    # The walk of `proven_root`, so the hashes come in the order in which it takes them. What is computed here
    # from empty leaves is dropped.
    _hash_over(0, leaves, wanted, add, lambda _: b"")
    return proof


def proven_root(wanted: Mapping[int, bytes], leaves: int, hashes: Iterator[bytes]) -> bytes:
    """Return the root of a tree of `leaves` leaves, from the hashes of some, by their numbers, and a proof.

    Takes from `hashes` as many as it needs; StopIteration if there are too few.
    """
    return _hash_over(0, leaves, sorted(wanted), lambda *_: next(hashes), wanted.__getitem__)


def _hash_over(
    first: int,
    end: int,
    wanted: Sequence[int],
    part: Callable[[int, int], bytes],
    leaf: Callable[[int], bytes],
) -> bytes:
    """Return the hash over leaves `first` to `end - 1`, from `wanted` leaves and the largest subtrees without one."""
    if not end:
        return fold([])
    # None of the wanted leaves is in here: the whole part is one hash.
    if bisect_left(wanted, first) == bisect_left(wanted, end):
        return part(first, end)
    if end - first == 1:
        return leaf(first)
    middle = first + (1 << (end - first - 1).bit_length() - 1)  # the largest power of two below their number
    left = _hash_over(first, middle, wanted, part, leaf)
    return inner_hash(left, _hash_over(middle, end, wanted, part, leaf))


def prove_file(
    path: Path, nodes: Sequence[bytes], size: int, wanted: Sequence[int]
) -> tuple[bytes, list[bytes]]:
    """Return (the bytes of the leaves `wanted` of a file, joined; their proof). wanted: rising.

    Reads the MiBs that hold these leaves. Raises IntegrityError if the hash of one is not its node.
    """
    leaf_hashes: dict[int, list[bytes]] = {}
    """Of the MiBs that are read."""
    data: list[bytes] = []
    with reading(path), path.open("rb", buffering=0) as file:
        for number, group in groupby(wanted, lambda leaf: leaf // _LEAVES):
            block = os.pread(file.fileno(), NODE, number * NODE)
            leaf_hashes[number] = _leaf_hashes(block)
            if fold(leaf_hashes[number]) != nodes[number]:
                raise damaged(path)
            data += [block[at % _LEAVES * LEAF :][:LEAF] for at in group]

    def hash_of(first: int, end: int) -> bytes:
        # Parts halve at powers of two. So one of a MiB or more begins with a MiB, and its hash follows from
        # nodes. A smaller one lies in one MiB; if that was not read, it has no wanted leaf and the part is
        # all of it.
        if end - first >= _LEAVES or first // _LEAVES not in leaf_hashes:
            return fold(nodes[first // _LEAVES : -(-end // _LEAVES)])
        return fold(leaf_hashes[first // _LEAVES][first % _LEAVES :][: end - first])

    return b"".join(data), prove(wanted, -(-size // LEAF), hash_of)
