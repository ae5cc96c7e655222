"""Mixes that go on after their sources grew, against a plain model of what each draw must be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixing import best_fit, request
from support import EOD, make_shards

import pretok.stream
from pretok.base.errors import MismatchError
from pretok.disclosure.read import read_mix
from pretok.shards.manifest import load_manifest
from pretok.stream import View, same_until
from pretok.stream.continued import beginning
from pretok.stream.mix_file import load_mix
from pretok.stream.mix_job import run_mix
from pretok.stream.order import cut, permute, round_keys
from train.config import TrainConfig
from train.steps.evaluate import validation_sources

Documents = dict[str, list[list[int]]]


def count(tokens: int, seq_len: int, fixed: bool, packed: bool) -> int:
    """Sequences of so many tokens; of packed ones `tokens` are how many there are."""
    if packed:
        return tokens
    sequences = max(tokens - 1, 0) // seq_len
    return sequences if fixed or sequences < 2 else (tokens - seq_len) // seq_len


def shuffled(size: int, seed: int, name: str, epoch: int, grown: int) -> list[int]:
    keys = np.broadcast_to(round_keys(seed, name, epoch, grown), (size, 6))
    return permute(np.arange(size), np.full(size, size), keys).tolist()


def draws(
    name: str, held: Sequence[int], seed: int, seq_len: int, fixed: bool, packed: bool
) -> Iterator[tuple[int, int, int]]:
    """(epoch, sequence, first token) of each draw of a source; held: its tokens when each is drawn, or its sequences if
    they are packed, which have no first token."""

    def begin(tokens: int) -> int:
        moved = not fixed and max(tokens - 1, 0) // seq_len > 1
        return cut(seed, name, epoch, seq_len, grown if tokens != now else 0) if moved else 0

    epoch, grown, before = -1, 0, 0
    order: list[int] = []
    starts: list[int] = []
    drawn = 0
    for now in held:
        grown += now > before > 0
        if drawn == len(order):
            epoch, drawn = epoch + 1, 0
            order = shuffled(count(now, seq_len, fixed, packed), seed, name, epoch, 0)
            starts = [begin(now) + i * seq_len for i in range(len(order))]
        elif now > before:
            new = count(now - before, seq_len, fixed, packed)
            rest = [*order[drawn:], *range(len(order), len(order) + new)]  # one pool, under one permutation
            starts += [before + begin(now - before) + i * seq_len for i in range(new)]
            order[drawn:] = [rest[i] for i in shuffled(len(rest), seed, name, epoch, grown)]
        yield epoch, order[drawn], starts[order[drawn]]
        drawn, before = drawn + 1, now


def flat(documents: Sequence[Sequence[int]]) -> list[int]:
    return [token for document in documents for token in (*document, EOD)]


def grow(folder: Path, since: Path | None, more: Documents, split: str) -> Path:
    nothing: Documents = {name: [] for name in more}
    train, val = (more, nothing) if split == "train" else (nothing, more)
    return make_shards(folder, train, val=val, since=since, documents_per_shard=2)


documents = st.lists(
    st.integers(1, 25).map(lambda size: [1 + i * size % 999 for i in range(size)]), min_size=1, max_size=4
)
some = st.dictionaries(st.sampled_from("abc"), documents, max_size=3)
steps = st.lists(
    st.tuples(some, st.floats(0, 1), st.integers(1, 50), st.integers(0, 3)), min_size=1, max_size=4
)


@settings(max_examples=max(20, settings().max_examples // 2))
@given(
    st.fixed_dictionaries({"a": documents, "b": documents}), steps,
    st.integers(2, 6), st.integers(0, 9), st.sampled_from(("train", "val")), st.booleans(),
)  # fmt: skip
def test_random_histories(
    tmp_path_factory: pytest.TempPathFactory,
    first: Documents,
    history: list[tuple[Documents, float, int, int]],
    seq_len: int,
    seed: int,
    split: str,
    packed: bool,
) -> None:
    """Appends, new sources, weights, epochs and packing: every position is what the model says, what was read stays,
    each epoch has every sequence once, and the way back finds them all."""
    folder, fixed = tmp_path_factory.mktemp("grown"), split == "val"
    texts = {name: [*first[name], [7] * 3 * seq_len] for name in "ab"}  # at least two sequences
    shards = grow(folder / "0", None, texts, split)
    options = {"seq_len": seq_len, "seed": seed, "max_epochs": 1000, "split": split}
    wish = request(f"{30 * seq_len}:a=0.5,b=0.5", pack="best-fit" if packed else "none", **options)
    run_mix(shards, folder / "0.json", wish)
    view = pretok.stream.open(shards, folder / "0.json")
    bins = {name: packed_alone(texts[name], 0, seq_len) for name in texts}
    lengths = {name: len(bins[name] if packed else flat(texts[name])) for name in texts}
    held = [dict(lengths)] * len(view)  # at each position
    for number, (more, share, length, weight) in enumerate(history, 1):
        if more:
            shards = grow(folder / str(number), shards, more, split)
            for name in more:
                begin = len(flat(texts.get(name, [])))
                bins[name] = [*bins.get(name, []), *packed_alone(more[name], begin, seq_len)]
            texts = {name: [*texts.get(name, []), *more.get(name, [])] for name in {**texts, **more}}
        at = 1 + int(share * (len(view) - 1))
        after = beginning(load_manifest(shards), folder / f"{number - 1}.json", at)
        stage = f"{length * seq_len}:" + ("a=1" if weight == 0 else f"a={weight / 4},b={1 - weight / 4}")
        wish = request(stage, after=after, **options)
        run_mix(shards, folder / f"{number}.json", wish)
        before, view = view, pretok.stream.open(shards, folder / f"{number}.json")
        np.testing.assert_array_equal(view[:at], before[:at])
        assert at <= same_until(before.mix, view.mix) == same_until(view.mix, before.mix)
        same = same_until(before.mix, view.mix)
        np.testing.assert_array_equal(view[:same], before[:same])
        lengths = {name: len(bins[name] if packed else flat(texts[name])) for name in texts}
        held = [*held[:at], *[dict(lengths)] * (len(view) - at)]
        check(view, texts, held, seed, fixed, bins if packed else None)
    assert len(view) == len(pretok.stream.open(shards, folder / f"{number}.json", seq_len=seq_len))
    for one in (0, number):  # in the shards of the last
        check_disclosed(shards, folder / f"{one}.json", texts, bins if packed else None)


Bins = dict[str, list[list[int]]]
"""Source -> which of its tokens each packed sequence has."""


def packed_alone(texts: list[list[int]], begin: int, seq_len: int) -> list[list[int]]:
    """Which tokens of a source the packed sequences of some documents have, the first token being number `begin`."""
    lengths = [len(text) + 1 for text in texts]
    starts = [begin + sum(lengths[:number]) for number in range(len(lengths))]
    return [
        [
            token
            for document, first, tokens in one
            for token in range(starts[document] + first, starts[document] + first + tokens)
        ]
        for one in best_fit(lengths, seq_len + 1)
    ]


def check(
    view: View, texts: Documents, held: list[dict[str, int]], seed: int, fixed: bool, bins: Bins | None
) -> None:
    origins = [view.origin(position) for position in range(len(view))]
    everything = view[:]
    for name in {name for name, _, _ in origins}:
        mine = [position for position, origin in enumerate(origins) if origin[0] == name]
        tape, last = flat(texts[name]), view.seq_len + 1
        given = [held[p][name] for p in mine]
        expected = list(draws(name, given, seed, view.seq_len, fixed, bins is not None))
        tokens = [
            bins[name][sequence] if bins else range(start, start + last) for _, sequence, start in expected
        ]
        assert [origins[position][1:] for position in mine] == [one[:2] for one in expected]
        assert len({one[:2] for one in expected}) == len(expected)  # no repeat before an epoch ends
        assert view.drawn(name, 0, len(mine)).tolist() == [one[1] for one in expected]
        for position, one, (epoch, sequence, start) in zip(mine, tokens, expected, strict=True):
            assert everything[position].tolist() == [tape[n] for n in one] + [EOD] * (last - len(one))
            assert bins or view.cut(name, epoch, sequence) + sequence * view.seq_len == start
        for low, high in ((0, len(tape)), (3, 4), (len(tape) // 2, len(tape) - 1)):
            found = [
                [position, epoch, sequence]
                for position, one, (epoch, sequence, _) in zip(mine, tokens, expected, strict=True)
                if any(low <= n < high for n in one)
            ]
            assert view.positions(name, low, high).tolist() == found


def check_disclosed(shards: Path, mix: Path, texts: Documents, bins: Bins | None) -> None:
    """How often each token was the input of a prediction."""
    extent, view = read_mix(load_manifest(shards), mix), pretok.stream.open(shards, mix)
    for name, reading in extent.sources.items():
        expected = np.zeros(len(flat(texts[name])), np.int64)
        for position in range(len(view)):
            source, epoch, sequence = view.origin(position)
            if source == name and bins:
                expected[bins[name][sequence]] += 1
            elif source == name:
                start = view.cut(name, epoch, sequence) + sequence * view.seq_len
                expected[start : start + view.seq_len] += 1
        np.testing.assert_array_equal(reading.tokens(np.arange(len(expected) + 1), 0), expected)


def test_an_epoch_goes_on_over_what_was_appended(tmp_path: Path) -> None:
    """The rest of the epoch and the new sequences come in one order, and later epochs read all as one text."""
    shards = grow(tmp_path / "0", None, {"it": [list(range(1, 401))]}, "train")
    run_mix(shards, tmp_path / "0.json", request("200:it=1", seq_len=5))
    grown = grow(tmp_path / "1", shards, {"it": [list(range(401, 601))]}, "train")
    after = beginning(load_manifest(grown), tmp_path / "0.json", 40)
    run_mix(grown, tmp_path / "1.json", request("600:it=1", seq_len=5, after=after))
    view = pretok.stream.open(grown, tmp_path / "1.json")
    epochs, sequences = np.array([view.origin(position)[1:] for position in range(len(view))]).T
    n, m = 79, 39  # of 401 and 201 tokens, cut anew
    assert np.count_nonzero(epochs == 0) == n + m == len(set(sequences[epochs == 0]))
    new = np.flatnonzero(sequences[40 : n + m] >= n)
    assert len(new) == m
    assert 0.3 < new.mean() / (n + m - 40) < 0.7  # neither first nor last
    assert view.parts("it", 0) == [(0, n, view.cut("it", 0)), (n, n + m, view.cut("it", 0, n) + n * 5)]
    assert [len(view.parts("it", epoch)) for epoch in (0, 1)] == [2, 1]
    assert load_mix(tmp_path / "1.json").sources[0].sequences == (602 - 5) // 5


def test_validation_stays_what_it_was(tmp_path: Path) -> None:
    """Of the shards that a mix began with, however often it was continued; a mix of its own has all there is."""
    text = {"it": [list(range(1, 101))]}
    shards = make_shards(tmp_path / "0", text, val=text)
    run_mix(shards, tmp_path / "0.json", request("50:it=1", seq_len=5))
    before = validation_sources(TrainConfig(shards=str(shards)), load_mix(tmp_path / "0.json"))
    for number in (1, 2):
        more = {"it": [list(range(200, 300))], "en": [list(range(300, 400))]}
        shards = make_shards(tmp_path / str(number), more, val=more, since=shards)
        after = beginning(load_manifest(shards), tmp_path / f"{number - 1}.json", 10)
        run_mix(shards, tmp_path / f"{number}.json", request("50:it=1", seq_len=5, after=after))
    config = TrainConfig(shards=str(shards))
    found = validation_sources(config, load_mix(tmp_path / "2.json"))
    assert found.keys() == {"it"}
    np.testing.assert_array_equal(found["it"].view[:], before["it"].view[:])
    assert found["it"].bytes_per_token == before["it"].bytes_per_token
    run_mix(shards, tmp_path / "new.json", request("50:it=1", seq_len=5))
    new = validation_sources(config, load_mix(tmp_path / "new.json"))
    assert {name: len(one.view) for name, one in new.items()} == {"it": 60, "en": 40}
    with pytest.raises(MismatchError, match="never had the fingerprint x"):
        pretok.stream.open(shards, seq_len=5, manifest="x")
