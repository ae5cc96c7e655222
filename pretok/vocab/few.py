"""The merges of few short words, in plain Python: what `vocab.bpe` gives, sooner than its loops are compiled.

Input: a SymbolBuffer and the settings of a training. Output: the merges and the bytes of every token.

A merge cuts every word that has the pair anew, so that a word costs the square of its length: COST bounds the sum.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pretok.base.tokens import Ints
from pretok.vocab.symbols import BOUNDARY, SymbolBuffer

COST = 1 << 22
"""Squares of words' lengths, added up, that are merged here at most: in a second or two."""

Found = tuple[list[tuple[int, int]], list[int], list[int], list[bytes]]
"""(pairs, products, counts, tokens), as in `vocab.bpe.Merges`."""


def is_few(buffer: SymbolBuffer) -> bool:
    """Whether the words of a buffer are merged here."""
    if len(buffer.symbols) > COST:
        return False
    lengths = np.diff(np.flatnonzero(buffer.symbols == BOUNDARY)) - 1
    return int((lengths**2).sum()) <= COST


def merge_few(
    buffer: SymbolBuffer,
    tokens: Sequence[bytes],
    weights: Ints,
    limit: int,
    last: int,
    min_count: int,
    closed: int,
) -> Found:
    """The merges of the words in `buffer`, which is used up, until there are `last` tokens; as `vocab.bpe._merge`."""
    borders = np.flatnonzero(buffer.symbols == BOUNDARY)
    runs = np.searchsorted(buffer.starts, borders[:-1] + 1, "right") - 1
    words = [buffer.symbols[a + 1 : b].tolist() for a, b in pairwise(borders.tolist())]
    counts, heavy = buffer.counts[runs].tolist(), weights.tolist()
    buffer.symbols[0] = BOUNDARY - 1
    made = list(tokens)
    ids: dict[bytes, int] = {}
    for token, spelled in enumerate(made):
        ids.setdefault(spelled, token)
    found: Counter[tuple[int, int]] = Counter()
    places: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for w, word in enumerate(words):
        for pair in pairwise(word):
            found[pair] += counts[w]
            places[pair].add(w)
    # A pair that occurs `count` times is on the heap with its count or a greater one; among equals, smaller ids first.
    heap = [(-count, pair) for pair, count in found.items() if heavy[pair[0]] + heavy[pair[1]] <= limit]
    heapq.heapify(heap)
    merges: dict[tuple[int, int], tuple[int, int]] = {}
    while len(made) < last and heap:
        negative, pair = heapq.heappop(heap)
        count = found[pair]
        if count != -negative:
            if 0 < count < -negative:
                heapq.heappush(heap, (-count, pair))
            continue
        if count < min_count:
            break
        left, right = pair
        product = ids.setdefault(made[left] + made[right], len(made))
        if product < closed:
            continue
        merges.setdefault(pair, (product, count))
        if product == len(made):
            made.append(made[left] + made[right])
            heavy[product] = heavy[left] + heavy[right]
        changes: Counter[tuple[int, int]] = Counter()
        for w in places.pop(pair):
            word = words[w]
            if len(joined := _join(word, left, right, product)) == len(word):
                continue  # another merge took one of the two tokens
            for gone in pairwise(word):
                changes[gone] -= counts[w]
            for new in pairwise(joined):
                changes[new] += counts[w]
                places[new].add(w)
            words[w] = joined
        for other, change in changes.items():
            found[other] += change
            if change > 0 and heavy[other[0]] + heavy[other[1]] <= limit:
                heapq.heappush(heap, (-found[other], other))
    return list(merges), [product for product, _ in merges.values()], [n for _, n in merges.values()], made


def _join(word: list[int], left: int, right: int, product: int) -> list[int]:
    """The word with the pair joined wherever it stands, from left to right."""
    joined: list[int] = []
    previous = -1
    for token in word:
        if token == right and previous == left:
            joined[-1] = previous = product
            continue
        joined.append(token)
        previous = token
    return joined
