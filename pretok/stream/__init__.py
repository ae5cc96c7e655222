"""Streams: any position of a mix -> its tokens, from any process, without an index.

Input: a shards folder and a mix.json, or none for every sequence of every source once. Output: a `View`, a sequence
of token arrays that torch's DataLoader takes as a dataset. Opening reads two small files; shards are opened when first
read, and the number of open files is bounded. numpy, msgspec and the standard library only.

    view = pretok.stream.open("shards", "mix.json")
    view[i]                 # (seq_len + 1,) token ids at position i; view[a:b] for (b - a, seq_len + 1)
    view.batch(positions)   # (n, seq_len + 1), one call for many
    view.origin(i)          # (source, epoch, index of the sequence inside the source)
    view.positions(source, first, end)  # back: (n, 3) the positions that read some of its tokens, epoch and sequence
    view.prefix_counts(n)   # {source: sequences among the first n positions}
    view.boundaries(i)      # where documents start in the inputs view[i][:-1]
    view.loss(i)            # (seq_len,) which of the targets view[i][1:] are learned
    view.batch(positions, loss=True)  # tokens and (n, seq_len), one call for both

In this folder:

    order.py        which sequence stands where: integer arithmetic
    permutation.py  keyed permutations, by which an epoch is shuffled
    quota.py        weights -> whole sequences by source
    mix_file.py     a mix and its file
    tapes.py        where the sequences of a source lie
    learned.py      which of their tokens are learned
    members.py      which documents a class has, and where they lie
    packed.py       sequences of whole documents, by their index
    pack.py         lengths of documents -> that index
    side_file.py    sealed arrays that belong to a mix, read a block at a time
    growth.py       sources that grow while they are read
    flat_tokens.py  many shards as one array of tokens
    loader.py       the part of each batch that a rank reads
    digests.py      what was read, as one number
    continued.py    a mix that goes on with another, and how long two mixes are the same
    segments.py     which positions of which stream the steps of a run read
    classes.py      predicates over documents -> the side files of classes
    mix_job.py      the job: weights and a budget -> mix.json and its report
    materialize.py  a mix written as shards in its order
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import index
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.records import to_json
from pretok.base.tokens import Bytes, Ints, Tokens, document_starts
from pretok.shards.manifest import FILE_NAME, Manifest, Shard, load_manifest
from pretok.stream.continued import same_until
from pretok.stream.digests import data_hash, digest
from pretok.stream.flat_tokens import FlatTokens
from pretok.stream.learned import Learned, Mask
from pretok.stream.members import ClassTape, DocumentStarts, Members
from pretok.stream.mix_file import Mix, check_sources, load_mix, mixed_shards, natural_mix, parse_mix
from pretok.stream.packed import PackedTape, open_packed
from pretok.stream.side_file import FOLDER
from pretok.stream.tapes import MixedTape, Pieces, Tape, WholeSources

__all__ = ["View", "data_hash", "digest", "open", "same_until"]

AHEAD = 1024
"""Positions whose pieces are computed at once for a reader that moves forward."""
NEAR = 8
"""How many times its own length a request may lie ahead of the last one's end to count as moving forward."""


