"""Mixes that go on after their sources grew, against a plain model of what each draw must be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixing import best_fit, request, write_ledgers
from support import EOD, make_shards

import pretok.stream
from pretok.base.errors import MismatchError
from pretok.disclosure.read import read_mix
from pretok.shards.manifest import load_manifest
from pretok.stream import View, same_until
from pretok.stream.continued import beginning
from pretok.stream.loader import PositionSampler
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


def grow(folder: Path, since: Path | None, more: Documents, split: str) -> Path:
    nothing: Documents = {name: [] for name in more}
    train, val = (more, nothing) if split == "train" else (nothing, more)
    return make_shards(folder, train, val=val, since=since, documents_per_shard=2)


documents = st.lists(
    st.integers(1, 25).map(lambda size: [1 + i * size % 999 for i in range(size)]), min_size=1, max_size=4
)
some = st.dictionaries(st.sampled_from("abc"), documents, max_size=3)
steps = st.lists(
    st.tuples(some, st.floats(0, 1), st.integers(1, 50), st.integers(0, 3), st.integers(0, 30)),
    min_size=1,
    max_size=4,
)


class Model:
    """What a mix weighs, written plainly. tapes: tokens of each entry, one document after the other; places: of each of
    them the document, and its number among the tokens of the source; bins: of each packed sequence its tokens in the
    tape, () where it is cut."""

    def __init__(self, seq_len: int, packed: bool) -> None:
        self.seq_len, self.packed = seq_len, packed
        self.tapes: dict[str, list[int]] = {}
        self.places: dict[str, list[tuple[int, int]]] = {}
        self.bins: dict[str, list[list[int]]] = {}
        self.source: dict[str, str] = {}
        self.ends: dict[str, list[int]] = {}

    def append(self, more: Documents, most: int | None) -> None:
        """More documents; most: of so many tokens those of `a` are short, None: there are no classes."""
        for name, texts in more.items():
            new: dict[str, list[int]] = {}
            for text in texts:
                entry = "short" if name == "a" and most is not None and len(text) + 1 <= most else name
                self.source[entry] = name
                ends = self.ends.setdefault(name, [0])
                tape, places = self.tapes.setdefault(entry, []), self.places.setdefault(entry, [])
                places += [(len(ends), ends[-1] + n) for n in range(len(text) + 1)]
                tape += [*text, EOD]
                ends.append(ends[-1] + len(text) + 1)
                new.setdefault(entry, []).append(len(text) + 1)
            for entry, lengths in new.items() if self.packed else ():
                begins = len(self.tapes[entry]) - sum(lengths) + np.cumsum([0, *lengths])
                self.bins.setdefault(entry, []).extend(
                    [int(begins[n]) + token for n, first, size in one for token in range(first, first + size)]
                    for one in best_fit(lengths, self.seq_len + 1)
                )

    @property
    def sizes(self) -> dict[str, int]:
        """Tokens of each entry; of packed ones sequences."""
        return {name: len(self.bins[name] if self.packed else tape) for name, tape in self.tapes.items()}


@settings(max_examples=max(20, settings().max_examples // 2))
@given(
    st.fixed_dictionaries({"a": documents, "b": documents}), steps, st.integers(2, 6), st.integers(0, 9),
    st.sampled_from(("train", "val")), st.booleans(), st.booleans(),
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
)  # fmt: skip
def test_random_histories(
    tmp_path_factory: pytest.TempPathFactory,
    first: Documents,
    history: list[tuple[Documents, float, int, int, int]],
    seq_len: int,
    seed: int,
    split: str,
    packed: bool,
    classes: bool,
    world: tuple[int, int, int],
) -> None:
    """Appends, new sources, classes, weights, epochs, packing and ranks: every position is what the model says, shares
    hold at every prefix, what was read stays, each epoch has every sequence once, and the way back finds them all."""
    folder, fixed = tmp_path_factory.mktemp("grown"), split == "val"
    texts = {name: [*first[name], [7] * 20] for name in "ab"}  # at least two sequences, of a class too
    texts["a"] += [[5] * 7, [6] * 7] if classes else []
    shards = grow(folder / "0", None, texts, split)
    write_ledgers(shards)
    model = Model(seq_len, packed)
    model.append(texts, 9 if classes else None)
    options = {"seq_len": seq_len, "seed": seed, "max_epochs": 1000, "split": split}
    table = {"classes": {"short": "a where tokens <= 9"}} if classes else {}
    weights = "a=0.25,short=0.25,b=0.5" if classes else "a=0.5,b=0.5"
    wish = request(f"{30 * seq_len}:{weights}", pack="best-fit" if packed else "none", **table, **options)
    run_mix(shards, folder / "0.json", wish)
    view = pretok.stream.open(shards, folder / "0.json")
    held = [model.sizes] * len(view)  # at each position
    for number, (more, share, length, weight, most) in enumerate(history, 1):
        if more:
            shards = grow(folder / str(number), shards, more, split)
            write_ledgers(shards)
            model.append(more, most if classes else None)
        at = 1 + int(share * (len(view) - 1))
        after = beginning(load_manifest(shards), folder / f"{number - 1}.json", at)
        stage = f"{length * seq_len}:" + ("a=1" if weight == 0 else f"a={weight / 4},b={1 - weight / 4}")
        # Documents of before keep their class, whatever the condition is by now.
        table = {"classes": {"short": f"a where tokens <= {most}"}} if classes else {}
        run_mix(shards, folder / f"{number}.json", request(stage, after=after, **table, **options))
        earlier, view = view, pretok.stream.open(shards, folder / f"{number}.json")
        np.testing.assert_array_equal(view[:at], earlier[:at])
        assert at <= same_until(earlier.mix, view.mix) == same_until(view.mix, earlier.mix)
        same = same_until(earlier.mix, view.mix)
        np.testing.assert_array_equal(view[:same], earlier[:same])
        held = [*held[:at], *[model.sizes] * (len(view) - at)]
    check(view, model, held, seed, fixed)
    check_ranks(view, folder / f"{number}.json", shards, *world)
    for one in (0, number):  # in the shards of the last
        check_disclosed(shards, folder / f"{one}.json", model)


def check(view: View, model: Model, held: list[dict[str, int]], seed: int, fixed: bool) -> None:
    origins = [view.origin(position) for position in range(len(view))]
    everything = view[:]
    check_shares(view, [name for name, _, _ in origins])
    for name in {name for name, _, _ in origins}:
        mine = [position for position, origin in enumerate(origins) if origin[0] == name]
        tape, last = model.tapes[name], view.seq_len + 1
        given = [held[p][name] for p in mine]
        expected = list(draws(name, given, seed, view.seq_len, fixed, model.packed))
        tokens = [
            model.bins[name][sequence] if model.packed else range(start, start + last)
            for _, sequence, start in expected
        ]
        assert [origins[position][1:] for position in mine] == [one[:2] for one in expected]
        assert len({one[:2] for one in expected}) == len(expected)  # no repeat before an epoch ends
        assert view.drawn(name, 0, len(mine)).tolist() == [one[1] for one in expected]
        learned = [0]
        for position, one, (epoch, sequence, start) in zip(mine, tokens, expected, strict=True):
            ids = [tape[n] for n in one] + [EOD] * (last - len(one))
            assert everything[position].tolist() == ids
            assert model.packed or view.cut(name, epoch, sequence) + sequence * view.seq_len == start
            documents = [model.places[name][n][0] for n in one] + [0] * (last - len(one))
            new = [n == 0 or (documents[n] != documents[n - 1] and ids[n] != EOD) for n in range(last - 1)]
            assert view.boundaries(position).tolist() == np.flatnonzero(new).tolist()
            learned.append(learned[-1] + sum(not (a == b == EOD) for a, b in pairwise(ids)))
        number = [source.name for source in view.mix.sources].index(name)
        begin = view.begin(name, view.epoch(name, len(mine)))  # behind a whole epoch the figures are exact
        for drawn in (begin, *([] if model.packed else [len(mine)])):
            assert view.mix.learned_by(mine[drawn - 1] + 1 if drawn else 0)[number] == learned[drawn]
        for low, high in ((0, len(tape)), (3, 4), (len(tape) // 2, len(tape) - 1)):
            found = [
                [position, epoch, sequence]
                for position, one, (epoch, sequence, _) in zip(mine, tokens, expected, strict=True)
                if any(low <= n < high for n in one)
            ]
            assert view.positions(name, low, high).tolist() == found


def check_shares(view: View, names: list[str]) -> None:
    """At every prefix of every stage."""
    first = 0
    for quotas, length in zip(view.mix.stages, view.mix.lengths, strict=True):
        asked, total = sum(quota > 0 for quota in quotas), sum(quotas)
        for source, quota in zip(view.mix.sources, quotas, strict=False):
            counts = np.cumsum([name == source.name for name in names[first : first + length]])
            shares = quota / total * np.arange(1, length + 1)
            bound = 0.5 + quota / total * asked / 2 if quota else 0
            assert np.abs(counts - shares).max(initial=0) <= bound + 1e-9
        first += length


def check_ranks(view: View, mix: Path, shards: Path, ranks: int, micro: int, steps: int) -> None:
    """However many ranks share the sequences of a step, and cut them into micro-batches."""
    global_batch, read = ranks * micro * steps, {}
    for rank in range(ranks):
        sizes = {"global_batch": global_batch, "micro_batch": micro, "rank": rank, "world_size": ranks}
        own = pretok.stream.open(shards, mix)
        for number, batch in enumerate(PositionSampler(len(own), position=1, **sizes)):
            step = {(position - 1) // global_batch for position in batch}
            assert step == {number // steps}
            read |= dict(zip(batch, own.batch(batch).tolist(), strict=True))
    end = 1 + (len(view) - 1) // global_batch * global_batch
    assert read == dict(enumerate(view[1:end].tolist(), 1))


def check_disclosed(shards: Path, mix: Path, model: Model) -> None:
    """How often each token was the input of a prediction; of a packed sequence all its tokens count. Of a source with
    classes document by document, as ledgers ask for it."""
    extent, view = read_mix(load_manifest(shards), mix), pretok.stream.open(shards, mix)
    for name, reading in extent.sources.items():
        expected = np.zeros(model.ends[name][-1], np.int64)
        for position in range(len(view)):
            entry, epoch, sequence = view.origin(position)
            if model.source[entry] != name:
                continue
            start = view.cut(entry, epoch, sequence) + sequence * view.seq_len
            read = model.bins[entry][sequence] if model.packed else range(start, start + view.seq_len)
            expected[[model.places[entry][n][1] for n in read]] += 1
        bounds = np.array(model.ends[name])
        if "short" in model.tapes:
            expected = np.add.reduceat(expected, bounds[:-1])
        else:
            bounds = np.arange(len(expected) + 1)
        np.testing.assert_array_equal(reading.tokens(bounds, 0), expected)


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
