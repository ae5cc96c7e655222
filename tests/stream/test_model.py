"""Mixes of everything at once, drawn at random, against a plain model of docs/mix.md: which token stands where.

Several sources, of text and of conversations, one of them in classes; stages by weight, or sources repeated; cut or
packed; continued, also after an append; materialized. Every token of text has an id of its own.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixing import best_fit, request, write_ledgers
from support import EOD, make_shards

import pretok.stream
from pretok.base.console import Console
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.config import make_mix
from pretok.documents.disclosure.read import read_mix
from pretok.shards.manifest import load_manifest
from pretok.stream import View, audit, pack, same_until
from pretok.stream.continued import beginning
from pretok.stream.materialize import run_materialize
from pretok.stream.mix_file import Mix
from pretok.stream.mix_job import MixRequest, run_mix
from pretok.tokenizer.kinds import CHAT_KINDS, LEARNED

CHATS = {"b": CHAT_KINDS.index("answer"), "c": CHAT_KINDS.index("template")}
"""Sources of conversations, and of which kind their EOD is."""
NAMES = "abcd"
"""`a` is text, and may have a class of its short documents; `d` is text that comes later, if at all."""
POOLS = (*NAMES, "short")
WINDOW = 4
"""Documents that are packed together."""
Place = tuple[int, int]
"""A token of a source: number of its document, and of the token in it."""
Shape = tuple[Mapping[str, Sequence[int]], float, list[tuple[int, list[int]]], int]
"""A mix that goes on: lengths of documents that are appended, at which part of the mix before it begins, its stages
(sequences, and weights of the pools) and up to how many tokens a new document is short."""


class Model:
    """Documents, and what a mix makes of them.

    texts: by source, the ids of each document, with EOD. short: whether each document of `a` is in the class. bins: by
    entry, the tokens of each packed sequence.
    """

    def __init__(
        self, seq_len: int, seed: int, packed: bool, fixed: bool, learn: Mapping[str, Sequence[str]]
    ):
        self.seq_len, self.seed, self.packed, self.fixed, self.learn = seq_len, seed, packed, fixed, learn
        self.texts: dict[str, list[list[int]]] = {}
        self.short: dict[int, bool] = {}
        self.ids = 0

    def append(self, lengths: Mapping[str, Sequence[int]]) -> dict[str, list[list[int]]]:
        """Add documents, and return them without EOD. An id gives its kind in a conversation, mostly three in a row."""
        added: dict[str, list[list[int]]] = {}
        for name, sizes in lengths.items():
            for size in sizes:
                text = [7 * n + n // 3 % 7 + 1 for n in range(self.ids, self.ids + size)]
                self.ids += size
                added.setdefault(name, []).append(text)
                self.texts.setdefault(name, []).append([*text, EOD])
        return added

    def classify(self, most: int, since: int = 0) -> None:
        """Put documents of `a` with up to `most` tokens into the class, from number `since` on."""
        self.short |= {n: len(text) <= most for n, text in enumerate(self.texts["a"]) if n >= since}

    def take(self, mix: Mix, divided: bool) -> None:
        """Divide the documents among the entries of a mix."""
        self.mix, self.tapes, self.bins = mix, {one.name: list[Place]() for one in mix.sources}, {}
        for source in {one.held_in for one in mix.sources}:
            begins = sorted({one.begin for one in mix.sources if one.held_in == source})
            at = 0
            for number, text in enumerate(self.texts[source]):
                pool = "short" if divided and source == "a" and self.short[number] else source
                begin = max(begin for begin in begins if begin <= at)
                (entry,) = (e for e in mix.sources if (e.held_in, e.pool, e.begin) == (source, pool, begin))
                self.tapes[entry.name] += [(number, token) for token in range(len(text))]
                at += len(text)
        self.sizes = {}
        for entry in mix.sources:
            tape = self.tapes[entry.name]
            if self.packed:
                sizes = list(Counter(document for document, _ in tape).values())
                firsts = np.cumsum([0, *sizes]).tolist()
                self.bins[entry.name] = [
                    [
                        tape[firsts[window + n] + token]
                        for n, at, size in one
                        for token in range(at, at + size)
                    ]
                    for window in range(0, len(sizes), WINDOW)
                    for one in best_fit(sizes[window : window + WINDOW], self.seq_len + 1)
                    if len(tape) > 1  # of one token nothing is predicted
                ]
                self.sizes[entry.name] = len(self.bins[entry.name])
            else:
                whole = max(len(tape) - 1, 0) // self.seq_len
                moved = not self.fixed and whole > 1
                self.sizes[entry.name] = (len(tape) - self.seq_len) // self.seq_len if moved else whole
                assert len(tape) - self.sizes[entry.name] * self.seq_len < 2 * self.seq_len + 1
            assert (entry.tokens, entry.sequences) == (len(tape), self.sizes[entry.name])

    def row(self, name: str, epoch: int, number: int) -> list[Place]:
        """Return the tokens of a sequence without padding."""
        if self.packed:
            return self.bins[name][number]
        tape, cut = self.tapes[name], 0
        if not self.fixed and (len(tape) - 1) // self.seq_len > 1:
            drawn = hashlib.blake2b(f"{self.seed}\0{name}\0{epoch}\0cut".encode(), digest_size=8)
            cut = int.from_bytes(drawn.digest(), "little") % self.seq_len
        return tape[cut + number * self.seq_len :][: self.seq_len + 1]

    def order(self) -> Iterator[tuple[str, int, int]]:
        """Yield (entry, epoch, sequence) of each position."""
        drawn = Counter[str]()
        for stage in self.mix.stages:
            for number in merged(stage.quotas)[: stage.positions]:
                name = self.mix.sources[number].name
                epoch, k = divmod(drawn[name], self.sizes[name])
                drawn[name] += 1
                yield name, epoch, shuffled(self.seed, name, epoch, self.sizes[name])[k]

    def sequence(self, name: str, row: Sequence[Place]) -> tuple[list[int], list[bool]]:
        """Return the ids with padding, and which targets are learned."""
        (source,) = (one.held_in for one in self.mix.sources if one.name == name)
        ids = [self.texts[source][document][token] for document, token in row]
        ids += [EOD] * (self.seq_len + 1 - len(ids))
        learned = []
        for before, token in pairwise(ids):
            kind = CHAT_KINDS[CHATS.get(source, 0) if token == EOD else (token - 1) % 7]
            known = source not in CHATS or kind in self.learn.get(source, LEARNED)
            learned.append(known and not before == token == EOD)
        return ids, learned


def merged(quotas: Sequence[int]) -> list[int]:
    """Return the source of each position: the k-th of q among N is due at (k + 1/2) N / q, and ties go to the first."""
    due = [(Fraction(2 * k + 1, 2 * q), source) for source, q in enumerate(quotas) for k in range(q)]
    return [source for _, source in sorted(due)]


def shuffled(seed: int, name: str, epoch: int, size: int) -> list[int]:
    """Return the order of the sequences of an epoch: a Feistel network of six rounds on the smallest power of two,
    repeated until the image is one of them."""
    keys = struct.unpack("<6Q", hashlib.blake2b(f"{seed}\0{name}\0{epoch}".encode(), digest_size=48).digest())
    bits = max((size - 1).bit_length(), 2)
    low, found = bits // 2, []
    for value in range(size):
        while True:
            left, right = value >> low, value % (1 << low)
            for number, key in enumerate(keys):
                other = right if number % 2 else left
                mixed = (other ^ key) * 0xFF51AFD7ED558CCD % 2**64
                mixed = (mixed ^ mixed >> 32) * 0xC4CEB9FE1A85EC53 % 2**64
                if number % 2:
                    left ^= mixed >> 64 - (bits - low)
                else:
                    right ^= mixed >> 64 - low
            value = left << low | right
            if value < size:
                break
        found.append(value)
    return found


def some_of_old(weights: list[int]) -> list[int]:
    """Give `a` a weight if neither of the sources that always exist has one."""
    return weights if any(weights[:2]) else [1, *weights[1:]]


lengths = st.lists(st.integers(0, 25), min_size=1, max_size=4)
stages = st.lists(
    st.tuples(st.integers(1, 40), st.lists(st.integers(0, 4), min_size=5, max_size=5).map(some_of_old)),
    min_size=1, max_size=2,
)  # fmt: skip
some_kinds = st.lists(st.sampled_from(CHAT_KINDS), min_size=1, max_size=7, unique=True)
shapes = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), lengths, max_size=3),
        st.floats(0, 1),
        stages,
        st.integers(0, 30),
    ),
    max_size=2,
)


@pytest.fixture(autouse=True, scope="module")
def windows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "DOCUMENTS", WINDOW)
        patch.setattr(pack, "MOST_DOCUMENTS", WINDOW)
        yield


@settings(max_examples=300 if settings().max_examples > 100 else 15)
@given(
    st.fixed_dictionaries({"a": lengths, "b": lengths}, optional={"c": lengths}), stages,
    st.none() | st.lists(st.integers(1, 7), min_size=2, max_size=2), shapes, st.integers(2, 9), st.integers(0, 9),
    st.sampled_from(("train", "val")), st.booleans(), st.booleans(), st.booleans(),
    st.fixed_dictionaries({}, optional={"b": some_kinds}),
)  # fmt: skip
def test_everything_together(
    tmp_path_factory: pytest.TempPathFactory,
    first: dict[str, list[int]],
    asked: list[tuple[int, list[int]]],
    repeat: list[int] | None,
    history: list[Shape],
    seq_len: int,
    seed: int,
    split: str,
    packed: bool,
    divided: bool,
    materialized: bool,
    learn: dict[str, list[str]],
) -> None:
    folder = tmp_path_factory.mktemp("model")
    model = Model(seq_len, seed, packed, split == "val", learn)
    # At least two sequences of each source, and of what is left of `a` beside its class.
    added = model.append(
        {name: [*sizes, 20] for name, sizes in first.items()} | {"a": [*first["a"], 20, 7, 8, 7]}
    )
    model.classify(9)
    shards = grow(folder / "0", None, added, split)
    options: dict[str, Any] = {"seq_len": seq_len, "seed": seed, "max_epochs": 1000}
    options |= {"pack": "best-fit" if packed else "none"}
    options |= {"classes": {"short": "a where tokens <= 9"}} if divided else {}
    if repeat:
        table = make_mix({**options, "repeat": dict(zip("ab", repeat, strict=True))}, "test")
        wish = MixRequest(table, split, None, learn)
    else:
        wish = replace(request(*spelled(asked, model, divided), split=split, **options), learn=learn)
    run_mix(shards, folder / "0.json", wish)
    view = pretok.stream.open(shards, folder / "0.json")
    model.take(view.mix, divided)
    if repeat:
        times = dict(zip("ab", repeat, strict=True))
        for one, quota in zip(view.mix.sources, view.mix.stages[0].quotas, strict=True):
            assert abs(quota - times.get(one.name, 1) * one.sequences) <= 1
    del options["pack"]  # a mix that goes on packs if the one before did
    for number, (lengths, share, asked, most) in enumerate(history, 1):
        before, known = view, len(model.texts["a"])
        if lengths:
            shards = grow(folder / str(number), shards, model.append(lengths), split)
        at = 1 + int(share * (len(view) - 1))
        after = beginning(load_manifest(shards), folder / f"{number - 1}.json", at)
        # Documents keep their class, unless what they came with was not read.
        ends = np.cumsum([0, *(len(text) for text in model.texts["a"])])
        begins = [one.begin for one in view.mix.sources if one.held_in == "a"]
        dropped = [
            begin
            for begin in begins
            if begin not in {one.begin for one in after.sources if one.held_in == "a"}
        ]
        since = min([known, *(int(np.searchsorted(ends, begin)) for begin in dropped)])
        if not any(one.held_in == "a" for one in after.sources):
            # A class that is made from the beginning must have a sequence, and so must the rest.
            most, since = min(max(most, 9), 20), 0
        model.classify(most, since)
        if divided:
            options |= {"classes": {"short": f"a where tokens <= {most}"}}
        wish = request(*spelled(asked, model, divided), split=split, after=after, **options)
        run_mix(shards, folder / f"{number}.json", replace(wish, learn=learn))
        view = pretok.stream.open(shards, folder / f"{number}.json")
        same = same_until(before.mix, view.mix)
        assert at <= same == same_until(view.mix, before.mix)
        np.testing.assert_array_equal(view[:same], before[:same])
        model.take(view.mix, divided)
        if not packed:
            check_quotas(view.mix, asked, model, divided)
    path = folder / f"{len(history)}.json"
    check(view, model)
    check_disclosed(shards, path, view, model)
    if materialized:
        with StopFlag() as stop, Engine(0, None, stop) as engine:
            run_materialize(shards, path, folder / "out", engine, Console(), shard_bytes=500)
        written = pretok.stream.open(folder / "out")
        assert written.fingerprint == view.fingerprint
        for one, other in zip(
            written.batch(range(len(view)), loss=True), view.batch(range(len(view)), loss=True), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def grow(folder: Path, since: Path | None, more: dict[str, list[list[int]]], split: str) -> Path:
    nothing: dict[str, list[list[int]]] = {name: [] for name in more}
    train, val = (more, nothing) if split == "train" else (nothing, more)
    shards = make_shards(
        folder, train, val=val, since=since, documents_per_shard=2, vocab_size=60_000, chats=CHATS
    )
    write_ledgers(shards)
    return shards


def weights_of(weights: Sequence[int], model: Model, divided: bool) -> dict[str, Fraction]:
    """Return the shares of pools. One that came later may be less than one sequence, and gets none."""
    tokens = {name: sum(map(len, texts)) for name, texts in model.texts.items()} | {"short": 30 * divided}
    given = {name: weight for name, weight in zip(POOLS, weights, strict=True) if tokens.get(name, 0) > 20}
    return {name: Fraction(weight, sum(given.values())) for name, weight in given.items() if weight}


def spelled(stages: list[tuple[int, list[int]]], model: Model, divided: bool) -> list[str]:
    """Return the stages as a command takes them."""
    shares = [weights_of(weights, model, divided).items() for _, weights in stages]
    texts = [",".join(f"{name}={weight}" for name, weight in some) for some in shares]
    return [f"{count * model.seq_len}:{text}" for (count, _), text in zip(stages, texts, strict=True)]


def check_quotas(mix: Mix, asked: list[tuple[int, list[int]]], model: Model, divided: bool) -> None:
    """Check that a stage has the requested sequences, and each pool its share of them within one."""
    for stage, (count, weights) in zip(mix.stages[-len(asked) :], asked, strict=True):
        shares = weights_of(weights, model, divided)
        assert sum(stage.quotas) == count
        for name, numbers in mix.pools.items():
            quota = sum(stage.quotas[number] for number in numbers)
            assert abs(quota - count * shares.get(name, 0)) < 1


def check(view: View, model: Model) -> None:
    """Check every position, prefix and mask, and which positions read given tokens."""
    expected = list(model.order())
    rows = [model.row(*one) for one in expected]
    assert [view.origin(position) for position in range(len(view))] == expected
    sequences = [model.sequence(one[0], row) for one, row in zip(expected, rows, strict=True)]
    shuffled = np.random.default_rng(0).permutation(len(view))
    for positions in (np.arange(len(view)), shuffled):
        tokens, masks = view.batch(positions, loss=True)
        assert tokens.tolist() == [sequences[position][0] for position in positions]
        assert masks.tolist() == [sequences[position][1] for position in positions]
    counts = Counter[str]()
    for position, (name, _, _) in enumerate(expected):
        assert {one: n for one, n in view.prefix_counts(position).items() if n} == counts
        counts[name] += 1
    for entry in view.mix.sources:
        texts = model.texts[entry.held_in]
        starts = np.cumsum([0, *map(len, texts)]).tolist()
        mine = [
            (position, *expected[position][1:])
            for position in range(len(view))
            if expected[position][0] == entry.name
        ]
        assert audit.drawn(view, entry.name, 0, len(mine)).tolist() == [sequence for _, _, sequence in mine]
        held = [{starts[document] + token for document, token in rows[position]} for position, _, _ in mine]
        for low, high in ((0, starts[-1]), (3, 4), (starts[-1] // 2, starts[-1] - 1)):
            found = [
                list(one)
                for one, tokens in zip(mine, held, strict=True)
                if tokens.intersection(range(low, high))
            ]
            assert audit.positions(view, entry.name, low, high).tolist() == found


def check_disclosed(shards: Path, path: Path, view: View, model: Model) -> None:
    """Check how many tokens of each document were read as inputs; in a packed sequence all count."""
    read: dict[str, Counter[int]] = {}
    for name, epoch, number in model.order():
        (source,) = (one.held_in for one in view.mix.sources if one.name == name)
        row = model.row(name, epoch, number)
        read.setdefault(source, Counter()).update(d for d, _ in (row if model.packed else row[:-1]))
    for name, reading in read_mix(load_manifest(shards), path).sources.items():
        bounds = np.cumsum([0, *map(len, model.texts[name])])
        documents = range(len(model.texts[name]))
        assert reading.tokens(bounds).tolist() == [read.get(name, Counter())[n] for n in documents]
