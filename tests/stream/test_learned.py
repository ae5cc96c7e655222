"""Which tokens of a mix are learned, against a plain model: in these shards an id says of which kind it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from mixing import request
from support import EOD, make_shards, needs

import pretok.stream
from pretok.audit.verify_job import run_verify
from pretok.base.console import Silent
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.execute import Engine
from pretok.base.kinds import CHAT_KINDS, LEARNED
from pretok.cli import run_command
from pretok.shards.manifest import load_manifest
from pretok.stream import View, digest, same_until
from pretok.stream.loader import Fetch, PositionSampler
from pretok.stream.materialize import run_materialize
from pretok.stream.mix_file import load_mix
from pretok.stream.mix_job import plan_mix, run_mix

CHATS = {"chat": 0, "talk": CHAT_KINDS.index("answer")}
"""Sources of conversations, and of which kind their EOD is: of the template, or the end marker of answers."""
Learn = Mapping[str, Sequence[str]]


def expected(view: View, position: int, learn: Learn) -> list[bool]:
    """Token by token."""
    name = view.origin(position)[0]
    source = next(entry.held_in for entry in view.mix.sources if entry.name == name)
    tokens, found = view[position].tolist(), []
    for before, token in pairwise(tokens):
        if source in CHATS:
            kind = CHAT_KINDS[CHATS[source] if token == EOD else (token - 1) % 7]
            learned = kind in learn.get(source, LEARNED)
        else:
            learned = True
        found.append(learned and not before == token == EOD)
    return found


def check(view: View, learn: Learn) -> np.ndarray:
    """Every mask of a view, however it is asked for."""
    masks = np.array([expected(view, position, learn) for position in range(len(view))])
    order = np.random.default_rng(0).permutation(len(view))
    tokens, found = view.batch(order, np.int32, loss=True)
    np.testing.assert_array_equal(found, masks[order])
    np.testing.assert_array_equal(tokens, view.batch(order))
    assert [view.loss(position).tolist() for position in range(len(view))] == masks.tolist()
    for world in (1, 3):
        for rank in range(world):
            sampler = PositionSampler(len(view), global_batch=6, micro_batch=2, rank=rank, world_size=world)
            for positions in sampler:
                ids, learned, checksum = Fetch(view, digests=True).__getitems__(positions)  # type: ignore[misc]
                held = masks[positions] if view.masked else None
                assert checksum == digest(positions, ids, held)
                np.testing.assert_array_equal(
                    masks[positions] if learned is None else learned, masks[positions]
                )
                assert (learned is None) != view.masked
    return masks


def of_lengths(lengths: Sequence[int], seed: int) -> list[list[int]]:
    """Documents of tokens of random kinds, mostly several in a row."""
    rng = np.random.default_rng(seed)
    return [
        (1 + np.repeat(rng.integers(0, 7, size), 3)[:size] + 7 * rng.integers(0, 99, size)).tolist()
        for size in lengths
    ]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = np.random.default_rng(0).integers(1, 60, 90).tolist()
    texts = {name: of_lengths(sizes, number) for number, name in enumerate(("chat", "it", "talk"))}
    val = {name: of_lengths(sizes[:20], 5) for name in texts}
    return make_shards(tmp_path_factory.mktemp("shards"), texts, val=val, chats=CHATS, documents_per_shard=20)


@pytest.mark.parametrize("pack", ["none", "best-fit"])
def test_a_materialized_mix_has_the_same_masks(shards: Path, tmp_path: Path, here: Engine, pack: str) -> None:
    wish = request("9000:it=0.3,chat=0.4,talk=0.3", seq_len=31, pack=pack, max_epochs=99)
    learn = {"chat": ["user"], "talk": ["answer"]}
    run_mix(shards, tmp_path / "mix.json", replace(wish, learn=learn))
    view = pretok.stream.open(shards, tmp_path / "mix.json")
    run_materialize(shards, tmp_path / "mix.json", tmp_path / "out", here, Silent(), shard_bytes=3000)
    masks = check(pretok.stream.open(tmp_path / "out"), learn)
    np.testing.assert_array_equal(masks, check(view, learn))
    assert 0 < masks.sum() < masks.size
    assert not [told for told in run_verify(tmp_path / "out", 0, here, Silent())[1] if "spans" in told]


def test_another_learn_is_another_stream(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only in its masks: a mix that goes on keeps what it learns."""
    wish = request("1000:it=1", "3000:chat=1", seq_len=31)
    for name, kinds in (("a", ["answer"]), ("b", ["answer", "user"])):
        run_mix(shards, tmp_path / f"{name}.json", replace(wish, learn={"chat": kinds}))
    a, b = (pretok.stream.open(shards, tmp_path / f"{name}.json") for name in "ab")
    np.testing.assert_array_equal(a[:], b[:])
    assert (a.batch(range(len(a)), loss=True)[1] != b.batch(range(len(a)), loss=True)[1]).any()
    assert same_until(a.mix, b.mix) == 1000 // 31
    with pytest.raises(MismatchError, match=r"\(learned: answer\)"):
        run_mix(shards, tmp_path / "a.json", replace(wish, learn={"chat": ["user"]}))
    command = [
        "mix",
        str(shards),
        "--continue",
        str(tmp_path / "a.json"),
        "--at",
        "40",
        "--weights",
        "chat=1",
    ]
    command += ["--tokens", "2000", "--out", str(tmp_path / "c.json")]
    assert run_command(command) == 0  # it keeps what it learns, whatever the default is
    assert load_mix(tmp_path / "c.json").sources[0].learn == ("answer",)