def open(
    shards: str | Path,
    mix: str | Path | None = None,
    *,
    seq_len: int | None = None,
    split: str = "train",
    source: str | None = None,
    seed: int = 0,
    manifest: str | None = None,
    learn: Mapping[str, Collection[str]] | None = None,
) -> View:
    """Open a stream over a shards folder.

    With `mix`, the path of a mix.json, everything comes from that file; `seq_len`, when given, must agree. Without,
    `seq_len` is needed and the stream is every sequence of `split` once, of `source` or of all sources in natural
    proportion, in the order that `seed` gives. Of its conversations what an assistant writes is learned, or the kinds
    that `learn` names by source.

    Shards that have grown since the mix was made are read as they were then; without a mix, as they were when they
    had the fingerprint `manifest`, where one is given.

    Raises IntegrityError (files missing or damaged), MismatchError (the mix belongs to other shards or another
    sequence length), UsageError (no seq_len, unknown source, nothing to read), TypeError (a seq_len or seed that is no
    whole number).
    """
    for name, number in (("seq_len", seq_len), ("seed", seed)):
        if number is not None and not isinstance(number, int | np.integer):
            raise TypeError(f"{name} is a whole number, not {number!r}")
    seq_len, seed = None if seq_len is None else int(seq_len), int(seed)
    now = load_manifest(Path(shards))
    if now.materialized is not None:
        return _open_materialized(now, mix, seq_len, split, source)
    if mix is None:
        if seq_len is None:
            raise UsageError("a stream without a mix needs a sequence length (seq_len)")
        then = now if manifest is None else now.as_of(manifest)
        if then is None:
            raise MismatchError(
                f"{now.folder} never had the fingerprint {manifest}; it has {now.fingerprint}"
            )
        names = then.sources if source is None else (source,)
        return View(now, natural_mix(then, split, seq_len, names, seed, learn))
    if learn is not None:
        raise UsageError(f"what is learned stands in the mix ({mix}): leave `learn` out")
    if source is not None:
        raise UsageError(f"either a mix ({mix}) or one source ({source}), not both")
    plan = load_mix(Path(mix))
    check_sources(plan, now, Path(mix))
    _check_seq_len(plan, seq_len, str(mix))
    return View(now, plan, folder=Path(mix).parent)


def _open_materialized(
    manifest: Manifest, mix: str | Path | None, seq_len: int | None, split: str, source: str | None
) -> View:
    """Shards written in mixed order: the mix is theirs, everything asked for must agree with it."""
    plan = parse_mix(manifest.materialized, manifest.folder / FILE_NAME)
    if mix is not None and (other := load_mix(Path(mix))).fingerprint != plan.fingerprint:
        raise MismatchError(
            f"{manifest.folder} holds the sequences of the mix {plan.fingerprint}, {mix} is {other.fingerprint}"
        )
    if source is not None or split != "train":
        raise UsageError(
            f"{manifest.folder} holds a mix in its order; its sources and other splits are in the shards that the "
            "mix was made of"
        )
    _check_seq_len(plan, seq_len, str(manifest.folder))
    expected = len(plan) * (plan.seq_len + 1)
    if (tokens := sum(shard.tokens for shard in manifest.shards)) != expected:
        raise IntegrityError(f"{manifest.folder} has {tokens} tokens, its mix needs {expected}")
    return View(manifest, plan, materialized=True)


def _check_seq_len(plan: Mix, seq_len: int | None, where: str) -> None:
    if seq_len not in (None, plan.seq_len):
        raise MismatchError(
            f"{where} has sequences of {plan.seq_len} tokens, not {seq_len}: leave the length out (--seq-len), or "
            f"make a mix of the other (pretok mix --seq-len {seq_len})"
        )


def _whole(numbers: Sequence[int] | Ints) -> Ints:
    """Numbers as int64. TypeError for what is cut when it becomes whole."""
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"positions are whole numbers, not {array.dtype.name}")
    return array.astype(np.int64, copy=False)


