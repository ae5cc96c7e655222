"""Packed sequences hold whole documents, each once an epoch, wherever they are computed and however they are read."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixing import best_fit, request, stretches
from support import EOD, make_shards

import pretok.stream
from pretok.base.console import Silent
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.base.storage import fingerprint, read_json, write_json
from pretok.cli import run_command
from pretok.config import make_mix
from pretok.export.text import mix_notices
from pretok.shards.manifest import load_manifest
from pretok.stream import View
from pretok.stream.continued import beginning, same_until
from pretok.stream.loader import PositionSampler, identity_of
from pretok.stream.materialize import run_materialize
from pretok.stream.members import DocumentStarts
from pretok.stream.mix_file import load_mix, mix_json, parse_mix
from pretok.stream.mix_job import MixRequest, plan_mix, run_mix
from pretok.stream.pack import pack, pack_window, write_packing
from pretok.stream.packed import PackedPart, open_packing, packings_beside, verify_packing
from pretok.stream.side_file import FOLDER, path_of


def packed(lengths: list[int], capacity: int) -> list[list[tuple[int, int, int]]]:
    """As `best_fit`, by the kernel."""
    starts, members, full = pack_window(np.array(lengths, np.int64), capacity)
    found = []
    for number in range(len(starts)):
        if number < full:
            found.append([(int(members[number]), int(starts[number]) * capacity, capacity)])
            continue
        end = starts[number + 1] if number + 1 < len(starts) else len(members)
        rests = [(d, lengths[d] % capacity) for d in members[starts[number] : end].tolist()]
        found.append([(d, lengths[d] - rest, rest) for d, rest in rests])
    return found


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 20))
@settings(max_examples=300)
def test_a_window_is_packed_by_best_fit_of_the_longest_first(lengths: list[int], capacity: int) -> None:
    assert packed(lengths, capacity) == best_fit(lengths, capacity)


def documents_of(rng: np.random.Generator, count: int, longest: int) -> list[list[int]]:
    return [rng.integers(1, 1000, size=rng.integers(1, longest)).tolist() for _ in range(count)]


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 40), st.sampled_from([1, 2, 5]))
@settings(max_examples=25, deadline=None)
def test_every_token_is_in_an_epoch_once_and_no_document_is_cut_unless_it_is_longer(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, seq_len: int, epochs: int
) -> None:
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("packed")
    documents = {"it": documents_of(rng, count, 60), "en": documents_of(rng, 5, 9)}
    shards = make_shards(folder / "shards", documents)
    digest, about = pack(folder / FOLDER, load_manifest(shards).of("it"), seq_len)
    if about.targets < seq_len:
        return  # less than a sequence, which no budget may be
    learned = about.targets * epochs
    run_mix(
        shards,
        folder / "mix.json",
        request(f"{learned}:it=1", seq_len=seq_len, seed=seed, max_epochs=9, pack="best-fit"),
    )
    view = pretok.stream.open(shards, folder / "mix.json")
    assert [source.packed for source in view.mix.sources] == [(digest,)]
    assert len(view) == about.bins * epochs
    whole = sorted([*document, EOD] for document in documents["it"])
    targets = [0] * epochs
    for epoch in range(epochs):
        found: list[list[int]] = []
        for position in range(epoch * about.bins, (epoch + 1) * about.bins):
            ids = view[position].tolist()
            assert len(ids) == seq_len + 1
            parts = stretches(view, position)
            for column, first, tokens in parts:
                found.append([first, *ids[column : column + tokens]])
            filled = sum(tokens for *_, tokens in parts)
            assert ids[filled:] == [EOD] * (seq_len + 1 - filled)
            assert all(a[0] + a[2] == b[0] for a, b in pairwise(parts))
            # Each begins a document of its own; what is cut is longer than a sequence, and fills its own.
            starts = [column for column, *_ in parts if column == 0 or ids[column] != EOD]
            assert view.boundaries(position).tolist() == [column for column in starts if column < seq_len]
            targets[epoch] += sum(b != EOD or a != EOD for a, b in pairwise(ids))
        assert targets[epoch] == about.targets
        found.sort()
        text = [token for piece in found for token in piece[1:]]
        assert text == [token for document in documents["it"] for token in [*document, EOD]]
        pieces = [piece[1:] for piece in found if len(piece) - 1 < seq_len + 1]
        rests = [document[len(document) - len(document) % (seq_len + 1) :] for document in whole]
        assert sorted(pieces) == sorted(rest for rest in rests if rest)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shards and a packed mix.json of two sources, several epochs of one."""
    rng, folder = np.random.default_rng(1), tmp_path_factory.mktemp("packed")
    make_shards(folder / "shards", {"it": documents_of(rng, 70, 50), "en": documents_of(rng, 20, 90)})
    wish = request("9000:it=0.75,en=0.25", "1500:en=1", seq_len=31, max_epochs=20, pack="best-fit")
    run_mix(folder / "shards", folder / "mix.json", wish)
    return folder


