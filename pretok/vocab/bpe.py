"""Counts of words -> the merges of a byte-level BPE vocabulary.

Input: distinct words, as bytes or as tokens of an older vocabulary, and how often each occurs. Output: the merges that
`tokenizers.BpeTrainer` learns from text with these words, in its order, and the bytes of every token.

**The algorithm** is that of Sennrich et al. (2016, https://aclanthology.org/P16-1162), step by step as in
https://github.com/huggingface/tokenizers (models/bpe/trainer.rs), with 64-bit counts:

1. *count*: each pair of neighbours inside a word counts as often as the word occurs;
2. *choose*: the pair that occurs most often is merged next; among equals, the one with the smaller ids;
3. *merge*: all its occurrences become one token, overlapping ones from left to right. If an older token has the bytes
   of the pair, the merge gives that token;
4. the pairs around it are counted again; go to 2.

An extension is the same loop with another start: words split into the tokens of an older vocabulary.

`symbols` lays the words out, `pairs` keeps the pairs; both say how, and what memory they take. The loop over merges is
plain Python, which takes 10 us per merge; the loops over the text are compiled.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pretok.base.execute import NO_REPORT, Report
from pretok.base.tokens import Ints
from pretok.tokenizer.tokenizer_file import ALPHABET
from pretok.vocab.pairs import LEAST, Entry, Pairs
from pretok.vocab.symbols import BOUNDARY, Int32s, SymbolBuffer

EASE = 16.0
"""Pairs are left out below 1/EASE of what the last merge would count if merge k counted 1/k of the first. On 284 MB of
text and 50,000 entries that guess is 1.1 to 7.1 times what the last merge does count."""

REPORTED = 50
"""Entries between two reports: the first ones of a large corpus take a second each, the last ones microseconds."""


@dataclass(frozen=True, slots=True)
class Merges:
    """The result of training: merge k joins the tokens pairs[k] to the token products[k]."""

    pairs: Int32s
    """(m, 2), the ids of the left and the right token."""
    products: Int32s
    """[m], a new id, or that of an older token with the same bytes."""
    counts: Ints
    """[m], how often the pair occurred in the text when it was merged."""
    tokens: list[bytes]
    """The bytes of every id, initial and new."""

    def first(self, size: int) -> list[tuple[bytes, bytes]]:
        """Return the merges of the first `size` entries, in order, as bytes.

        They are those that training to this size would give.
        """
        largest = np.maximum.accumulate(self.products)
        end = int(np.searchsorted(largest, size - 1))  # where the last of the entries is made
        end += end < len(largest) and int(largest[end]) < size
        return [(self.tokens[left], self.tokens[right]) for left, right in self.pairs[:end].tolist()]


def train_merges(
    buffer: SymbolBuffer, *, vocab_size: int, special_tokens: int, report: Report = NO_REPORT
) -> Merges:
    """Train the merges of a vocabulary of `vocab_size` entries: special tokens, 256 bytes (as in ALPHABET), merges.

    `buffer`: distinct words as `buffer_of` lays them out, which are used up. `special_tokens`: how many ids they take;
    in Merges.tokens they are b"". A merge that spells a special token therefore makes a token of its own, where
    `tokenizers` would reuse the special one's id; the caller refuses such a name.
    """
    tokens = [b""] * special_tokens + [bytes([byte]) for byte in ALPHABET]
    # Special tokens have the first ids, so those of the bytes move up behind them; boundaries stay negative.
    np.add(buffer.symbols, special_tokens, out=buffer.symbols, where=buffer.symbols >= 0)
    return _train(buffer, tokens, vocab_size - len(tokens), report=report)


def extend_merges(
    buffer: SymbolBuffer,
    tokens: Sequence[bytes],
    apart: npt.NDArray[np.bool_],
    max_new: int,
    report: Report = NO_REPORT,
) -> Merges:
    """Continue BPE where an old vocabulary stopped; new tokens are numbered from len(tokens) on.

    `buffer`: words split into the old tokens 0 to len(tokens) - 1, which are used up; `tokens`: the bytes of each, b""
    for one that no text spells; `apart`, bool[ids]: tokens that are never joined. A pair that spells an old token is
    not joined either: its merge would change the ids of text without new tokens.
    """
    # A token that is never joined splits a word as a boundary does. BOUNDARY is -1, so it indexes the last flag.
    buffer.symbols[np.append(apart, True)[buffer.symbols]] = BOUNDARY
    return _train(buffer, tokens, max_new, len(tokens), report)


def _train(
    buffer: SymbolBuffer, tokens: Sequence[bytes], max_new: int, closed: int = 0, report: Report = NO_REPORT
) -> Merges:
    """Loop over merges. A pair that spells one of the first `closed` tokens is left alone. report: gets entries."""
    names = list(tokens)
    ids = {name: token for token, name in reversed([*enumerate(names)]) if name}  # of equal names the first
    first = len(names)
    last = first + min(max_new, len(buffer.symbols))  # a merge joins two symbols at least
    merges: dict[int, tuple[int, int]] = {}
    pairs, least, ease = Pairs(buffer, last), 0, EASE  # pairs below `least` are left out
    heap: list[Entry] = []
    while len(names) < last:
        # A merge makes at most two new pairs with each token: the product before it and after it. With room for these
        # the table need not grow while a pair is merged, which would move its rows.
        if pairs.grow(2 * len(names) + 1) or not heap:
            heap, floor = pairs.frequent()
        if not pairs.refresh(heap, floor) or -heap[0][0] < least:
            if not heap and floor > max(1, least):  # less frequent pairs are only in the table so far
                continue
            # Below `least`, a pair that was left out may be more frequent than all in the table. So all pairs are
            # counted again, and from here on none is left out.
            if least <= 1:
                break
            least, ease, heap = 0, math.inf, []
            pairs.count_all()
            continue
        negative, key, row = heapq.heappop(heap)
        # The guess of what the last merge will count: if, as with words, the k-th counts 1/k of the first.
        least = max(least, int(-negative * ((len(names) - first + 1) / (last - first)) / ease))
        pairs.used[LEAST] = least
        joined = names[key >> 32] + names[key & 0xFFFFFFFF]
        product = ids.setdefault(joined, len(names))
        if product < closed:
            pairs.drop(row)
            continue
        # Counts of old pairs only fall, so each pair that counts `floor` is on the heap with at least its count.
        for entry in pairs.merge(row, product, product < len(names), floor):
            heapq.heappush(heap, entry)
        # If the product is an older token, a pair can occur again after it was merged; it is listed once.
        merges.setdefault(key, (product, -negative))
        if product == len(names):
            names.append(joined)
            if (len(names) - first) % REPORTED == 0:
                report({"entries": REPORTED})
    keys = np.fromiter(merges, np.int64, len(merges))
    values = np.array([*merges.values()], np.int64).reshape(-1, 2)
    return Merges(
        np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1).astype(np.int32),
        values[:, 0].astype(np.int32),
        values[:, 1],
        names,
    )
