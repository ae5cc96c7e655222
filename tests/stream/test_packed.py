"""Packed sequences hold whole documents, each once an epoch, wherever they are computed and however they are read."""

from __future__ import annotations

import pickle
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
from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.base.storage import fingerprint, read_json, write_json
from pretok.cli import run_command
from pretok.config import make_mix
from pretok.export.text import mix_notices
from pretok.shards.manifest import load_manifest
from pretok.stream import View, audit
from pretok.stream.continued import beginning, same_until
from pretok.stream.loader import PositionSampler, identity_of
from pretok.stream.materialize import run_materialize
from pretok.stream.mix_file import load_mix, mix_json, parse_mix
from pretok.stream.mix_job import MixRequest, plan_mix, run_mix
from pretok.stream.pack import open_packing, pack, window_runs, write_packing
from pretok.stream.tapes import FILL, FOLDER, path_of, verify_side_file


def packed(lengths: list[int], capacity: int) -> list[list[tuple[int, int, int]]]:
    """As `best_fit`, by the kernel."""
    begins = np.cumsum([0, *lengths])[:-1]
    address, length, learned = window_runs(begins, np.array(lengths, np.int64), capacity)
    ends = np.cumsum(length)
    assert (ends[-1] if len(ends) else 0) == len(learned) * capacity
    found: list[list[tuple[int, int, int]]] = [[] for _ in learned]
    for at, size, end in zip(address.tolist(), length.tolist(), ends.tolist(), strict=True):
        if at != FILL:
            document = int(np.searchsorted(begins, at, side="right")) - 1
            found[(end - 1) // capacity].append((document, at - int(begins[document]), size))
    return found


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 20))
@settings(max_examples=300)
def test_a_window_is_packed_by_best_fit_of_the_longest_first(lengths: list[int], capacity: int) -> None:
    assert packed(lengths, capacity) == best_fit(lengths, capacity)


def documents_of(rng: np.random.Generator, count: int, longest: int) -> list[list[int]]:
    return [rng.integers(1, 1000, size=rng.integers(1, longest)).tolist() for _ in range(count)]


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 40), st.sampled_from([1, 2, 5]))
@settings(max_examples=10, deadline=None)
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
    assert [source.tape for source in view.mix.sources] == [digest]
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
        for source, spread in ((s, report["sources"][s]["spread_tokens"]) for s in sizes):
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
            assert {row[0] for row in audit.positions(view, name, first, end).tolist()} == expected


def test_materialized_sequences_keep_their_packing(made: Path, tmp_path: Path) -> None:
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run_materialize(made / "shards", made / "mix.json", tmp_path / "out", engine, Silent())
    view, written = opened(made), pretok.stream.open(tmp_path / "out")
    assert np.array_equal(written[:], view[:])
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
    with pytest.raises(MismatchError, match="holds another mix"):
        run_mix(
            made / "shards",
            made / "mix.json",
            request("9000:it=0.75,en=0.25", "1500:en=1", seq_len=31, max_epochs=20),
        )


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
    run_mix(grown, folder / "on.json", wish)
    mix = load_mix(folder / "on.json")
    new = load_manifest(grown).of("it")[len(load_manifest(shards).of("it")) :]
    tape = mix.sources[1].tape or ""
    assert open_packing(folder / FOLDER, tape, new, 31)[1].documents == len(more)
    assert np.array_equal(pretok.stream.open(grown, folder / "mix.json")[:9], opened(folder)[:9])
    assert not verify_side_file(path_of(folder / FOLDER, tape))


def _missing(folder: Path, index: Path) -> None:
    index.unlink()


def _cut(folder: Path, index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-9])


def _changed(folder: Path, index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[18] ^= 1  # the start of the second run
    index.write_bytes(data)


def _of_another_length(folder: Path, index: Path) -> None:
    digest, _ = pack(folder / FOLDER, load_manifest(folder / "shards").of("it"), 15)
    data = read_json(folder / "mix.json")
    it = next(source for source in data["sources"] if source["name"] == "it")
    it["tape"] = digest
    write_json(folder / "mix.json", mix_json(parse_mix({**data, "fingerprint": _fingerprint(data)}, folder)))


def _fingerprint(data: dict[str, Any]) -> str:
    body = {key: value for key, value in data.items() if key not in ("fingerprint", "report")}
    return fingerprint(body)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_missing, "is missing, which a mix is made of: copy it again"),
        (_cut, "was cut or is no side file"),
        (_changed, "is damaged"),
        (_of_another_length, "packs sequences of 15 tokens, not 31"),
    ],
)
def test_what_is_not_the_index_of_this_mix_is_refused_by_name(
    made: Path, tmp_path: Path, harm: Callable[[Path, Path], None], words: str
) -> None:
    folder = shutil.copytree(made, tmp_path / "made")
    source = next(source for source in load_mix(folder / "mix.json").sources if source.name == "it")
    harm(folder, path_of(folder / FOLDER, source.tape))
    with pytest.raises(IntegrityError, match=words):
        opened(folder)[:]
    if harm in (_cut, _changed):
        assert verify_side_file(path_of(folder / FOLDER, source.tape))


def test_some_documents_of_a_source_are_packed_alone(made: Path, tmp_path: Path) -> None:
    """As of a class: the tape has their tokens, each once, and no others."""
    shards = load_manifest(made / "shards").of("it")
    lengths = np.concatenate([shard.open().lengths for shard in shards]).astype(np.int64)
    chosen = np.arange(2, len(lengths), 3)
    starts = np.cumsum(lengths) - lengths
    parts = [np.stack([starts[part], lengths[part]]) for part in np.array_split(chosen, 4)]
    digest = write_packing(tmp_path, shards, 31, parts, len(chosen), int(lengths[chosen].sum()))
    tape, about = open_packing(tmp_path, digest, shards, 31)
    assert (about.documents, about.tokens) == (len(chosen), lengths[chosen].sum())
    first = np.arange(about.bins) * 32
    pieces = tape.between(first, first + 32)
    expected = [
        token
        for document in chosen
        for token in range(starts[document], starts[document] + lengths[document])
    ]
    found = [
        token for at, n in zip(pieces.address, pieces.length, strict=True) for token in range(at, at + n)
    ]
    assert sorted(found) == expected
    runs = tape.holding(int(starts[chosen[3]]), int(starts[chosen[5]]))
    assert runs.length.sum() == lengths[chosen[3:5]].sum()


def test_an_export_warns_loudly(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mix = str(made / "mix.json")
    command = ["export", str(made / "shards"), "--mix", mix, "--to", "megatron", "--stage", "1"]
    assert run_command(command) == 0
    assert "warning: megatron cuts the documents by itself" in capsys.readouterr().err