def opened(folder: Path) -> View:
    return pretok.stream.open(folder / "shards", folder / "mix.json")


def test_any_way_of_reading_gives_the_same(made: Path) -> None:
    """One by one, in a batch, from another process's copy, from a position in the middle, in any order."""
    view = opened(made)
    alone = np.stack([view[position] for position in range(len(view))])
    everything = np.arange(len(view))
    assert np.array_equal(view.batch(everything, view.dtype), alone)
    assert np.array_equal(pickle.loads(pickle.dumps(view))[:], alone)
    shuffled = np.random.default_rng(0).permutation(everything)
    assert np.array_equal(opened(made).batch(shuffled, view.dtype), alone[shuffled])
    assert np.array_equal(opened(made)[17:90], alone[17:90])


def test_every_epoch_has_the_same_bins_in_another_order(made: Path) -> None:
    view = opened(made)
    source = view.mix.sources[0]
    rows: dict[int, list[tuple[int, ...]]] = {}
    for position in range(len(view)):
        name, epoch, number = view.origin(position)
        if name == source.name:
            rows.setdefault(epoch, []).append((number, *view[position].tolist()))
    whole = [epoch for epoch in rows.values() if len(epoch) == source.sequences]
    assert len(whole) > 1
    assert whole[0] != whole[1]
    assert sorted(whole[0]) == sorted(whole[1])


def test_shares_are_those_of_learned_tokens(made: Path) -> None:
    """Exact at the end of an epoch; elsewhere within the bound of the order and what the report says of the spread."""
    view, report = opened(made), read_json(made / "mix.json")["report"]
    bound = report["stages"][0]["prefix_bound_tokens"]
    sizes = {source.name: source.sequences for source in view.mix.sources}
    learned = dict.fromkeys(sizes, 0)
    mean = {source.name: float(source.learned(31)) for source in view.mix.sources}
    taken = dict.fromkeys(sizes, 0)
    first = sum(view.mix.stages[0])
    for position in range(first):
        name = view.origin(position)[0]
        taken[name] += 1
        ids = view[position]
        learned[name] += int((~((ids[1:] == EOD) & (ids[:-1] == EOD))).sum())
        for source, spread in ((s, report["sources"][s]["packed"]["spread_tokens"]) for s in sizes):
            away = 4 * spread * np.sqrt(sizes[source]) / 2
            assert abs(learned[source] - mean[source] * taken[source]) <= away
            total = sum(mean[s] * taken[s] for s in sizes)
            weight = {"it": 0.75, "en": 0.25}[source]
            assert abs(mean[source] * taken[source] - weight * total) <= 2 * bound[source] + 32
        if taken[name] % sizes[name] == 0:
            assert learned[name] == round(mean[name] * taken[name])
    assert learned["it"] / sum(learned.values()) == pytest.approx(0.75, abs=0.01)
    assert sum(learned.values()) == pytest.approx(9000, abs=100)