class View:
    """A stream: `len(view)` positions, each a sequence of seq_len + 1 token ids.

    seq_len, vocab_size, eod_id; bos_id: of the token that begins each document, or None; dtype: that of the shards;
    mix: the plan it follows; fingerprint: identifies the shards, the mix and the order together; manifest_fingerprint:
    identifies the shards the mix was made of; tokenizer: what the manifest says of it; materialized: whether the shards
    hold the sequences in the order of the mix; masked: whether it leaves out more than the rule of the stream does;
    removals: how often documents were removed from the shards before it was opened; but_for_removals: as of their
    manifest, for `same_until`. The fingerprints of a mix and of its materialized form are the same, so a run may go on
    with either. folder: of the mix's file, beside which its side files are.

    It may be forked and pickled: every process opens its own files. One thread at a time.
    """

    def __init__(
        self, manifest: Manifest, mix: Mix, materialized: bool = False, folder: Path | None = None
    ) -> None:
        self.seq_len = mix.seq_len
        self.vocab_size = manifest.tokenizer.vocab_size
        self.eod_id = manifest.tokenizer.eod_id
        self.bos_id = manifest.tokenizer.bos_id
        self.dtype = np.dtype(manifest.tokenizer.dtype).newbyteorder("<")
        self.mix = mix
        self.fingerprint = mix.fingerprint
        self.manifest_fingerprint = mix.manifest
        self.tokenizer: dict[str, Any] = to_json(manifest.tokenizer)
        self.materialized = materialized
        self.removals = len(manifest.removals)
        self.but_for_removals = manifest.but_for_removals
        self._order = mix.order()
        # Classes share the documents of a source, whose tokens have one address each.
        held = {} if materialized else mixed_shards(mix, manifest)
        shards = [shard for some in held.values() for shard in some]
        self._tokens = FlatTokens(manifest.shards if materialized else shards, self.dtype, materialized)
        # One address space for all sources, one after the other: a sequence lies inside its source.
        sizes = [sum(shard.tokens for shard in some) for some in held.values()]
        begins = dict(zip(held, np.cumsum([0, *sizes], dtype=np.int64).tolist(), strict=False))
        bases = np.array([begins.get(source.held_in, 0) for source in mix.sources], np.int64)
        self._classes: dict[int, ClassTape] = {}
        self._packed: dict[int, PackedTape] = {}
        if materialized:  # the sequences are the documents, each with its target
            self._tape: Tape = WholeSources(bases[:1], self.seq_len + 1, self.seq_len + 1)
        else:
            self._tape = WholeSources(bases, self.seq_len, self.seq_len + 1)
            self._held, self._bases = held, bases
            self._starts = DocumentStarts(shards, self.dtype)
            self._open_tapes(folder)
            if self._classes or self._packed:
                self._tape = MixedTape(self._tape, {**self._classes, **self._packed}, len(bases))
        self._learned = self._open_learned(manifest, shards)
        self.masked = self._learned is not None
        self._ahead = Pieces(*[np.empty(0, np.int64)] * 4)  # of positions _ahead_start to _ahead_end - 1
        self._ahead_start = self._ahead_end = self._expected = 0

    def _open_tapes(self, folder: Path | None) -> None:
        """The tape of each entry of the mix that is a class, a rest or packed, by its number."""
        first = dict(zip(self._held, accumulate(map(len, self._held.values()), initial=0), strict=False))
        for number, source in enumerate(self.mix.sources):
            if not source.members and not source.packed:
                continue
            if folder is None:
                kind = "packed" if source.packed else "a class"
                raise UsageError(
                    f"{source.name} is {kind}, whose side files lie beside its mix: name the mix"
                )
            side = folder / FOLDER
            shards = self._held[source.held_in]
            if source.packed:
                at = first[source.held_in]
                self._packed[number] = open_packed(side, source, shards, at, self._starts, self.seq_len)
            if not source.members:
                continue
            parts: list[Members] = []
            for name in source.members:
                seen = sum(part.shards for part in parts)
                parts.append(Members(side, name, shards[seen:], first[source.held_in] + seen, self._starts))
            self._classes[number] = tape = ClassTape(parts, self.seq_len)
            seen = sum(part.shards for part in parts)
            if (tape.tokens, seen) != (source.tokens, len(shards)):
                raise IntegrityError(
                    f"{parts[0].path} has {tape.tokens} tokens in {seen} shards, the mix says {source.tokens} of "
                    f"{source.name} in {len(shards)}: make the mix again with pretok mix"
                )

    def _open_learned(self, manifest: Manifest, shards: Sequence[Shard]) -> Learned | None:
        """Which tokens are learned; None where all are."""
        if not any(source.learn for source in self.mix.sources):
            return None
        if self.materialized:
            return Learned(manifest.shards, [source.learn for source in self.mix.sources])
        learn = {source.held_in: source.learn for source in self.mix.sources}
        for name, kinds in learn.items():
            if kinds and name not in manifest.conversations:
                raise IntegrityError(
                    f"the mix says what is learned of {name}, and {manifest.folder} holds no conversations of it: make "
                    "the mix again with pretok mix"
                )
        return Learned(shards, list(learn.values()), [list(learn).index(shard.source) for shard in shards])

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.mix.sources)
        return (
            f"<pretok.stream.View: {len(self)} sequences of {self.seq_len} + 1 tokens of {names} as "
            f"{self.dtype.name}, fingerprint {self.fingerprint}>"
        )

    def __len__(self) -> int:
        return self._order.length

    def __getitem__(self, position: int | slice) -> Tokens:
        """Token ids in the dtype of the shards at one position: (seq_len + 1,), or at those of a slice:
        (n, seq_len + 1). Negative positions count back. IndexError where there is no such position."""
        try:
            at = range(len(self))[position]
        except IndexError:
            raise IndexError(f"position {position}; the stream has {len(self)}") from None
        if isinstance(at, range):
            return self._read(np.array(at, np.int64), self.dtype)
        tokens: Tokens = self._read(np.array([at], np.int64), self.dtype)[0]
        return tokens

    def __iter__(self) -> Iterator[Tokens]:
        return (self[position] for position in range(len(self)))

    @overload
    def batch(
        self, positions: Sequence[int] | Ints, dtype: npt.DTypeLike = ..., loss: Literal[False] = ...
    ) -> npt.NDArray[Any]: ...

    @overload
    def batch(
        self, positions: Sequence[int] | Ints, dtype: npt.DTypeLike = ..., *, loss: Literal[True]
    ) -> tuple[npt.NDArray[Any], Mask]: ...

    def batch(
        self, positions: Sequence[int] | Ints, dtype: npt.DTypeLike = np.int64, loss: bool = False
    ) -> npt.NDArray[Any] | tuple[npt.NDArray[Any], Mask]:
        """Token ids at (n,) positions in any order: (n, seq_len + 1) of `dtype`; with `loss` also which targets are
        learned, (n, seq_len) bool, see `loss`. IndexError outside 0..len-1, TypeError for positions that are no whole
        numbers, UsageError for a dtype that does not hold every id."""
        kind = np.dtype(dtype)
        if kind.kind not in "iu" or np.iinfo(kind).max < self.vocab_size - 1:
            raise UsageError(
                f"{kind.name} does not hold ids up to {self.vocab_size - 1}; take int64 or {self.dtype.name}"
            )
        at = self._checked(positions)
        tokens = self._read(at, kind)
        return (tokens, self._loss(at, tokens)) if loss else tokens

    def loss(self, position: int) -> Mask:
        """(seq_len,) bool: which of the targets at one position, `view[position][1:]`, are learned. All but an EOD
        whose input is EOD (the rule of the stream), and of conversations the kinds that the mix names."""
        learned: Mask = self.batch([position], self.dtype, loss=True)[1][0]
        return learned

    def _loss(self, positions: Ints, tokens: npt.NDArray[Any]) -> Mask:
        ends = tokens == self.eod_id
        if self._learned is None:
            learned = np.ones((len(positions), self.seq_len), np.bool_)
        else:
            chosen = self._order.locate(positions)[0] if self.materialized and len(positions) else None
            rows, width = tokens.shape
            learned = self._learned.mask(self._pieces(positions), rows, width, chosen)[:, 1:]
        found: Mask = learned & ~(ends[:, 1:] & ends[:, :-1])
        return found

    def kinds(self, positions: Sequence[int] | Ints) -> Bytes:
        """(n, seq_len + 1) uint8: of which kind each token at (n,) positions of a masked stream is, in the numbers of
        `base.kinds`. What fills a sequence up is as what is before it."""
        assert self._learned is not None
        at = self._checked(positions)
        return self._learned.kinds(self._pieces(at), len(at), self.seq_len + 1)

    def __getitems__(self, positions: Sequence[int]) -> npt.NDArray[Any]:
        """`batch` by the name torch's DataLoader calls; use `collate_fn=torch.from_numpy`, or `loader.Narrow` where
        processes read."""
        return self.batch(positions)

    def origin(self, position: int) -> tuple[str, int, int]:
        """(source, epoch, index of the sequence inside the source) of one position."""
        source, epoch, number = self._order.locate(self._checked([position]))
        return self._order.names[source[0]], int(epoch[0]), int(number[0])

    def boundaries(self, position: int) -> Ints:
        """(documents,) where documents start in the inputs at one position, `view[position][:-1]`, 0 first: one may go
        on there from another sequence. `loader.document_boundaries` says it of a batch, for attention kernels."""
        return np.flatnonzero(document_starts(self[position][:-1], self.eod_id))

    def shard(self, position: int, token: int = 0) -> Path:
        """The file that holds a token, counted from 0, of the sequence at one position."""
        pieces = self._pieces(self._checked([position]))
        at = np.flatnonzero((pieces.column <= token) & (token < pieces.column + pieces.length))
        piece = int(at[0]) if len(at) else 0  # what no piece fills belongs to its sequence
        return self._tokens.path(int(pieces.address[piece] + max(token - pieces.column[piece], 0)))

    def positions(self, source: str, first: int, end: int) -> Ints:
        """Inverse of `origin`, by arithmetic: which positions hold any of the tokens `first` to `end - 1` of a source.

        Returns (n, 3), in the order of the stream: position, epoch, index of the sequence inside the source. A token
        that is the last of a sequence is only predicted there. UsageError for an unknown source, IndexError for tokens
        that it does not have.
        """
        number = self._number(source)
        held = self.mix.sources[number]
        if not 0 <= index(first) <= index(end) <= held.tokens:
            raise IndexError(f"tokens {first} to {end}; source {source} has {held.tokens}")
        if number in self._packed:
            return self._packed_positions(number, first, end)
        found = [np.empty((0, 3), np.int64)]
        for epoch in range(self._order.epochs(number) if first < end else 0):
            for start, stop, token in self._order.parts(number, epoch):
                low = start + max(first - token - 1, 0) // self.seq_len
                high = min(start + (end - 1 - token) // self.seq_len + 1, stop)
                sequences = np.arange(low, high)
                at = self._order.positions(number, epoch, sequences)
                found.append(np.column_stack([at, np.full_like(at, epoch), sequences])[at >= 0])
        rows = np.concatenate(found)
        return rows[np.argsort(rows[:, 0])]

    def _packed_positions(self, number: int, first: int, end: int) -> Ints:
        """As `positions`, of a packed source by its number."""
        ranges = [(int(self._bases[number]) + first, int(self._bases[number]) + end)]
        if number in self._classes:
            pieces = self._classes[number].between(np.array([first]), np.array([end]))
            ranges = list(
                zip(pieces.address.tolist(), (pieces.address + pieces.length).tolist(), strict=True)
            )
        some = [self._packed[number].sequences(*one) for one in ranges]
        having = np.unique(np.concatenate([np.empty(0, np.int64), *some]))
        found = [np.empty((0, 3), np.int64)]
        for epoch in range(self._order.epochs(number) if len(having) else 0):
            size = self._order.parts(number, epoch)[-1][1]
            sequences = having[having < size]  # the others came later
            at = self._order.positions(number, epoch, sequences)
            found.append(np.column_stack([at, np.full_like(at, epoch), sequences])[at >= 0])
        rows = np.concatenate(found)
        return rows[np.argsort(rows[:, 0])]

    def stretches(self, source: str, first: int, end: int, times: npt.NDArray[Any]) -> Ints:
        """(n, 3): where what is packed of `source` begins and ends in it, of a class in the source whose documents it
        takes, in all sequences with any of the documents `first` to `end - 1` of the split; and how often each was
        read. times: that of every sequence; what was not read is left out."""
        number = self._number(source)
        base, tape = int(self._bases[number]), self._packed[number]
        near = tape.near(first, end)
        near = near[times[near] > 0]
        pieces = tape.pieces(near, near, near)
        begins = pieces.address - base
        return np.column_stack([begins, begins + pieces.length, times[near[pieces.row]].astype(np.int64)])

    def entries(self, source: str) -> tuple[str, ...]:
        """What the mix takes of the documents of a source: the source by its name, or its classes and its rest."""
        return tuple(entry.name for entry in self.mix.sources if entry.held_in == source)

    def before(self, name: str, documents: Sequence[int] | Ints) -> Ints:
        """(n,): how many tokens of what the mix calls `name` are before documents (n,) of its source, numbers in the
        split in rising order. So document d lies in its tokens before(d) to before(d + 1) - 1; none where a class has
        it not, and none where the source came to have it after the mix was made. UsageError for an unknown name."""
        number = self._number(name)
        shards = self._held[self.mix.sources[number].held_in]
        ends = np.cumsum([shard.documents for shard in shards])
        asked = np.minimum(_whole(documents), int(ends[-1]) if len(ends) else 0)
        if number in self._classes:
            return self._classes[number].before(asked)
        found = np.full(len(asked), self.mix.sources[number].tokens)
        inside = asked < (int(ends[-1]) if len(ends) else 0)
        shard = np.searchsorted(ends, asked[inside], side="right")
        first = list(self._held).index(self.mix.sources[number].held_in)
        skipped = sum(len(some) for some in list(self._held.values())[:first])
        begins = np.concatenate([[0], ends])[shard]
        found[inside] = (
            self._starts.read(shard + skipped, asked[inside] - begins, 0)[:, 0] - self._bases[number]
        )
        return found

    def pieces(self, position: int) -> list[tuple[Path, int, int]]:
        """(`.bin`, first token in it, tokens) of what one position reads, in its order."""
        return self._tokens.parts(self._pieces(self._checked([position])))

    def learned_tokens(self, source: str) -> tuple[int, float]:
        """Learned tokens of a source of conversations, and the standard deviation of those of a sequence: where it is
        packed the targets of an epoch, else all its tokens. The spans are read, no tokens. UsageError for an unknown
        source."""
        assert self._learned is not None
        number, width = self._number(source), self.seq_len + 1
        held, packed = self.mix.sources[number], number in self._packed
        counts = [np.empty(0, np.int64)]
        for first in range(0, held.sequences, AHEAD):
            sequences = np.arange(first, min(first + AHEAD, held.sequences))
            zeros = np.zeros_like(sequences)
            pieces = self._tape.pieces(zeros + number, zeros, sequences)
            counts.append(self._learned.counts(pieces, len(sequences), width, packed))
        learned = np.concatenate(counts)
        spread = float(learned.std()) if len(learned) else 0.0
        if packed:
            return int(learned.sum()), spread
        total = 0
        for first in range(0, held.tokens, AHEAD * width):
            ends = np.array([first]), np.array([min(first + AHEAD * width, held.tokens)])
            if number in self._classes:
                pieces = self._classes[number].between(*ends)
            else:
                zero = np.zeros(1, np.int64)
                pieces = Pieces(zero, zero, ends[0] + self._bases[number], ends[1] - ends[0])
            # A column further, as here the first of all is one of them.
            pieces = pieces._replace(column=pieces.column + 1)
            total += int(self._learned.counts(pieces, 1, AHEAD * width + 1, False)[0])
        return total, spread

    def cut(self, source: str, epoch: int, sequence: int = 0) -> int:
        """Where an epoch of a source begins that is cut: its sequence i holds the source's tokens cut + i * seq_len to
        cut + (i + 1) * seq_len, both included. Sequences of what was appended in the epoch have another cut than its
        first. UsageError for an unknown source."""
        number, of, at = (np.array([index(one)]) for one in (self._number(source), epoch, sequence))
        return int(self._order.cuts(number, of, at, self.seq_len)[0])

    def parts(self, source: str, epoch: int) -> list[tuple[int, int, int]]:
        """(first, end, token): sequences `first` to `end - 1` of an epoch follow each other from a token of the source
        on, if it is cut. One part, and one more for each time that the source was appended to in the epoch."""
        return self._order.parts(self._number(source), index(epoch))

    def epoch(self, source: str, drawn: int) -> int:
        """In which epoch a source gives its `drawn`-th sequence, from 0. UsageError for an unknown source."""
        return self._order.epoch(self._number(source), index(drawn))

    def begin(self, source: str, epoch: int) -> int:
        """How many sequences a source gives before an epoch. UsageError for an unknown source."""
        return self._order.begin(self._number(source), index(epoch))

    def prefix_counts(self, length: int) -> dict[str, int]:
        """How many of the first `length` positions each source has; 0 <= length <= len."""
        if not 0 <= index(length) <= len(self):
            raise IndexError(f"a prefix of {length} sequences; the stream has {len(self)}")
        return dict(zip(self._order.names, self._order.prefix(length).tolist(), strict=True))

    def drawn(self, source: str, low: int, high: int) -> Ints:
        """(high - low,): which of its sequences a source gives from its `low`-th on; `prefix_counts` says how many a
        prefix has. UsageError for an unknown source, IndexError for more than it gives."""
        number, given = self._number(source), self.prefix_counts(len(self))[source]
        if not 0 <= index(low) <= index(high) <= given:
            raise IndexError(f"sequences {low} to {high}; source {source} gives {given}")
        return self._order.drawn(number, low, high)

    def _number(self, source: str) -> int:
        if source not in self._order.names:
            raise UsageError(
                f"the stream has no source {source!r}; its sources are {', '.join(self._order.names)}"
            )
        return self._order.names.index(source)

    def _checked(self, positions: Sequence[int] | Ints) -> Ints:
        array = _whole(positions)
        if array.size and not 0 <= array.min() <= array.max() < len(self):
            raise IndexError(f"positions {array.min()} to {array.max()}; the stream has {len(self)}")
        return array

    def _read(self, positions: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        out = np.empty((len(positions), self.seq_len + 1), self.dtype)
        if self._packed:  # what no piece fills
            out.fill(self.eod_id)
        if len(positions):
            self._tokens.read(self._pieces(positions), out)
        return out.astype(dtype, copy=False)

    def _pieces(self, positions: Ints) -> Pieces:
        """Where the tokens of the sequences at `positions` are. A reader that moves forward gets them from a block
        computed at once: the arithmetic costs the same for one position as for a hundred."""
        start, end = int(positions[0]), int(positions[-1]) + 1
        near = 0 <= start - self._expected <= NEAR * len(positions)
        self._expected = end
        if end - start != len(positions) or (np.diff(positions) != 1).any():
            return self._locate(positions)
        if not self._ahead_start <= start <= end <= self._ahead_end:
            if not near:
                return self._locate(positions)
            self._ahead_start, self._ahead_end = start, min(max(end, start + AHEAD), len(self))
            self._ahead = self._locate(np.arange(self._ahead_start, self._ahead_end))
        first = low = start - self._ahead_start
        high = end - self._ahead_start
        if len(self._ahead.row) != self._ahead_end - self._ahead_start:  # not one piece a row
            low, high = np.searchsorted(self._ahead.row, (low, high)).tolist()
        row, column, address, length = (part[low:high] for part in self._ahead)
        return Pieces(row - first if first else row, column, address, length)

    def _locate(self, positions: Ints) -> Pieces:
        """The pieces of the sequences at `positions`, in the order of their rows."""
        if self.materialized:
            zeros = np.zeros_like(positions)
            return self._tape.pieces(zeros, zeros, positions)
        source, epoch, number = self._order.locate(positions)
        return self._tape.pieces(source, self._order.cuts(source, epoch, number, self.seq_len), number)
