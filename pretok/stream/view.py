"""A stream that is open: any position of a mix -> its tokens and which of them are learned.

Input: a shards folder and a mix.json, or a manifest and a `Mix`. Output: a `View`. A position is located (`order`), its
pieces are found (`tapes`) and read (`flat_tokens`), and its mask follows from them (`learned`). It needs only numpy,
msgspec and the standard library.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle, islice
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import to_json
from pretok.base.tokens import Ints, Tokens, padded_targets
from pretok.base.tree import LEAF, prove_file, prove_nodes
from pretok.shards.manifest import FILE_NAME, Manifest, load_manifest
from pretok.stream.flat_tokens import FlatTokens, OpenFiles
from pretok.stream.learned import Learned, Mask
from pretok.stream.mix_file import Mix, behind, check_sources, load_mix, mixed_shards, natural_mix, parse_mix
from pretok.stream.tapes import FOLDER, SideTape, Tapes

if TYPE_CHECKING:
    from pretok.stream.object_store import Store

AHEAD, AHEAD_TOKENS = 1 << 10, 1 << 22
"""The number of positions that are located at once for a reader that moves forward, and the most tokens of them: a mask
takes a byte for each."""
PLACES, OPENED = 16, 256
"""The leaves that a reader compares with the roots of the shards when it begins, and the files whose size it compares:
of more, each of a thousand ranks would ask the servers of a file system for the whole corpus."""
INNER = {"learned", "order", "reads", "source_bases", "tapes", "tokens"}
"""Attributes of a View for `stream.audit` and the like, not for its users."""
NEAR = 8
"""A reader moves forward if a request begins at most this many times its own length after the end of the last one."""


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

    mix: path of a mix.json, which then determines everything; `seq_len`, if given, must agree with it. Without a mix,
    the stream is every sequence of `split` once, from `source` or from all sources in natural proportion, shuffled by
    `seed`; `seq_len` is required. In conversations only the assistant's tokens are learned, or the kinds that `learn`
    names for a source.

    Shards that have grown since are read as they were when the mix was made; without a mix, as they were when they had
    the fingerprint `manifest`, if given.

    `shards` and `mix` may be URLs on an object store. Then `cache` is a folder on a local disk, shared by ranks and
    reused by later jobs. It keeps the tokens that were read, unless the shards of the stream are larger than
    `cache_bytes`.

    Raises IntegrityError (files missing or damaged), MismatchError (the mix belongs to other shards or another
    sequence length), UsageError (no seq_len, unknown source, nothing to read), TypeError (a seq_len or seed that is not
    a whole number), OSError that names an object which the store does not return.
    """
    seq_len, seed = None if seq_len is None else index(seq_len), index(seed)
    store = None
    if "://" in f"{shards}{mix}":
        from pretok.stream.object_store import Store, fetch_mix, is_url

        store = Store(str(shards), cache, cache_bytes) if is_url(shards) else None
        mix = fetch_mix(str(mix), cache) if is_url(mix) else mix
    now = load_manifest(Path(shards)) if store is None else store.manifest
    if now.materialized is not None:
        plan = parse_mix(now.materialized, now.folder / FILE_NAME)
        if mix is not None and (other := load_mix(Path(mix)).fingerprint) != plan.fingerprint:
            raise MismatchError(
                f"{shards} holds the sequences of the mix {plan.fingerprint}, but {mix} is {other}"
            )
        if source is not None or learn is not None or split != "train":
            raise UsageError(
                f"{shards} holds a materialized mix: leave out `source`, `split` and `learn`; its sources and other "
                "splits are in the shards that the mix was made of"
            )
    elif mix is not None:
        if learn is not None or source is not None:
            raise UsageError(f"`learn` and `source` are given by the mix ({mix}): leave them out")
        plan = load_mix(Path(mix))
        check_sources(plan, now, Path(mix))
    elif seq_len is None:
        raise UsageError("a stream without a mix needs a sequence length (seq_len)")
    elif (then := now if manifest is None else now.as_of(manifest)) is None:
        raise MismatchError(f"{shards} never had the fingerprint {manifest}; it has {now.fingerprint}")
    else:
        names = then.sources if source is None else [source]
        plan = natural_mix(then, split, seq_len, names, seed, learn)
    if seq_len not in (None, plan.seq_len):
        raise MismatchError(
            f"{mix or shards} has sequences of {plan.seq_len} tokens, not {seq_len}: leave out --seq-len, or make "
            f"another mix (pretok mix --seq-len {seq_len})"
        )
    return View(now, plan, Path(mix or "").parent, store)