def test_positions_finds_what_parts_say(made: Path) -> None:
    view = opened(made)
    for name in ("it", "en"):
        tokens = next(source.tokens for source in view.mix.sources if source.name == name)
        read: dict[int, set[int]] = {token: set() for token in range(tokens)}
        for position in range(len(view)):
            if view.origin(position)[0] == name:
                for _, first, length in stretches(view, position):
                    for token in range(first, first + length):
                        read[token].add(position)
        for first, end in ((0, 1), (5, 200), (tokens - 3, tokens), (0, tokens), (7, 7)):
            expected = set().union(*(read[token] for token in range(first, end)))
            assert {row[0] for row in view.positions(name, first, end).tolist()} == expected


def test_materialized_sequences_keep_their_packing(made: Path, tmp_path: Path) -> None:
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run_materialize(made / "shards", made / "mix.json", tmp_path / "out", engine, Silent())
    view, written = opened(made), pretok.stream.open(tmp_path / "out")
    assert np.array_equal(written[:], view[:])
    assert written.boundaries(3).tolist() == view.boundaries(3).tolist()
    (told,) = mix_notices(load_manifest(tmp_path / "out"), None, "olmo")
    assert "olmo will learn them" in told


@pytest.mark.parametrize("world", [1, 2, 4])
def test_it_resumes_on_any_number_of_ranks(made: Path, world: int) -> None:
    """What ranks read from a position in the middle is what one reads there."""
    view = opened(made)
    read = {}
    for rank in range(world):
        sizes = {"global_batch": 8, "micro_batch": 2, "rank": rank, "world_size": world}
        sampler = PositionSampler(len(view), position=40, identity=identity_of(view), **sizes)
        other = opened(made)
        read |= {p: row for batch in sampler for p, row in zip(batch, other.batch(batch), strict=True)}
    assert sorted(read) == list(range(40, 40 + (len(view) - 40) // 8 * 8))
    assert all(np.array_equal(row, view[position]) for position, row in read.items())


def test_a_mix_that_goes_on_keeps_bins_and_refuses_others(made: Path) -> None:
    mix = beginning(load_manifest(made / "shards"), made / "mix.json", 50)
    run_mix(made / "shards", made / "on.json", request("3200:it=1", seq_len=31, after=mix, max_epochs=20))
    view, before = pretok.stream.open(made / "shards", made / "on.json"), opened(made)
    assert np.array_equal(view[:50], before[:50])
    assert same_until(view.mix, before.mix) == 50
    names = [view.origin(position) for position in range(len(view))]
    assert len(set(names)) == len(names)
    run_mix(made / "shards", made / "cut.json", request("9000:it=0.75,en=0.25", seq_len=31, max_epochs=20))
    assert same_until(load_mix(made / "cut.json"), before.mix) == 0
    with pytest.raises(MismatchError, match="its packing is best-fit, not none"):
        run_mix(made / "shards", made / "mix.json", request("9000:it=0.75,en=0.25", "1500:en=1", seq_len=31))


def test_repeat_reads_whole_epochs(made: Path) -> None:
    """However the budget in learned tokens is rounded."""
    for seq_len in (5, 31, 64):
        table = {"seq_len": seq_len, "pack": "best-fit", "repeat": {"it": 3, "en": 2}}
        mix, _ = plan_mix(load_manifest(made / "shards"), MixRequest(make_mix(table, "test")))
        times = {
            source.name: quota / source.sequences
            for source, quota in zip(mix.sources, mix.stages[0], strict=True)
        }
        assert times == {"it": 3, "en": 2}


def test_after_an_append_only_what_came_is_packed(tmp_path: Path) -> None:
    """By an index of its own; a mix of before still opens, and all of them verify."""
    rng, folder = np.random.default_rng(2), tmp_path
    shards = make_shards(folder / "shards", {"it": documents_of(rng, 30, 50)})
    run_mix(shards, folder / "mix.json", request("900:it=1", seq_len=31, max_epochs=9, pack="best-fit"))
    more = documents_of(rng, 7, 50)
    grown = make_shards(folder / "grown", {"it": more}, since=shards)
    after = beginning(load_manifest(grown), folder / "mix.json", 9)
    wish = request("900:it=1", seq_len=31, max_epochs=9, after=after)
    with pytest.raises(UsageError, match="the mix before has classes or is packed"):
        plan_mix(load_manifest(grown), wish)
    run_mix(grown, folder / "on.json", wish)
    (before,), mix = load_mix(folder / "mix.json").sources, load_mix(folder / "on.json")
    (now,) = mix.sources
    assert (len(now.packed), now.packed[:1]) == (2, before.packed)
    assert (mix.earlier[0].packed, mix.earlier[0].sequences) == ((1,), (before.sequences,))
    new = load_manifest(grown).of("it")[len(load_manifest(shards).of("it")) :]
    assert open_packing(folder / FOLDER, now.packed[1], new, 31)[1].documents == len(more)
    assert np.array_equal(pretok.stream.open(grown, folder / "mix.json")[:9], opened(folder)[:9])
    assert {verify_packing(grown, *one) for one in packings_beside(load_manifest(grown))} == {None}
    data = read_json(folder / "on.json")
    for wrong in ([now.sequences + 1], [before.tokens + 1], [0], []):
        data["earlier"][0]["sequences"] = wrong
        with pytest.raises(IntegrityError, match="the mix is damaged"):
            parse_mix({**data, "fingerprint": _fingerprint(data)}, folder)


def test_a_kill_anywhere_leaves_what_the_same_command_finishes(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each rename: of the two indexes, of the two notes of them, of the mix."""
    folder = shutil.copytree(made / "shards", tmp_path / "shards").parent
    wish = request("9000:it=0.75,en=0.25", "1500:en=1", seq_len=31, max_epochs=20, pack="best-fit")
    original, left = os.replace, [0]

    def rename(source: Any, target: Any, **named: Any) -> None:
        if "lock" not in str(source):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        original(source, target, **named)

    monkeypatch.setattr(os, "replace", rename)
    monkeypatch.setattr(Path, "replace", lambda self, target: rename(self, target) or Path(target))
    kills = 0
    while not (folder / "mix.json").exists():
        left[0] = kills
        with contextlib.suppress(KeyboardInterrupt):
            shutil.rmtree(folder / FOLDER, ignore_errors=True)
            run_mix(folder / "shards", folder / "mix.json", wish)
        left[0] = 99
        kills += 1
        assert kills < 30
        if not (folder / "mix.json").exists() and kills % 2:  # as it was left; else from nothing
            monkeypatch.undo()
            run_mix(folder / "shards", tmp_path / f"mix-{kills}.json", wish)
            assert load_mix(tmp_path / f"mix-{kills}.json") == load_mix(made / "mix.json")
            monkeypatch.setattr(os, "replace", rename)
            monkeypatch.setattr(Path, "replace", lambda self, target: rename(self, target) or Path(target))
    assert kills > 4
    assert (folder / "mix.json").read_bytes() == (made / "mix.json").read_bytes()
    names = {path.name for path in (made / FOLDER).iterdir() if not path.name.startswith(".")}
    assert {path.name for path in (folder / FOLDER).iterdir() if ".tmp" not in path.name} >= names


def _missing(folder: Path, index: Path) -> None:
    index.unlink()


def _cut(folder: Path, index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-9])


def _changed(folder: Path, index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[2] ^= 1
    index.write_bytes(data)


def _of_another_length(folder: Path, index: Path) -> None:
    digest, _ = pack(folder / FOLDER, load_manifest(folder / "shards").of("it"), 15)
    data = read_json(folder / "mix.json")
    it = next(source for source in data["sources"] if source["name"] == "it")
    it["packed"] = [digest]
    write_json(folder / "mix.json", mix_json(parse_mix({**data, "fingerprint": _fingerprint(data)}, folder)))


def _fingerprint(data: dict[str, Any]) -> str:
    body = {key: value for key, value in data.items() if key not in ("fingerprint", "report")}
    return fingerprint(body)


def _of_another_index(folder: Path, index: Path) -> None:
    """The shards' own `.idx` says other lengths, of the same sum."""
    path = next(iter(load_manifest(folder / "shards").of("it"))).index_path
    data = bytearray(path.read_bytes())
    at = 34 + 4 * 3 + 8  # the offset of the second of three documents
    offset = int.from_bytes(data[at : at + 8], "little")
    data[at : at + 8] = (offset + 62).to_bytes(8, "little")
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_missing, "is missing, which a mix is made of: copy it again"),
        (_cut, "was cut or is no side file"),
        (_changed, "is damaged"),
        (_of_another_length, "packs other shards, or sequences of 15 tokens, not 31"),
        (_of_another_index, "(does not fit the documents of|documents overlap in it).*run pretok verify"),
    ],
)
def test_what_is_not_the_index_of_this_mix_is_refused_by_name(
    made: Path, tmp_path: Path, harm: Callable[[Path, Path], None], words: str
) -> None:
    folder = shutil.copytree(made, tmp_path / "made")
    source = next(source for source in load_mix(folder / "mix.json").sources if source.name == "it")
    harm(folder, path_of(folder / FOLDER, source.packed[0]))
    with pytest.raises(IntegrityError, match=words):
        opened(folder)[:]
    told = [
        verify_packing(folder / "shards", *one) for one in packings_beside(load_manifest(folder / "shards"))
    ]
    assert {bool(re.search(words, problem)) for problem in told if problem} == {True}


