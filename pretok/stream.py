"""Streams: any position of a mix -> its tokens, from any process, without an index.

Enters: a shards folder and a mix.json, or none for every sequence of every source once. Leaves: a `View`, a sequence
of token arrays that torch's DataLoader takes as a dataset. Opening reads two small files; shards are mapped when first
read, and the number of open maps is bounded. numpy and the standard library only.

    view = pretok.stream.open("shards", "mix.json")
    view[i]                 # (seq_len + 1,) token ids at position i
    view.batch(positions)   # (n, seq_len + 1), one call for many
    view.origin(i)          # (source, epoch, index of the sequence inside the source)
    view.prefix_counts(n)   # {source: sequences among the first n positions}
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.errors import MismatchError, UsageError
from pretok.manifest import Manifest, Shard, load_manifest
from pretok.mix import Mix, load_mix, natural_mix
from pretok.order import Int64s
from pretok.shard import Tokens, map_tokens


def open(
    shards: str | Path,
    mix: str | Path | None = None,
    *,
    seq_len: int | None = None,
    split: str = "train",
    source: str | None = None,
    seed: int = 0,
) -> View:
    """Open a stream over a shards folder.

    With `mix`, the path of a mix.json, everything comes from that file; `seq_len`, when given, must agree. Without,
    `seq_len` is needed and the stream is every sequence of `split` once, of `source` or of all sources in natural
    proportion, in the order that `seed` gives.

    Raises IntegrityError (files missing or damaged), MismatchError (the mix belongs to other shards or another
    sequence length), UsageError (no seq_len, unknown source, nothing to read).
    """
    manifest = load_manifest(Path(shards))
    if mix is None:
        if seq_len is None:
            raise UsageError("a stream without a mix needs a sequence length (seq_len)")
        names = manifest.sources if source is None else (source,)
        return View(manifest, natural_mix(manifest, split, seq_len, names, seed))
    if source is not None:
        raise UsageError(f"either a mix ({mix}) or one source ({source}), not both")
    plan = load_mix(Path(mix))
    if plan.manifest != manifest.fingerprint:
        raise MismatchError(
            f"{mix} was made for shards with fingerprint {plan.manifest}, {manifest.folder} has "
            f"{manifest.fingerprint}; make the mix again for these shards"
        )
    if seq_len not in (None, plan.seq_len):
        raise MismatchError(f"{mix} has sequences of {plan.seq_len} tokens, not {seq_len}")
    return View(manifest, plan)


class View:
    """A stream: `len(view)` positions, each a sequence of seq_len + 1 token ids.

    seq_len, vocab_size, eod_id; dtype: that of the shards; mix: the plan it follows; fingerprint: identifies the
    shards, the mix and the order together; manifest_fingerprint: identifies the shards.

    It may be forked and pickled: every process opens its own maps. One thread at a time.
    """

    def __init__(self, manifest: Manifest, mix: Mix) -> None:
        self.seq_len = mix.seq_len
        self.vocab_size = manifest.vocab_size
        self.eod_id = manifest.eod_id
        self.dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self.mix = mix
        self.fingerprint = mix.fingerprint
        self.manifest_fingerprint = mix.manifest
        self._order = mix.order()
        # One address space for all sources, one after the other: a sequence lies inside its source.
        streams = [manifest.of(source.name, mix.split) for source in mix.sources]
        self._bases: Int64s = np.cumsum([0, *(source.tokens for source in mix.sources)], dtype=np.int64)
        self._tokens = FlatTokens([shard for stream in streams for shard in stream], self.dtype)

    def __len__(self) -> int:
        return self._order.length

    def __getitem__(self, position: int) -> Tokens:
        """Token ids at one position: (seq_len + 1,) in the dtype of the shards. Negative positions count back."""
        tokens: Tokens = self._read(np.array([range(len(self))[position]], np.int64), self.dtype)[0]
        return tokens

    def __iter__(self) -> Iterator[Tokens]:
        return (self[position] for position in range(len(self)))

    def batch(
        self, positions: Sequence[int] | Int64s, dtype: npt.DTypeLike = np.int64
    ) -> npt.NDArray[np.integer[Any]]:
        """Token ids at (n,) positions in any order: (n, seq_len + 1) of `dtype`. IndexError outside 0..len-1."""
        return self._read(self._checked(positions), np.dtype(dtype))

    def __getitems__(self, positions: Sequence[int]) -> npt.NDArray[np.integer[Any]]:
        """`batch` by the name torch's DataLoader calls; use `collate_fn=torch.from_numpy`."""
        return self.batch(positions)

    def origin(self, position: int) -> tuple[str, int, int]:
        """(source, epoch, index of the sequence inside the source) of one position."""
        source, epoch, index = self._order.locate(self._checked([position]))
        return self._order.names[source[0]], int(epoch[0]), int(index[0])

    def prefix_counts(self, length: int) -> dict[str, int]:
        """How many of the first `length` positions each source has; 0 <= length <= len."""
        if not 0 <= length <= len(self):
            raise IndexError(f"a prefix of {length} sequences; the stream has {len(self)}")
        return dict(zip(self._order.names, self._order.prefix(length).tolist(), strict=True))

    def _checked(self, positions: Sequence[int] | Int64s) -> Int64s:
        array = np.asarray(positions, np.int64)
        if array.size and not 0 <= array.min() <= array.max() < len(self):
            raise IndexError(f"positions {array.min()} to {array.max()}; the stream has {len(self)}")
        return array

    def _read(self, positions: Int64s, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        source, _, index = self._order.locate(positions)
        out = np.empty((len(positions), self.seq_len + 1), dtype)
        self._tokens.read(self._bases[source] + index * self.seq_len, out)
        return out


class FlatTokens:
    """The tokens of many shards as one array, read by memory map; at most `limit` maps are open."""

    def __init__(self, shards: Sequence[Shard], dtype: np.dtype[Any]) -> None:
        self.limit = _map_limit()
        self._dtype = dtype
        self._paths = [shard.path for shard in shards]
        self._starts: Int64s = np.cumsum([0, *(shard.tokens for shard in shards)], dtype=np.int64)
        self._maps: OrderedDict[int, npt.NDArray[Any]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": OrderedDict()}  # a map would be pickled as all its bytes

    def read(self, addresses: Int64s, out: npt.NDArray[Any]) -> None:
        """Fill out[row] (n, length) with the tokens from addresses[row] (n,) on, across borders of shards."""
        length = out.shape[1]
        first = np.searchsorted(self._starts, addresses, side="right") - 1
        offsets = addresses - self._starts[first]
        rows = np.argsort(first, kind="stable")  # every shard is opened once, whatever the bound
        for row, shard, offset in zip(
            rows.tolist(), first[rows].tolist(), offsets[rows].tolist(), strict=True
        ):
            part = self._map(shard)[offset : offset + length]
            out[row, : len(part)] = part
            filled = len(part)
            while filled < length:
                shard += 1
                part = self._map(shard)[: length - filled]
                out[row, filled : filled + len(part)] = part
                filled += len(part)

    def _map(self, shard: int) -> npt.NDArray[Any]:
        tokens = self._maps.get(shard)
        if tokens is not None:
            self._maps.move_to_end(shard)
            return tokens
        if len(self._maps) >= self.limit:
            self._maps.popitem(last=False)
        length = int(self._starts[shard + 1] - self._starts[shard])
        # Slicing a plain array costs a third of slicing a numpy.memmap.
        tokens = self._maps[shard] = map_tokens(self._paths[shard], self._dtype, length).view(np.ndarray)
        return tokens


def _map_limit() -> int:
    """A quarter of the files this process may open: every map holds one."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 4096 if soft == resource.RLIM_INFINITY else max(8, min(4096, soft // 4))
