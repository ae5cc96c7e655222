"""Shards -> how often each entry of the vocabulary stands in them.

Input: a manifest. Output: `TokenUse` of each source, counted from the tokens themselves, and the entries that no
source uses. Of very large sources whole shards are read, spread evenly, up to a bound, and it says how many tokens they
hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretok.base.errors import IntegrityError
from pretok.base.tokens import Ints
from pretok.base.tree import compare_root
from pretok.base.visible import visible
from pretok.shards.format import map_tokens
from pretok.shards.manifest import Manifest, Shard
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, load_vocab

MOST_TOKENS = 4_000_000_000
"""Tokens that are counted, of all sources together: a minute or so on one core."""
BLOCK = 1 << 22
"""Tokens counted at once."""


@dataclass(frozen=True, slots=True)
class TokenUse:
    """Entries in a source. counts: (vocab_size,) how often each stands in the tokens that were read; read, tokens: how
    many those are, of how many."""

    name: str
    counts: Ints
    read: int
    tokens: int

    @property
    def used(self) -> int:
        """Entries that stand in it at all."""
        return int(np.count_nonzero(self.counts))

    def covering(self, share: float) -> int:
        """How many of the most frequent entries make up a share of the tokens."""
        falling = np.cumsum(np.sort(self.counts)[::-1])
        return int(np.searchsorted(falling, share * self.read)) + 1 if self.read else 0

    def curve(self, points: int = 200) -> list[tuple[float, float]]:
        """(log10 of the rank, log10 of the share of tokens) of the used entries, the most frequent first."""
        falling = np.sort(self.counts[self.counts > 0])[::-1]
        if not len(falling):
            return []
        ranks = np.unique(np.geomspace(1, len(falling), points).astype(np.int64))
        shares = falling[ranks - 1] / self.read
        return list(zip(np.log10(ranks).tolist(), np.log10(shares).tolist(), strict=True))


def count_tokens(manifest: Manifest, most: int = MOST_TOKENS) -> list[TokenUse]:
    """The use of each source, both splits. IntegrityError for a shard of another size than the manifest
    says, or with ids of no token."""
    found = []
    for name in manifest.sources:
        shards = [shard for shard in manifest.shards if shard.source == name]
        tokens = sum(shard.tokens for shard in shards)
        counts: Ints = np.zeros(manifest.tokenizer.vocab_size, np.int64)
        read = 0
        for shard in _spread(shards, tokens, most // len(manifest.sources)):
            compare_root(shard.bin_path, shard.root)
            held = map_tokens(
                shard.bin_path, np.dtype(manifest.tokenizer.dtype).newbyteorder("<"), shard.tokens
            )
            for low in range(0, len(held), BLOCK):
                some = np.bincount(held[low : low + BLOCK], minlength=manifest.tokenizer.vocab_size)
                if len(some) > manifest.tokenizer.vocab_size:
                    raise IntegrityError(f"{shard.bin_path} has ids of no token; see pretok verify")
                counts += some
            read += shard.tokens
        found.append(TokenUse(name, counts, read, tokens))
    return found


def _spread(shards: Sequence[Shard], tokens: int, most: int) -> Sequence[Shard]:
    """All shards, or every n-th, so that they hold about `most` tokens."""
    return shards[:: max(1, -(-tokens // max(most, 1)))]


def never_used(manifest: Manifest, uses: Sequence[TokenUse]) -> list[tuple[int, str]] | None:
    """(id, text) of the entries that stand in no source, special tokens apart; None where no tokenizer lies beside the
    shards. Bytes that are no text are escapes."""
    path = manifest.folder / TOKENIZER_FILE
    if not path.exists():
        return None
    vocab = load_vocab(path, eod=manifest.tokenizer.eod_id)
    special = set(vocab.added_tokens.values())
    unused = np.flatnonzero(
        sum((use.counts for use in uses), np.zeros(manifest.tokenizer.vocab_size, np.int64)) == 0
    )
    return [
        (token, visible(vocab.token_bytes(token).decode("utf-8", "backslashreplace"), ""))
        for token in unused.tolist()
        if token not in special
    ]