def test_what_nobody_can_learn_is_refused(shards: Path, tmp_path: Path) -> None:
    wish, manifest = request("1000:it=1", seq_len=31), load_manifest(shards)
    for learn, told in (
        ({"it": ["answer"]}, "all of a plain text is learned"),
        ({"none": ["answer"]}, "which is not a source"),
        ({"chat": ["text"]}, "'text' is not one of template"),
        ({"chat": []}, "is empty for chat"),
    ):
        with pytest.raises(UsageError, match=told):
            plan_mix(manifest, replace(wish, learn=learn))
    with pytest.raises(UsageError, match="stands in the mix"):
        pretok.stream.open(shards, tmp_path / "mix.json", learn={"chat": ["answer"]})


def test_a_stream_without_a_mix_learns_what_is_asked_for(shards: Path) -> None:
    for learn in ({}, {"chat": ["user", "system"]}):
        check(pretok.stream.open(shards, seq_len=31, learn=learn), learn)
        check(pretok.stream.open(shards, seq_len=31, split="val", source="chat", learn=learn), learn)
    assert not pretok.stream.open(shards, seq_len=31, source="it").masked


@pytest.mark.parametrize(
    ("place", "byte"),
    [(0, 1), (16, 1), (32, 255), (39, 127), (-1, 99)],
    ids=["magic", "tokens", "end", "end+", "kind"],
)
def test_damaged_spans_are_named(tmp_path: Path, place: int, byte: int) -> None:
    shards = make_shards(tmp_path, {"chat": of_lengths([40], 1)}, chats=CHATS)
    path = load_manifest(shards).of("chat")[0].spans_path
    data = bytearray(path.read_bytes())
    data[place] ^= byte
    path.write_bytes(data)
    view = pretok.stream.open(shards, seq_len=40)
    with pytest.raises(IntegrityError, match=path.name):
        view.loss(0)


@pytest.mark.parametrize("workers", [0, 1])
def test_labels_of_other_trainers_are_masked(shards: Path, workers: int) -> None:
    """Also where a process reads, out of which masks come in bits."""
    needs("torch")
    from pretok.integrations.pytorch import IGNORE, Loader

    view = pretok.stream.open(shards, seq_len=31, learn={"chat": ["user"]})
    masks = view.batch(range(len(view)), loss=True)[1]
    for number, batch in enumerate(Loader(view, 4, workers=workers)):
        learned = batch["labels"].numpy() != IGNORE
        np.testing.assert_array_equal(learned, masks[4 * number : 4 * number + 4])
    assert number == len(view) // 4 - 1