def _whole(numbers: Sequence[int] | Ints) -> Ints:
    """Return the numbers as int64. TypeError for a dtype that is not an integer."""
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"positions are whole numbers, not {array.dtype.name}")
    return array.astype(np.int64, copy=False)


class _Ahead(NamedTuple):
    """What positions `start` to `end - 1` read and learn, computed at once. at: where the reads of each row begin."""

    start: int
    end: int
    reads: Ints
    at: Ints
    mask: Mask | None


_NOTHING_AHEAD = _Ahead(0, 0, np.empty((0, 4), np.int64), np.zeros(1, np.int64), None)


class View:
    """A stream: `len(view)` positions, each a sequence of seq_len + 1 token ids.

    seq_len, vocab_size, eod_id. bos_id: id of the token that begins each document, or None. dtype: that of the shards.
    mix: the plan it follows. fingerprint: identifies the shards, the mix and the order together; a materialized mix has
    the fingerprint of its plan, so a run may continue with either. manifest_fingerprint: identifies the shards of the
    mix. tokenizer: its entry in the manifest. materialized: whether the shards hold the sequences in the order of the
    mix. masked: whether the loss leaves out more tokens than padding. removals: how often documents had been removed
    from the shards when it was opened. but_for_removals: see the manifest; for `same_until`.

    It may be forked and pickled: every process opens its own files. Use it from one thread at a time.
    """

    def __init__(
        self, manifest: Manifest, mix: Mix, folder: Path = Path(), store: Store | None = None
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
        self.materialized = materialized = manifest.materialized is not None
        self.removals = len(manifest.removals)
        self.but_for_removals = manifest.but_for_removals
        self.order = mix.order()
        # Entries share the documents of a source, whose tokens have one address each.
        by_source = {} if materialized else mixed_shards(mix, manifest)
        shards = list(manifest.shards if materialized else chain(*by_source.values()))
        # The roots of today: the mix may be older than a removal, which changed shards.
        roots = {shard.path: shard.root for shard in manifest.shards}
        self._roots = b"".join(bytes.fromhex(roots[shard.path]) for shard in shards)
        asked = len(self) * (self.seq_len + 1) * self.dtype.itemsize
        files = None if store is None else store.files(shards, self.dtype.itemsize, asked)
        self.tokens = FlatTokens(shards, self.dtype.itemsize, materialized, files)
        # One address space for all sources, one after the other: a sequence lies inside its source.
        sizes = [sum(shard.tokens for shard in one) for one in by_source.values()]
        starts = dict(zip(by_source, np.cumsum([0, *sizes], dtype=np.int64).tolist(), strict=False))
        self.source_bases = np.array([starts.get(source.held_in, 0) for source in mix.sources], np.int64)
        length = self.seq_len + 1
        # Packed sequences, and those of a materialized mix, do not share their last token with the next one.
        alone = np.array([materialized or source.packed for source in mix.sources])
        strides = self.seq_len + alone.astype(np.int64)
        side_files = {
            number: SideTape(folder / FOLDER, source.tape, behind(by_source[source.held_in], source.begin))
            for number, source in enumerate(mix.sources)
            if source.tape is not None and not materialized
        }
        begins = np.array([source.begin for source in mix.sources], np.int64)
        self.tapes = Tapes(
            self.source_bases + begins, [source.tokens for source in mix.sources], strides, length, side_files
        )
        self.masked = any(source.learn for source in mix.sources)
        if store is not None and self.masked:
            store.fetch_spans(shards)
        self.learned = Learned(shards, [source.learn for source in mix.sources]) if self.masked else None
        self._ahead = _NOTHING_AHEAD
        self._expected = 0

    def __getstate__(self) -> dict[str, object]:
        # Up to 4 MB that only a reader at the same place could use.
        return self.__dict__ | {"_ahead": _NOTHING_AHEAD}

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.mix.sources)
        return (
            f"<pretok.stream.View: {len(self)} sequences of {self.seq_len} + 1 tokens of {names} as "
            f"{self.dtype.name}, fingerprint {self.fingerprint}>"
        )

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in INNER]

    def __len__(self) -> int:
        return self.order.length

    def __getitem__(self, position: int | slice) -> Tokens:
        """Return the token ids at a position, (seq_len + 1,), or at those of a slice, (n, seq_len + 1).

        They have the dtype of the shards. Negative positions count from the end. IndexError outside of the stream.
        """
        try:
            at = range(len(self))[position]
        except IndexError:
            raise IndexError(f"position {position}; the stream has {len(self)}") from None
        except TypeError:
            raise TypeError(f"position {position!r} is neither a whole number nor a slice of them") from None
        if isinstance(at, range):
            return self._read(np.array(at, np.int64))[0]
        if self.tapes.files:
            tokens: Tokens = self._read(np.array([at], np.int64))[0][0]
            return tokens
        tokens = np.empty(self.seq_len + 1, self.dtype)
        self.tokens.read_run(self._address(at), tokens)
        return tokens

    def _address(self, position: int) -> int:
        """Return where a sequence of a stream without side files begins."""
        if self.materialized:
            return self.tapes.address(0, 0, position)
        entry, epoch, number = self.order.locate_one(position)
        return self.tapes.address(entry, self.order.cut(entry, epoch), number)

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
        """Return the token ids at (n,) positions in any order, (n, seq_len + 1) of `dtype`.

        loss: return also which targets are learned, (n, seq_len) bool (see `loss`). Raises IndexError outside of
        0..len-1, TypeError for positions that are not whole numbers, UsageError for a dtype too small for the ids.
        """
        kind = np.dtype(dtype)
        if kind.kind not in "iu" or np.iinfo(kind).max < self.vocab_size - 1:
            raise UsageError(
                f"{kind.name} does not hold ids up to {self.vocab_size - 1}; take int64 or {self.dtype.name}"
            )
        at = self._checked(positions)
        tokens, mask = self._read(at, loss)
        tokens = tokens.astype(kind, copy=False)
        return tokens if mask is None else (tokens, mask)

    def loss(self, position: int) -> Mask:
        """Return which targets at a position, `view[position][1:]`, are learned, (seq_len,) bool.

        An EOD that follows an EOD is never learned; in conversations, only the kinds that the mix names are.
        """
        learned: Mask = self.batch([position], self.dtype, loss=True)[1][0]
        return learned

    def __getitems__(self, positions: Sequence[int]) -> npt.NDArray[Any]:
        """Return `batch(positions)`. torch's DataLoader calls this name; use `collate_fn=torch.from_numpy`."""
        return self.batch(positions)

    def origin(self, position: int) -> tuple[str, int, int]:
        """Return (source, epoch, index of the sequence inside the source) of a position."""
        source, epoch, number = self.order.locate(self._checked([position]))
        return self.order.names[source[0]], int(epoch[0]), int(number[0])

    def prefix_counts(self, length: int) -> dict[str, int]:
        """Return how many of the first `length` positions each source has; 0 <= length <= len."""
        if not 0 <= index(length) <= len(self):
            raise IndexError(f"a prefix of {length} sequences; the stream has {len(self)}")
        counts = self.order.prefixes(np.array([length]))[0].tolist()
        return dict(zip(self.order.names, counts, strict=True))

    def compare_places(self, rank: int = 0) -> None:
        """Compare PLACES leaves and the sizes of OPENED shards, drawn by `rank` and the time, with the manifest.

        So many ranks and many starts look at many places, each in milliseconds. Does nothing for an object store, whose
        bytes are compared when they are read. Raises IntegrityError that names a damaged or missing file.
        """
        files, chance = self.tokens.files, random.Random(f"{rank} {time.time_ns()}")
        if not isinstance(files, OpenFiles):
            return
        filled = [number for number, size in enumerate(files.sizes) if size]
        drawn = chance.sample(filled, min(OPENED, len(filled)))
        for number in drawn:
            files.get(number)
        for number in islice(cycle(drawn), PLACES):
            path, size = files.paths[number], int(files.sizes[number])
            nodes = prove_nodes(path, size, self._roots[32 * number : 32 * (number + 1)].hex())
            prove_file(path, nodes, size, [chance.randrange(-(-size // LEAF))])

    def expect(self, batches: Iterable[Sequence[int] | Ints], share: float = 1.0) -> None:
        """Make an object store prefetch what the next calls of `batch` in this process read.

        share: the part of the stream that the readers of its cache read. Does nothing for files on a disk.
        """
        files = self.tokens.files
        if not isinstance(files, OpenFiles):
            files.whole = files.worth_caching(share)
            # Looking ahead in this view would move it away from where its reader is, so a copy does that.
            ahead: View = pickle.loads(pickle.dumps(self))
            files.expect(files.units(ahead._part(_whole(one), False)[0]) for one in batches)

    def _checked(self, positions: Sequence[int] | Ints) -> Ints:
        array = _whole(positions)
        if array.size and not 0 <= array.min() <= array.max() < len(self):
            raise IndexError(f"positions {array.min()} to {array.max()}; the stream has {len(self)}")
        return array

    def _read(self, positions: Ints, loss: bool = False) -> tuple[Tokens, Mask | None]:
        """Return token ids in the dtype of the shards and, with `loss`, which targets are learned."""
        tokens = np.empty((len(positions), self.seq_len + 1), self.dtype)
        if self.mix.packs:  # padding: no piece covers it
            tokens.fill(self.eod_id)
        if not len(positions):
            return tokens, np.empty((0, self.seq_len), np.bool_) if loss else None
        reads, mask = self._part(positions, loss and self.masked)
        self.tokens.read(reads, tokens)
        if not loss:
            return tokens, None
        again = padded_targets(tokens, self.eod_id)
        # `again` is new memory, while the mask belongs to all positions that were located together.
        if mask is None:
            return tokens, np.logical_not(again, out=again)
        return tokens, np.greater(mask, again, out=again)

    def _part(self, positions: Ints, masked: bool) -> tuple[Ints, Mask | None]:
        """Return `reads` of the positions.

        For a reader that moves forward they are computed in large blocks: one position costs as much as a hundred.
        """
        # `near`: the reader moves forward. `joined`: the positions follow each other.
        start, end = int(positions[0]), int(positions[-1]) + 1
        near = 0 <= start - self._expected <= NEAR * len(positions)
        self._expected = end
        joined = end - start == len(positions) and bool((positions[1:] - positions[:-1] == 1).all())
        ahead, width = self._ahead, self.seq_len + 1
        if not (joined and ahead.start <= start <= end <= ahead.end) or (masked and ahead.mask is None):
            if not (joined and near):
                return self.reads(positions, masked)
            most = min(AHEAD, AHEAD_TOKENS // self.seq_len)
            every = np.arange(start, min(max(end, start + most), len(self)))
            reads, mask = self.reads(every, masked)
            at = np.searchsorted(reads[:, 1], np.arange(len(every) + 1) * width)
            ahead = self._ahead = _Ahead(start, start + len(every), reads, at, mask)
        first, last = start - ahead.start, end - ahead.start
        reads = ahead.reads[ahead.at[first] : ahead.at[last]] - (0, first * width, first * width, 0)
        return reads, ahead.mask[first:last] if masked and ahead.mask is not None else None

    def reads(self, positions: Ints, masked: bool = False) -> tuple[Ints, Mask | None]:
        """Return `FlatTokens.reads` of the sequences at `positions` and, if `masked`, their learned targets."""
        masked = masked and self.masked
        if self.materialized:
            zeros = np.zeros_like(positions)
            pieces = self.tapes.pieces(zeros, zeros, positions)
            entry = self.order.locate(positions)[0] if masked else zeros
        else:
            entry, epoch, number = self.order.locate(positions)
            pieces = self.tapes.pieces(entry, self.order.cuts(entry, epoch), number)
        reads = self.tokens.reads(pieces, self.seq_len + 1)
        if not masked or self.learned is None:
            return reads, None
        return reads, self.learned.mask(reads, entry, self.seq_len + 1)
