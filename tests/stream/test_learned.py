"""Which tokens are learned, however the mask is asked for; in these shards an id says of which kind it is. The masks
of mixes are in test_model.py."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mixing import request
from support import make_shards, needs

import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.cli import run_command
from pretok.shards.manifest import load_manifest
from pretok.stream import digest, same_until
from pretok.stream.loader import Fetch
from pretok.stream.mix_file import load_mix
from pretok.stream.mix_job import plan_mix, run_mix
from pretok.tokenizer.kinds import CHAT_KINDS

CHATS = {"chat": 0, "talk": CHAT_KINDS.index("answer")}
"""Sources of conversations, and of which kind their EOD is: of the template, or the end marker of answers."""


def of_lengths(lengths: Sequence[int], seed: int) -> list[list[int]]:
    """Documents of tokens of random kinds, mostly several in a row."""
    rng = np.random.default_rng(seed)
    kinds = [np.repeat(rng.integers(0, 7, size), 3)[:size] for size in lengths]
    return [(1 + kind + 7 * rng.integers(0, 99, len(kind))).tolist() for kind in kinds]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = np.random.default_rng(0).integers(1, 60, 90).tolist()
    texts = {name: of_lengths(sizes, number) for number, name in enumerate(("chat", "it", "talk"))}
    val = {name: of_lengths(sizes[:20], 5) for name in texts}
    return make_shards(tmp_path_factory.mktemp("shards"), texts, val=val, chats=CHATS, documents_per_shard=20)


@pytest.mark.parametrize("learn", [{}, {"chat": ["user", "system"]}])
@pytest.mark.parametrize("where", [{}, {"split": "val", "source": "chat"}])
def test_a_mask_is_the_same_however_it_is_asked_for(
    shards: Path, learn: dict[str, list[str]], where: dict[str, str]
) -> None:
    """By position, in batches of any order, by the loader of `train`, and as labels out of another process."""
    needs("torch")
    from pretok.base.tokens import IGNORE
    from pretok.integrations.pytorch import Loader

    view = pretok.stream.open(shards, seq_len=31, learn=learn, **where)
    masks = view.batch(range(len(view)), loss=True)[1]
    assert 0 < masks.sum() < masks.size
    np.testing.assert_array_equal([view.loss(position) for position in range(len(view))], masks)
    order = np.random.default_rng(0).permutation(len(view))
    tokens, found = view.batch(order, np.int32, loss=True)
    np.testing.assert_array_equal(found, masks[order])
    np.testing.assert_array_equal(tokens, view.batch(order))
    ids, learned, checksum = Fetch(view, digests=True).__getitems__(order)  # type: ignore[misc]
    np.testing.assert_array_equal(learned, masks[order])
    assert checksum == digest(order, ids, masks[order])
    for number, batch in enumerate(Loader(view, 4, workers=1)):
        found = batch["labels"].numpy() != IGNORE
        np.testing.assert_array_equal(found, masks[4 * number : 4 * number + 4])
    assert number == len(view) // 4 - 1


def test_a_view_is_sent_without_the_records_of_its_shards(shards: Path) -> None:
    """A process that reads needs of each only its path and size: 100,000 records took it 22 MB and a second."""
    view = pretok.stream.open(shards, seq_len=31)
    assert view.masked
    sent = pickle.dumps(view)
    assert b"ShardPaths" in sent
    assert b"pretok.shards" not in sent
    np.testing.assert_array_equal(pickle.loads(sent).loss(3), view.loss(3))
    masks = [view.loss(position) for position in range(12)]
    again = pickle.dumps(view)
    assert len(again) < len(sent) + 16  # nor what it has located ahead of where it reads
    np.testing.assert_array_equal([pickle.loads(again).loss(position) for position in range(12)], masks)


def test_another_learn_is_another_stream(shards: Path, tmp_path: Path) -> None:
    """Only in its masks; a mix that goes on keeps what it learns."""
    wish = request("1000:it=1", "3000:chat=1", seq_len=31)
    for name, kinds in (("a", ["answer"]), ("b", ["answer", "user"])):
        run_mix(shards, tmp_path / f"{name}.json", replace(wish, learn={"chat": kinds}))
    a, b = (pretok.stream.open(shards, tmp_path / f"{name}.json") for name in "ab")
    np.testing.assert_array_equal(a[:], b[:])
    assert (a.batch(range(len(a)), loss=True)[1] != b.batch(range(len(a)), loss=True)[1]).any()
    assert same_until(a.mix, b.mix) == 1000 // 31
    with pytest.raises(MismatchError, match="other sources"):
        run_mix(shards, tmp_path / "a.json", replace(wish, learn={"chat": ["user"]}))
    line = f"mix {shards} --continue {tmp_path}/a.json --at 40 --weights chat=1 --tokens 2000"
    assert run_command([*line.split(), "--out", str(tmp_path / "c.json")]) == 0
    assert load_mix(tmp_path / "c.json").sources[0].learn == ("answer",)


def test_what_nobody_can_learn_is_refused(shards: Path) -> None:
    wish, manifest = request("1000:it=1", seq_len=31), load_manifest(shards)
    for learn, message in (
        ({"it": ["answer"]}, "all of a plain text is learned"),
        ({"none": ["answer"]}, "which is not a source"),
        ({"chat": ["text"]}, "'text' is not one of template"),
        ({"chat": []}, "chat: .. is not one of"),
    ):
        with pytest.raises(UsageError, match=message):
            plan_mix(manifest, replace(wish, learn=learn))


def test_few_files_of_spans_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file counts as an open one."""
    shards = make_shards(tmp_path, {"chat": of_lengths([40] * 40, 1)}, chats=CHATS, documents_per_shard=1)
    monkeypatch.setattr("resource.getrlimit", lambda _: (40, 40))
    view = pretok.stream.open(shards, seq_len=40)
    view.batch(range(len(view)), loss=True)
    assert view.learned is not None
    assert len(view.learned._files) == 10


def test_spans_of_another_shard_are_refused_each_time(tmp_path: Path) -> None:
    shards = make_shards(tmp_path, {"chat": of_lengths([40, 50], 1)}, chats=CHATS, documents_per_shard=1)
    one, other = (shard.spans_path for shard in load_manifest(shards).of("chat"))
    shutil.copyfile(other, one)
    view = pretok.stream.open(shards, seq_len=90)
    for _ in range(2):
        with pytest.raises(IntegrityError, match=one.name):
            view.loss(0)


@pytest.mark.parametrize(("place", "byte"), [(0, 1), (16, 1), (32, 255), (39, 127), (-1, 99)])
def test_damaged_spans_are_named(tmp_path: Path, place: int, byte: int) -> None:
    """In the magic, the number of tokens, an end and its high byte, a kind."""
    shards = make_shards(tmp_path, {"chat": of_lengths([40], 1)}, chats=CHATS)
    path = load_manifest(shards).of("chat")[0].spans_path
    data = bytearray(path.read_bytes())
    data[place] ^= byte
    path.write_bytes(data)
    view = pretok.stream.open(shards, seq_len=40)
    with pytest.raises(IntegrityError, match=path.name):
        view.loss(0)
