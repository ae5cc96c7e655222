"""Best-fit decreasing: documents of one window -> bins of a capacity, from their lengths alone.

Input: lengths of documents. Output: which documents each bin has. A document gives `length // capacity` bins that it
fills by itself, and the rest of it, what is left at its end, goes where the least room is that holds it (Johnson 1973,
"Near-optimal bin packing algorithms"; best fit for pre-training: Ding et al. 2024, "Fewer Truncations Improve Language
Modeling"). The longest go first, equal ones in their order, so the result depends on nothing but the lengths.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from pretok.kernels.compile import I64, njit

_NEW_I64 = types.Array(types.int64, 1, "C")


@njit(types.UniTuple(types.int64, 2)(I64, types.int64, _NEW_I64, _NEW_I64))
def best_fit(lengths: Any, capacity: Any, bins: Any, entries: Any) -> Any:
    """Pack one window of documents, `lengths` (n,).

    bins: for each bin that a document fills by itself which of its pieces it is, then for each other where its first
    entry stands; entries: for each bin the documents in it, in their order. Both have room for n + (sum of the
    lengths) // capacity. Returns how many bins are filled by one document, which come first, and how many there are.
    """
    n = len(lengths)
    full = 0
    for document in range(n):
        for piece in range(lengths[document] // capacity):
            bins[full] = piece
            entries[full] = document
            full += 1
    # Rests by length, by a counting sort; equal ones stay in their order.
    starts = np.zeros(capacity + 1, np.int64)
    for document in range(n):
        starts[capacity - lengths[document] % capacity] += 1
    before = 0
    for number in range(capacity + 1):
        count = starts[number]
        starts[number] = before
        before += count
    order = np.empty(n, np.int64)
    for document in range(n):
        key = capacity - lengths[document] % capacity
        order[starts[key]] = document
        starts[key] += 1
    # The open bins are in lists by their room; a tree above says which lists have any.
    leaves = 1
    while leaves < capacity + 1:
        leaves *= 2
    tree = np.zeros(2 * leaves, np.int64)
    head = np.full(capacity + 1, -1, np.int64)
    following = np.empty(n, np.int64)
    bin_of = np.empty(n, np.int64)
    sizes = np.zeros(n, np.int64)
    opened = 0
    for number in range(n):
        document = order[number]
        rest = lengths[document] % capacity
        if rest == 0:
            bin_of[document] = -1
            continue
        node = leaves + rest
        if tree[node] == 0:
            while node > 1 and (
                node % 2 or tree[node + 1] == 0
            ):  # up, until a list of more room hangs to the right
                node //= 2
            node += node > 1
        if node > 1:
            while node < leaves:  # down to the least of them
                node = 2 * node if tree[2 * node] > 0 else 2 * node + 1
            room = node - leaves
            chosen = head[room]
            head[room] = following[chosen]
            while node:
                tree[node] -= 1
                node //= 2
        else:
            room, chosen = capacity, opened
            opened += 1
        bin_of[document] = chosen
        sizes[chosen] += 1
        room -= rest
        if room:
            following[chosen] = head[room]
            head[room] = chosen
            node = leaves + room
            while node:
                tree[node] += 1
                node //= 2
    place = full
    for number in range(opened):
        bins[full + number] = place
        place += sizes[number]
        sizes[number] = bins[full + number]
    for document in range(n):
        if bin_of[document] >= 0:
            entries[sizes[bin_of[document]]] = document
            sizes[bin_of[document]] += 1
    return full, full + opened
