"""Shards -> how often each entry of the vocabulary occurs in them.

Input: a manifest. Output: a `TokenUse` for each source, counted from the tokens, and the entries that no source uses.
In very large sources only some shards are read, spread evenly, and the result says how many tokens they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretok.base.errors import IntegrityError
from pretok.base.tokens import Ints
from pretok.base.tree import compare_root
from pretok.base.visible import visible
from pretok.shards.manifest import Manifest, Shard
from pretok.shards.shard_file import map_tokens
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, load_vocab

MOST_TOKENS = 4_000_000_000
"""Most tokens that are counted, in all sources together: about a minute on one core."""
BLOCK = 1 << 22
"""Tokens counted at once."""


@dataclass(frozen=True, slots=True)
class TokenUse:
    """The entries of the vocabulary in a source."""

    name: str
    counts: Ints
    """(vocab_size,) int64, how often each occurs in the tokens that were read."""
    read: int
    """The number of these tokens."""
    tokens: int
    """Of all in the source."""

    @property
    def used(self) -> int:
        """How many entries occur at all."""
        return int(np.count_nonzero(self.counts))

    def covering(self, share: float) -> int:
        """Return how many of the most frequent entries make up this share of the tokens."""
        falling = np.cumsum(np.sort(self.counts)[::-1])
        return int(np.searchsorted(falling, share * self.read)) + 1 if self.read else 0

    def curve(self, points: int = 200) -> list[tuple[float, float]]:
        """Return (log10 of the rank, log10 of the share of tokens) of entries that occur, the most frequent first."""
        falling = np.sort(self.counts[self.counts > 0])[::-1]
        if not len(falling):
            return []
        ranks = np.unique(np.geomspace(1, len(falling), points).astype(np.int64))
        shares = falling[ranks - 1] / self.read
        return list(zip(np.log10(ranks).tolist(), np.log10(shares).tolist(), strict=True))


def count_tokens(manifest: Manifest, most: int = MOST_TOKENS) -> list[TokenUse]:
    """Count the entries in each source, both splits.

    Raises IntegrityError for a shard that is not as sealed, or that has ids of no token.
    """
    uses = []
    for name in manifest.sources:
        shards = [shard for shard in manifest.shards if shard.source == name]
        tokens = sum(shard.tokens for shard in shards)
        counts: Ints = np.zeros(manifest.tokenizer.vocab_size, np.int64)
        read = 0
        for shard in _spread(shards, tokens, most // len(manifest.sources)):
            # The ids are an index below: those of a damaged shard could be any.
            compare_root(shard.bin_path, shard.root)
            dtype = np.dtype(manifest.tokenizer.dtype).newbyteorder("<")
            ids = map_tokens(shard.bin_path, dtype, shard.tokens)
            for low in range(0, len(ids), BLOCK):
                some = np.bincount(ids[low : low + BLOCK], minlength=manifest.tokenizer.vocab_size)
                if len(some) > manifest.tokenizer.vocab_size:
                    raise IntegrityError(f"{shard.bin_path} has ids of no token; see pretok verify")
                counts += some
            read += shard.tokens
        uses.append(TokenUse(name, counts, read, tokens))
    return uses


def _spread(shards: Sequence[Shard], tokens: int, most: int) -> Sequence[Shard]:
    """Choose all shards, or every n-th, with about `most` tokens."""
    return shards[:: max(1, -(-tokens // max(most, 1)))]


def never_used(manifest: Manifest, uses: Sequence[TokenUse]) -> list[tuple[int, str]] | None:
    """Return (id, text) of the entries that occur in no source, without special tokens.

    None if there is no tokenizer next to the shards. Bytes that are not text are escaped.
    """
    path = manifest.folder / TOKENIZER_FILE
    if not path.exists():
        return None
    vocab = load_vocab(path, eod=manifest.tokenizer.eod_id)
    apart = {*vocab.added_tokens.values(), *vocab.holes}
    unused = np.flatnonzero(
        sum((use.counts for use in uses), np.zeros(manifest.tokenizer.vocab_size, np.int64)) == 0
    )
    return [
        (token, visible(vocab.token_bytes(token).decode("utf-8", "backslashreplace"), ""))
        for token in unused.tolist()
        if token not in apart
    ]
