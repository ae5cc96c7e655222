"""Best-fit decreasing: documents of one window -> bins of a capacity, from their lengths alone.

Input: lengths of documents. Output: the documents of each bin. A document fills `length // capacity` bins by itself.
The rest at its end goes into the open bin with the least room that holds it (Johnson 1973, "Near-optimal bin packing
algorithms"; for pre-training: Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). The longest rests go
first, equal ones in their order, so the result depends only on the lengths.
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

    bins: for each bin that a document fills by itself, the number of its piece; then for each other bin, where its
    first entry is; entries: the documents of each bin, in order. Both have room for n + (sum of the lengths) //
    capacity. Returns (number of bins filled by one document, which come first; number of all bins).
    """
    n = len(lengths)
    full = 0
    for document in range(n):
        for piece in range(lengths[document] // capacity):
            bins[full] = piece
            entries[full] = document
            full += 1
    # Order the rests by length with a counting sort, which keeps the order of equal ones.
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
        # The longest rest has the smallest key. Rests of 0 come last, and the loop below skips them.
        key = capacity - lengths[document] % capacity
        order[starts[key]] = document
        starts[key] += 1
    # Open bins are in linked lists by their room. tree[leaves + room] counts those of one room, each node
    # above it the bins of its two children: so the least room that suffices is found in log2(capacity)
    # steps, however many bins are open.
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
        # Begin with the room that the rest fills exactly.
        node = leaves + rest
        if tree[node] == 0:
            # Climb until a bin with more room is in the subtree to the right.
            while node > 1 and (node % 2 or tree[node + 1] == 0):
                node //= 2
            # At the root the climb has found nothing: the document opens a bin.
            node += node > 1
        if node > 1:
            while node < leaves:  # descend to the least room there
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
        # A full bin is in no list and not in the tree, as no rest fits.
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
        # From here on sizes[b] is the place of the next document of bin b.
        sizes[number] = bins[full + number]
    for document in range(n):
        # In the order of the window, so a bin lists its documents as they came and not by length.
        if bin_of[document] >= 0:
            entries[sizes[bin_of[document]]] = document
            sizes[bin_of[document]] += 1
    return full, full + opened
