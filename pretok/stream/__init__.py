"""Streams: any position of a mix -> its tokens, from any process, without an index.

Input: a shards folder and a mix.json, or none for every sequence of every source once. Output: a `View`, a sequence
of token arrays that torch's DataLoader takes as a dataset. Opening reads two small files; shards are opened when first
read, and the number of open files is bounded. numpy, msgspec and the standard library only.

    view = pretok.stream.open("shards", "mix.json")
    view[i]                 # (seq_len + 1,) token ids at position i; view[a:b] for (b - a, seq_len + 1)
    view.batch(positions)   # (n, seq_len + 1), one call for many
    view.origin(i)          # (source, epoch, index of the sequence inside the source)
    view.prefix_counts(n)   # {source: sequences among the first n positions}
    view.loss(i)            # (seq_len,) which of the targets view[i][1:] are learned
    view.batch(positions, loss=True)  # tokens and (n, seq_len), one call for both

In this folder:

    order.py        which sequence stands where: integer arithmetic
    permutation.py  keyed permutations, by which an epoch is shuffled
    quota.py        weights -> whole sequences by source
    mix_file.py     a mix and its file
    tapes.py        where the tokens of an entry lie: runs of its source, in a side file or one
    learned.py      which of their tokens are learned
    pack.py         lengths of documents -> the tape of a packed entry
    flat_tokens.py  many shards as one array of tokens
    object_store.py shards on an object store, by a cache that knows what comes
    loader.py       the part of each batch that a rank reads
    digests.py      what was read, as one number
    continued.py    a mix that goes on with another, and how long two mixes are the same
    segments.py     which positions of which stream the steps of a run read
    classes.py      predicates over documents -> the tapes of classes
    mix_job.py      the job: weights and a budget -> mix.json and its report
    audit.py        where tokens come from, and which positions read them
    materialize.py  a mix written as shards in its order
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.records import to_json
from pretok.base.tokens import Ints, Tokens
from pretok.shards.manifest import FILE_NAME, Manifest, Shard, load_manifest
from pretok.stream.continued import same_until
from pretok.stream.digests import data_hash, digest
from pretok.stream.flat_tokens import FlatTokens, OpenFiles, Pieces
from pretok.stream.learned import Learned, Marks, Mask
from pretok.stream.mix_file import Mix, behind, check_sources, load_mix, mixed_shards, natural_mix, parse_mix
from pretok.stream.pack import open_packing
from pretok.stream.tapes import FOLDER, SideFile, Tapes

if TYPE_CHECKING:
    from pretok.stream.object_store import Store

__all__ = ["View", "data_hash", "digest", "open", "same_until"]

AHEAD = 1024
"""Positions whose pieces are computed at once for a reader that moves forward."""
NEAR = 8
"""A request moves forward if it starts at most this many times its own length after the end of the last one."""


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
    cache: str | Path | None = None,
    cache_bytes: int | None = None,
) -> View:
    """Open a stream over a shards folder.

    With `mix`, the path of a mix.json, everything comes from that file; `seq_len`, if given, must agree. Without it,
    `seq_len` is required and the stream is every sequence of `split` once, of `source` or of all sources in natural
    proportion, in the order that `seed` gives. In conversations only the assistant's tokens are learned, or the kinds
    that `learn` names by source.

    If the shards have grown since the mix was made, they are read as they were then. Without a mix, `manifest` selects
    the state in which the shards had that fingerprint.

    `shards` and `mix` may be URLs on an object store. Then `cache` is a folder on a local disk, which the ranks of a
    node and later jobs share; it keeps at most `cache_bytes` of tokens, by default all that were read. OSError names an
    object that cannot be fetched.

    Raises IntegrityError (files missing or damaged), MismatchError (the mix belongs to other shards or another sequence
    length), UsageError (no seq_len, unknown source, nothing to read), TypeError (seq_len or seed is not an integer).
    """
    for name, number in (("seq_len", seq_len), ("seed", seed)):
        if number is not None and not isinstance(number, int | np.integer):
            raise TypeError(f"{name} is a whole number, not {number!r}")
    seq_len, seed = None if seq_len is None else int(seq_len), int(seed)
    store = None
    if "://" in f"{shards}{mix}":
        from pretok.stream.object_store import Store, fetch_mix, is_url

        store = Store(str(shards), cache, cache_bytes) if is_url(shards) else None
        mix = fetch_mix(str(mix), cache) if is_url(mix) else mix
    now = load_manifest(Path(shards)) if store is None else store.manifest
    if now.materialized is not None:
        return _open_materialized(now, mix, seq_len, split, source, store)
    if mix is None:
        if seq_len is None:
            raise UsageError("a stream without a mix needs a sequence length (seq_len)")
        then = now if manifest is None else now.as_of(manifest)
        if then is None:
            raise MismatchError(
                f"{now.folder} never had the fingerprint {manifest}; it has {now.fingerprint}"
            )
        names = then.sources if source is None else (source,)
        return View(now, natural_mix(then, split, seq_len, names, seed, learn), store=store)
    if learn is not None:
        raise UsageError(f"what is learned stands in the mix ({mix}): leave `learn` out")
    if source is not None:
        raise UsageError(f"either a mix ({mix}) or one source ({source}), not both")
    plan = load_mix(Path(mix))
    check_sources(plan, now, Path(mix))
    _check_seq_len(plan, seq_len, str(mix))
    return View(now, plan, folder=Path(mix).parent, store=store)


def _open_materialized(
    manifest: Manifest,
    mix: str | Path | None,
    seq_len: int | None,
    split: str,
    source: str | None,
    store: Store | None,
) -> View:
    """Open a materialized mix; all arguments must agree with the mix that is stored with it."""
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
    return View(manifest, plan, materialized=True, store=store)


def _check_seq_len(plan: Mix, seq_len: int | None, where: str) -> None:
    if seq_len not in (None, plan.seq_len):
        raise MismatchError(
            f"{where} has sequences of {plan.seq_len} tokens, not {seq_len}: leave the length out (--seq-len), or "
            f"make a mix of the other (pretok mix --seq-len {seq_len})"
        )


def _whole(numbers: Sequence[int] | Ints) -> Ints:
    """Convert to int64; TypeError for numbers that are not integers."""
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"positions are whole numbers, not {array.dtype.name}")
    return array.astype(np.int64, copy=False)


def _units_of(view: View, batches: Iterable[Sequence[int] | Ints], each: int) -> Iterator[Ints]:
    """Yield what each batch, of about `each` positions, reads from an object store."""
    files: Any = view.tokens.files
    left = iter(batches)
    while some := list(islice(left, max(1, AHEAD // each))):
        units, rows = files.units(view.pieces_of(_whole(np.concatenate(some)))[0])
        yield from np.split(units, np.searchsorted(rows, np.cumsum([len(batch) for batch in some[:-1]])))


class _Ahead(NamedTuple):
    """What was computed at once for the positions `start` to `end - 1`."""

    start: int
    end: int
    pieces: Pieces
    marks: Marks | None


class View:
    """A stream: `len(view)` positions, each a sequence of seq_len + 1 token ids.

    seq_len, vocab_size, eod_id. bos_id: id of the token that begins each document, or None. dtype: that of the shards.
    mix: the plan it follows. fingerprint: identifies shards, mix and order together; it is the same for a mix and its
    materialized form, so a run may continue with either. manifest_fingerprint: identifies the shards that the mix was
    made of. tokenizer: what the manifest says about it. materialized: whether the shards hold the sequences in the
    order of the mix. masked: whether targets other than padding are left out of the loss. removals: how often documents
    had been removed from the shards when it was opened. but_for_removals: as in the manifest, for `same_until`.

    manifest: of the shards. folder: that of the mix file, next to which its side files lie. store: the object store of
    the shards, or None.

    A view may be forked and pickled: every process opens its own files. Use it from one thread at a time.
    """

    def __init__(
        self,
        manifest: Manifest,
        mix: Mix,
        materialized: bool = False,
        folder: Path | None = None,
        store: Store | None = None,
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
        self.order = mix.order()
        # Several entries may hold documents of one source; each of its tokens has a single address.
        held = {} if materialized else mixed_shards(mix, manifest)
        shards = [shard for some in held.values() for shard in some]
        shards = list(manifest.shards) if materialized else shards
        size = (self.seq_len + 1) * self.dtype.itemsize
        opener = None if store is None else store.opener(len(self), size, materialized)
        self.tokens = FlatTokens(shards, self.dtype, materialized, opener)
        # All sources form one address space, one after the other; no sequence crosses the border of a source.
        sizes = [sum(shard.tokens for shard in some) for some in held.values()]
        starts = dict(zip(held, np.cumsum([0, *sizes], dtype=np.int64).tolist(), strict=False))
        self.source_bases = np.array([starts.get(source.held_in, 0) for source in mix.sources], np.int64)
        length = self.seq_len + 1
        # Packed sequences, and those of a materialized mix, do not share their last token with the next one.
        alone = np.array([materialized or source.packed for source in mix.sources])
        strides = self.seq_len + alone.astype(np.int64)
        files = {} if materialized else self._side_files(folder, held)
        begins = np.array([source.begin for source in mix.sources], np.int64)
        self.tapes = Tapes(
            self.source_bases + begins, [source.tokens for source in mix.sources], strides, length, files
        )
        if store is not None and any(source.learn for source in mix.sources):
            store.bring_spans(shards)
        self.learned = self._open_learned(manifest, shards)
        self.masked = self.learned is not None
        self._ahead = _Ahead(0, 0, Pieces(*[np.empty(0, np.int64)] * 4), None)
        self._expected = 0

    def _side_files(self, folder: Path | None, held: Mapping[str, Sequence[Shard]]) -> dict[int, SideFile]:
        """Open the side file of each entry that has one, by number of the entry."""
        found: dict[int, SideFile] = {}
        for number, source in enumerate(self.mix.sources):
            if source.tape is None:
                continue
            if folder is None:
                raise UsageError(f"{source.name} has a side file, which lies beside its mix: name the mix")
            shards = behind(held[source.held_in], source.begin)
            stated = [source.tokens, source.sequences, source.targets]
            if source.packed:
                found[number], about = open_packing(folder / FOLDER, source.tape, shards, self.seq_len)
                says = [about.tokens, about.bins, about.targets]
            else:
                found[number] = SideFile(folder / FOLDER, source.tape, shards)
                says = [found[number].tokens, *stated[1:]]
            if says != stated:
                raise IntegrityError(
                    f"the side file of {source.name} has {says} tokens, sequences and targets, the mix says {stated}: "
                    "make the mix again with pretok mix"
                )
        return found

    def _open_learned(self, manifest: Manifest, shards: Sequence[Shard]) -> Learned | None:
        """Return which tokens are learned; None if all are."""
        if not any(source.learn for source in self.mix.sources):
            return None
        for source in () if self.materialized else self.mix.sources:
            if source.learn and source.held_in not in manifest.conversations:
                raise IntegrityError(
                    f"the mix says what is learned of {source.held_in}, and {manifest.folder} holds no conversations "
                    "of it: make the mix again with pretok mix"
                )
        return Learned(shards, [source.learn for source in self.mix.sources])

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.mix.sources)
        return (
            f"<pretok.stream.View: {len(self)} sequences of {self.seq_len} + 1 tokens of {names} as "
            f"{self.dtype.name}, fingerprint {self.fingerprint}>"
        )

    def __len__(self) -> int:
        return self.order.length

    def __getitem__(self, position: int | slice) -> Tokens:
        """Return the token ids at one position, (seq_len + 1,), or at a slice of positions, (n, seq_len + 1).

        They have the dtype of the shards. Negative positions count from the end. IndexError for a position outside.
        """
        try:
            at = range(len(self))[position]
        except IndexError:
            raise IndexError(f"position {position}; the stream has {len(self)}") from None
        if isinstance(at, range):
            return self._read(np.array(at, np.int64))[0]
        tokens: Tokens = self._read(np.array([at], np.int64))[0][0]
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
        """Return the token ids at (n,) positions in any order: (n, seq_len + 1) of `dtype`.

        loss: also return which targets are learned, (n, seq_len) bool, see `loss`. IndexError for a position outside
        0..len-1, TypeError for positions that are not integers, UsageError for a dtype that does not hold every id.
        """
        kind = np.dtype(dtype)
        if kind.kind not in "iu" or np.iinfo(kind).max < self.vocab_size - 1:
            raise UsageError(
                f"{kind.name} does not hold ids up to {self.vocab_size - 1}; take int64 or {self.dtype.name}"
            )
        at = self._checked(positions)
        tokens, mask = self._read(at, loss)
        found = tokens.astype(kind, copy=False)
        return found if mask is None else (found, mask)

    def loss(self, position: int) -> Mask:
        """Return the loss mask of one position, (seq_len,) bool: True where the target `view[position][1:]` counts.

        False for padding (an EOD after an EOD, the rule of the stream) and, in conversations, for the kinds that the
        mix does not train on.
        """
        learned: Mask = self.batch([position], self.dtype, loss=True)[1][0]
        return learned

    def __getitems__(self, positions: Sequence[int]) -> npt.NDArray[Any]:
        """Call `batch`, under the name that torch's DataLoader uses; use `collate_fn=torch.from_numpy`."""
        return self.batch(positions)

    def origin(self, position: int) -> tuple[str, int, int]:
        """Return (source, epoch, index of the sequence within the source) of one position."""
        source, epoch, number = self.order.locate(self._checked([position]))
        return self.order.names[source[0]], int(epoch[0]), int(number[0])

    def prefix_counts(self, length: int) -> dict[str, int]:
        """Return how many of the first `length` positions each source has; 0 <= length <= len."""
        if not 0 <= index(length) <= len(self):
            raise IndexError(f"a prefix of {length} sequences; the stream has {len(self)}")
        return dict(zip(self.order.names, self.order.prefix(length).tolist(), strict=True))

    def expect(
        self,
        batches: Iterable[Sequence[int] | Ints],
        coming: Callable[[int], Iterable[Ints]],
        readers: int = 1,
        each: int = 1,
        share: float = 1.0,
    ) -> None:
        """Tell an object store what will be read, so that it fetches that first and evicts last what is needed last.

        batches: the positions of the next calls of `batch` in this process, `each` positions per call. coming: returns
        the positions that all `readers` which share the cache read after that many of these calls. share: fraction of
        the stream that they read. Does nothing for files on a disk.
        """
        files: Any = self.tokens.files
        if not isinstance(files, OpenFiles):
            files.set_share(share)
            # A view is not thread-safe, so each thread gets a copy.
            ahead, later = (pickle.loads(pickle.dumps(self)) for _ in range(2))
            files.expect(
                _units_of(ahead, batches, each),
                lambda done: _units_of(later, coming(done), AHEAD),
                readers,
                each,
            )

    def _checked(self, positions: Sequence[int] | Ints) -> Ints:
        array = _whole(positions)
        if array.size and not 0 <= array.min() <= array.max() < len(self):
            raise IndexError(f"positions {array.min()} to {array.max()}; the stream has {len(self)}")
        return array

    def _read(self, positions: Ints, loss: bool = False) -> tuple[Tokens, Mask | None]:
        """Return the token ids in the dtype of the shards; with `loss` also which targets are learned."""
        tokens = np.empty((len(positions), self.seq_len + 1), self.dtype)
        if self.mix.packs:  # padding: the parts that no piece fills
            tokens.fill(self.eod_id)
        if not len(positions):
            return tokens, np.empty((0, self.seq_len), np.bool_) if loss else None
        pieces, marks = self._part(positions, loss and self.masked)
        self.tokens.read(pieces, tokens)
        if not loss:
            return tokens, None
        ends = tokens == self.eod_id
        again = ends[:, 1:] & ends[:, :-1]
        if marks is None:
            return tokens, np.logical_not(again, out=again)
        # The mask is written last, so it is still in the processor's cache when padding is removed from it.
        mask = marks.mask(self.seq_len)
        return tokens, np.greater(mask, again, out=mask)

    def _part(self, positions: Ints, masked: bool) -> tuple[Pieces, Marks | None]:
        """Return the same as `pieces_of`, from a block computed at once if the reader moves forward.

        The arithmetic costs about as much for one position as for a hundred.
        """
        start, end = int(positions[0]), int(positions[-1]) + 1
        near = 0 <= start - self._expected <= NEAR * len(positions)
        self._expected = end
        ahead, alone = self._ahead, end - start != len(positions) or (np.diff(positions) != 1).any()
        if alone or not ahead.start <= start <= end <= ahead.end or (masked and ahead.marks is None):
            if alone or not near:
                return self.pieces_of(positions, masked)
            every = np.arange(start, min(max(end, start + AHEAD), len(self)))
            ahead = self._ahead = _Ahead(start, start + len(every), *self.pieces_of(every, masked))
        first, last = start - ahead.start, end - ahead.start
        low, high = first, last
        if len(ahead.pieces.row) != ahead.end - ahead.start:  # not one piece a row
            low, high = np.searchsorted(ahead.pieces.row, (first, last)).tolist()
        row, column, address, length = (part[low:high] for part in ahead.pieces)
        pieces = Pieces(row - first if first else row, column, address, length)
        if not masked or ahead.marks is None:
            return pieces, None
        return pieces, ahead.marks.part(first, last)

    def pieces_of(self, positions: Ints, masked: bool = False) -> tuple[Pieces, Marks | None]:
        """Return the pieces of the sequences at `positions`, sorted by row; if `masked`, also the learned targets."""
        masked = masked and self.masked
        if self.materialized:
            zeros = np.zeros_like(positions)
            pieces = self.tapes.pieces(zeros, zeros, positions)
            entry = self.order.locate(positions)[0] if masked else zeros
        else:
            entry, epoch, number = self.order.locate(positions)
            pieces = self.tapes.pieces(entry, self.order.cuts(entry, epoch), number)
        if not masked or self.learned is None:
            return pieces, None
        return pieces, self.learned.marks(pieces, entry, self.seq_len + 1)
