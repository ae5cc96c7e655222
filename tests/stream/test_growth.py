"""Mixes that go on after their sources grew, against a plain model: what came is an entry of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixing import best_fit, cut_of, request, write_ledgers
from support import EOD, make_shards

import pretok.stream
from pretok.base.errors import MismatchError
from pretok.disclosure.read import read_mix
from pretok.shards.manifest import load_manifest
from pretok.stream import View, audit, same_until
from pretok.stream.continued import beginning
from pretok.stream.loader import PositionSampler
from pretok.stream.mix_file import Mix, MixSource, load_mix
from pretok.stream.mix_job import run_mix
from pretok.stream.order import cut, permute, round_keys
from train.config import TrainConfig
from train.evaluate import validation_sources

Documents = dict[str, list[list[int]]]


def draws(
    entry: MixSource, count: int, seed: int, seq_len: int, fixed: bool
) -> Iterator[tuple[int, int, int]]:
    """(epoch, sequence, first token of its tape) of each draw of an entry; of a packed one the token says nothing."""
    size = entry.sequences
    for epoch in range(-(-count // max(size, 1))):
        keys = np.broadcast_to(round_keys(seed, entry.name, epoch), (size, 6))
        order = permute(np.arange(size), np.full(size, size), keys).tolist()
        moved = not fixed and max(entry.tokens - 1, 0) // seq_len > 1
        begin = cut(seed, entry.name, epoch, seq_len) if moved else 0
        for number in order[: count - epoch * size]:
            yield epoch, number, begin + number * seq_len


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
    """What a mix weighs, written plainly. texts: of each source; ends: where its documents end; short: of what began at
    a token of `a` up to how many tokens documents are in the class; tapes: tokens of each entry, and places: the number
    of each among those of its source; bins: of each packed sequence its tokens on the tape."""

    def __init__(self, seq_len: int, packed: bool) -> None:
        self.seq_len, self.packed = seq_len, packed
        self.texts: Documents = {}
        self.ends: dict[str, list[int]] = {}
        self.short: dict[int, int] = {}

    def append(self, more: Documents) -> None:
        for name, texts in more.items():
            self.texts.setdefault(name, []).extend(texts)
            for text in texts:
                ends = self.ends.setdefault(name, [0])
                ends.append(ends[-1] + len(text) + 1)

    def take(self, mix: Mix, most: int | None) -> None:
        """The entries of a mix: together all documents of their sources. most: of so many tokens those of `a` that came
        now are short, None: there are no classes."""
        self.tapes: dict[str, list[int]] = {}
        self.places: dict[str, list[tuple[int, int]]] = {}
        self.bins: dict[str, list[list[int]]] = {}
        self.source = {entry.name: entry.held_in for entry in mix.sources}
        seen = set()
        for source in dict.fromkeys(self.source.values()):
            mine = [entry for entry in mix.sources if entry.held_in == source]
            begins = sorted({entry.begin for entry in mine})
            for begin, end in pairwise([*begins, self.ends[source][-1]]):
                short = self.short.setdefault(begin, most) if source == "a" and most is not None else None
                for number, (first, after) in enumerate(pairwise(self.ends[source])):
                    if begin <= first < end:
                        asked = "short" if short is not None and after - first <= short else source
                        (entry,) = (one for one in mine if (one.pool, one.begin) == (asked, begin))
                        self.tapes.setdefault(entry.name, []).extend([*self.texts[source][number], EOD])
                        places = self.places.setdefault(entry.name, [])
                        places += [(number + 1, token) for token in range(first, after)]
                        seen.add((source, number))
        assert len(seen) == sum(len(self.texts[source]) for source in set(self.source.values()))
        for name, places in self.places.items() if self.packed else ():
            lengths = np.unique([document for document, _ in places], return_counts=True)[1].tolist()
            begins = np.cumsum([0, *lengths])
            self.bins[name] = [
                [int(begins[n]) + token for n, first, size in one for token in range(first, first + size)]
                for one in best_fit(lengths, self.seq_len + 1)
            ]
        for entry in mix.sources:
            tokens = len(self.tapes[entry.name])
            fixed = max(tokens - 1, 0) // self.seq_len
            size = fixed if mix.cuts == "fixed" or fixed < 2 else (tokens - self.seq_len) // self.seq_len
            size = len(self.bins[entry.name]) if self.packed else size
            assert (entry.tokens, entry.sequences) == (tokens, size)


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
    model.append(texts)
    options = {"seq_len": seq_len, "seed": seed, "max_epochs": 1000, "split": split}
    table = {"classes": {"short": "a where tokens <= 9"}} if classes else {}
    weights = "a=0.25,short=0.25,b=0.5" if classes else "a=0.5,b=0.5"
    wish = request(f"{30 * seq_len}:{weights}", pack="best-fit" if packed else "none", **table, **options)
    run_mix(shards, folder / "0.json", wish)
    view = pretok.stream.open(shards, folder / "0.json")
    model.take(view.mix, 9 if classes else None)
    for number, (more, share, length, weight, most) in enumerate(history, 1):
        if more:
            shards = grow(folder / str(number), shards, more, split)
            write_ledgers(shards)
            model.append(more)
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
        kept = {begin for entry in after.sources if entry.held_in == "a" for begin in [entry.begin]}
        model.short = {begin: short for begin, short in model.short.items() if begin in kept}
        model.take(view.mix, most if classes else None)
        shares = {"a": 1.0} if weight == 0 else {"a": weight / 4, "b": 1 - weight / 4}
        for name, quota in zip(view.mix.pools, view.mix.stages[-1], strict=True) if not packed else ():
            assert abs(quota - shares.get(name, 0) * sum(view.mix.stages[-1])) < 1
    check(view, model, seed, fixed)
    check_rounds(view)
    check_ranks(view, folder / f"{number}.json", shards, *world)
    check_disclosed(shards, folder / f"{number}.json", model)


def check_rounds(view: View) -> None:
    """No sequence comes a second time before every other of its source came once, appended ones included. What was
    appended counts as read as often as all there was before had been, but for an epoch that had just ended."""
    for pool in view.mix.pools.values():
        entries = {
            view.mix.sources[n].name: view.mix.sources[n] for n in pool if view.mix.sources[n].sequences
        }
        counts: dict[tuple[str, int], int] = {}
        levels: Counter[int] = Counter()  # how many sequences were read so often
        first = 0
        for stage, length in enumerate(view.mix.lengths):
            missed = min(levels) - (len(levels) == 1 and min(levels) > 0) if levels else 0
            new = [
                (one.name, n) for one in entries.values() if one.stage == stage for n in range(one.sequences)
            ]
            counts |= dict.fromkeys(new, missed)
            levels.update({missed: len(new)} if new else {})
            for position in range(first, first + length):
                name, _, sequence = view.origin(position)
                if (one := (name, sequence)) in counts:
                    levels += Counter({counts[one]: -1, counts[one] + 1: 1})  # what is at 0 goes
                    counts[one] += 1
                    assert max(levels) - min(levels) <= 1
            first += length


def check(view: View, model: Model, seed: int, fixed: bool) -> None:
    origins = [view.origin(position) for position in range(len(view))]
    everything = view[:]
    check_shares(view, [name for name, _, _ in origins])
    for number, entry in enumerate(view.mix.sources):
        name = entry.name
        mine = [position for position, origin in enumerate(origins) if origin[0] == name]
        tape, last = model.tapes[name], view.seq_len + 1
        expected = list(draws(entry, len(mine), seed, view.seq_len, fixed))
        tokens = [
            model.bins[name][sequence] if model.packed else range(start, start + last)
            for _, sequence, start in expected
        ]
        assert [origins[position][1:] for position in mine] == [one[:2] for one in expected]
        assert len({one[:2] for one in expected}) == len(expected)  # no repeat before an epoch ends
        assert audit.drawn(view, name, 0, len(mine)).tolist() == [one[1] for one in expected]
        learned = [0]
        for position, one in zip(mine, tokens, strict=True):
            ids = [tape[n] for n in one] + [EOD] * (last - len(one))
            assert everything[position].tolist() == ids
            learned.append(learned[-1] + sum(not (a == b == EOD) for a, b in pairwise(ids)))
        whole = (
            len(mine) // max(entry.sequences, 1) * entry.sequences
        )  # behind a whole epoch the figures are exact
        for drawn in (whole, *([] if model.packed else [len(mine)])):
            assert view.mix.learned_by(mine[drawn - 1] + 1 if drawn else 0)[number] == learned[drawn]
        end = model.ends[entry.held_in][-1]
        for low, high in ((0, end), (3, 4), (end // 2, end - 1)):
            found = [
                [position, epoch, sequence]
                for position, one, (epoch, sequence, _) in zip(mine, tokens, expected, strict=True)
                if any(low <= model.places[name][n][1] < high for n in one)
            ]
            assert audit.positions(view, name, low, high).tolist() == found


def check_shares(view: View, names: list[str]) -> None:
    """At every prefix of every stage."""
    first = 0
    pools = [name.partition("+")[0] for name in names]
    for quotas, length in zip(view.mix.stages, view.mix.lengths, strict=True):
        asked, total = sum(quota > 0 for quota in quotas), sum(quotas)
        for pool, quota in zip(view.mix.pools, quotas, strict=True):
            counts = np.cumsum([name == pool for name in pools[first : first + length]])
            shares = quota / total * np.arange(1, length + 1)
            bound = 0.5 + quota / total * asked / 2 if quota else 0
            assert bound <= 2
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
            start = cut_of(view, entry, epoch) + sequence * view.seq_len
            read = model.bins[entry][sequence] if model.packed else range(start, start + view.seq_len)
            expected[[model.places[entry][n][1] for n in read]] += 1
        bounds = np.array(model.ends[name])
        if "short" in model.tapes:
            expected = np.add.reduceat(expected, bounds[:-1])
        else:
            bounds = np.arange(len(expected) + 1)
        np.testing.assert_array_equal(reading.tokens(bounds), expected)


def test_an_epoch_goes_on_over_what_was_appended(tmp_path: Path) -> None:
    """The rest of the epoch and the new sequences come in one order, and later epochs read all as one text."""
    shards = grow(tmp_path / "0", None, {"it": [list(range(1, 401))]}, "train")
    run_mix(shards, tmp_path / "0.json", request("200:it=1", seq_len=5))
    grown = grow(tmp_path / "1", shards, {"it": [list(range(401, 601))]}, "train")
    after = beginning(load_manifest(grown), tmp_path / "0.json", 40)
    run_mix(grown, tmp_path / "1.json", request("390:it=1", seq_len=5, after=after))
    view = pretok.stream.open(grown, tmp_path / "1.json")
    n, m = 79, 39  # of 401 and 201 tokens, cut anew
    assert [(one.name, one.sequences) for one in view.mix.sources] == [("it", n), ("it+1", m)]
    epoch = [view.origin(position) for position in range(n + m)]
    assert {one[1] for one in epoch} == {0}
    assert len(set(epoch)) == n + m
    new = [name == "it+1" for name, *_ in epoch[40:]]
    assert np.abs(np.cumsum(new) - m / (n + m - 40) * np.arange(1, n + m - 39)).max() <= 1.5


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