def test_verify_reads_the_indexes_of_mixes_beside_the_shards(made: Path) -> None:
    shards = made / "shards"
    found = list(packings_beside(load_manifest(shards)))
    assert (made / "mix.json", "it") in found
    assert {verify_packing(shards, *one) for one in found} == {None}


def test_some_documents_of_a_source_are_packed_alone(made: Path, tmp_path: Path) -> None:
    """As of a class: the tape has their tokens, each once, and no others."""
    shards = load_manifest(made / "shards").of("it")
    lengths = np.concatenate([shard.open().lengths for shard in shards]).astype(np.int64)
    chosen = np.arange(2, len(lengths), 3)
    parts = [(part, lengths[part]) for part in np.array_split(chosen, 4)]
    digest = write_packing(tmp_path, shards, 31, parts, len(chosen), int(lengths[chosen].sum()))
    starts_of = DocumentStarts(shards, np.dtype("<u2"))
    tape = PackedPart(tmp_path, digest, shards, 0, starts_of, 31)
    assert (tape.about.documents, tape.about.tokens) == (len(chosen), lengths[chosen].sum())
    bins = np.arange(tape.about.bins)
    pieces = tape.pieces(bins)
    starts = np.cumsum(lengths) - lengths
    expected = [
        token
        for document in chosen
        for token in range(starts[document], starts[document] + lengths[document])
    ]
    found = [
        token for at, n in zip(pieces.address, pieces.length, strict=True) for token in range(at, at + n)
    ]
    assert sorted(found) == expected
    tape.verify()


def test_verify_tells_an_index_that_has_a_document_twice(made: Path, tmp_path: Path) -> None:
    shards = load_manifest(made / "shards").of("it")
    lengths = np.concatenate([shard.open().lengths for shard in shards]).astype(np.int64)
    numbers = np.arange(len(lengths))
    numbers[7] = 6
    held = lengths[numbers]
    digest = write_packing(tmp_path, shards, 31, [(numbers, held)], len(held), int(held.sum()))
    with pytest.raises(IntegrityError, match="does not fit the documents"):
        PackedPart(tmp_path, digest, shards, 0, DocumentStarts(shards, np.dtype("<u2")), 31).verify()


def test_an_export_warns_loudly(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mix = str(made / "mix.json")
    command = ["export", str(made / "shards"), "--mix", mix, "--to", "megatron", "--stage", "1"]
    assert run_command(command) == 0
    assert "warning: megatron cuts the documents by itself" in capsys.readouterr().err
