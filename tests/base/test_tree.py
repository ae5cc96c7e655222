"""Hash trees: those of RFC 9162, however the bytes come; nodes prove the root; a change hashes what it touches."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretok.base.errors import IntegrityError
from pretok.base.tree import (
    HASH,
    LEAF,
    NODE,
    Tree,
    TreeFile,
    compare_root,
    differing,
    leaf_hash,
    nodes_path,
    prove_file,
    prove_nodes,
    proven_root,
    root_of,
    write_nodes,
)


def by_rfc(data: bytes) -> bytes:
    """MTH of RFC 9162, 2.1.1, of leaves of 4 KiB."""
    leaves = -(-len(data) // LEAF)
    if leaves <= 1:
        return sha256(b"\x00" + data if data else b"").digest()
    # Bytes of the largest power of two of leaves below their number.
    k = LEAF << (leaves - 1).bit_length() - 1
    return sha256(b"\x01" + by_rfc(data[:k]) + by_rfc(data[k:])).digest()


def sample(size: int) -> bytes:
    """Bytes of which no two leaves are equal."""
    return b"".join(number.to_bytes(8, "big") for number in range(-(-size // 8)))[:size]


SIZES = [0, 1, LEAF - 1, LEAF, LEAF + 1, 3 * LEAF, NODE - 1, NODE, NODE + 1, 5 * NODE - 7, 6 * NODE + LEAF]


@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_tree_of_the_rfc_and_follows_from_its_nodes(tmp_path: Path, size: int) -> None:
    data, path = sample(size), tmp_path / "a.bin"
    with TreeFile(path) as file:
        for part in (data[:5000], data[5000 : NODE + 7], data[NODE + 7 :]):
            file.write(part)
            assert file.root  # asking changes nothing
        file.seal()
    assert file.root == root_of(path) == by_rfc(data).hex()
    write_nodes(path, file.nodes)
    assert prove_nodes(path, size, file.root) == [by_rfc(data[at : at + NODE]) for at in range(0, size, NODE)]


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_one_proof_leads_from_leaves_to_the_root_before_and_after_they_change(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """With the hashes of other leaves it gives another root: a proof shows that nothing but some leaves has changed."""
    size = data.draw(st.sampled_from(SIZES[1:]))
    path, before, leaves = tmp_path_factory.mktemp("prove") / "a.bin", sample(size), -(-size // LEAF)
    wanted = sorted(data.draw(st.sets(st.integers(0, leaves - 1), max_size=5)))
    now = bytearray(before)
    for at in wanted:
        now[at * LEAF : (at + 1) * LEAF] = b"\xff" * len(now[at * LEAF : (at + 1) * LEAF])
    path.write_bytes(now)
    shown, proof = prove_file(path, Tree(now).nodes, size, wanted)
    assert shown == b"".join(now[at * LEAF : (at + 1) * LEAF] for at in wanted)
    for content in (before, bytes(now)):
        held = {at: leaf_hash(content[at * LEAF : (at + 1) * LEAF]) for at in wanted}
        rest = iter(proof)
        assert proven_root(held, leaves, rest) == by_rfc(content)
        assert list(rest) == []
        if wanted:
            assert proven_root(held | {wanted[0]: bytes(HASH)}, leaves, iter(proof)) != by_rfc(content)


def test_damage_is_named(tmp_path: Path) -> None:
    path, content = tmp_path / "a.bin", bytearray(sample(4 * NODE + 9))
    path.write_bytes(content)
    tree = Tree(content)
    write_nodes(path, tree.nodes)
    compare_root(path, tree.hexdigest())
    for at in (4 * NODE + 3, 2 * NODE):
        content[at] ^= 1
    path.write_bytes(content)
    assert list(differing(path, tree.nodes)) == [2, 4]
    with pytest.raises(IntegrityError, match=r"a\.bin is damaged"):
        compare_root(path, tree.hexdigest())
    nodes_path(path).write_bytes(b"".join(tree.nodes)[:-1])
    with pytest.raises(IntegrityError, match=r"a\.nodes has 159 bytes, a file of 4194313 bytes has 5 nodes"):
        prove_nodes(path, len(content), tree.hexdigest())
    nodes_path(path).write_bytes(b"".join([*tree.nodes[:-1], bytes(HASH)]))
    with pytest.raises(IntegrityError, match=r"a\.nodes is damaged"):
        prove_nodes(path, len(content), tree.hexdigest())
