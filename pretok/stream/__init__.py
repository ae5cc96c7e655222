"""Streams: any position of a mix -> its tokens, from any process, without an index.

Input: a shards folder and a mix.json; without a mix, the stream is every sequence of every source once. Output: a
`View`, a sequence of token arrays that torch's DataLoader takes as a dataset. Opening reads two small files; shards are
opened when first read, and the number of open files is bounded. It needs only numpy, msgspec and the standard library.

    view = pretok.stream.open("shards", "mix.json")
    view[i]                 # (seq_len + 1,) token ids at position i; view[a:b] for (b - a, seq_len + 1)
    view.batch(positions)   # (n, seq_len + 1), one call for many
    view.origin(i)          # (source, epoch, index of the sequence inside the source)
    view.prefix_counts(n)   # {source: sequences among the first n positions}
    view.loss(i)            # (seq_len,) which of the targets view[i][1:] contribute to the loss
    view.batch(positions, loss=True)  # tokens and (n, seq_len), one call for both

In this folder:

    view.py         opens a stream; reads any positions of it
    order.py        which sequence is at which position: integer arithmetic
    permutation.py  keyed permutations that shuffle an epoch
    quota.py        weights -> whole sequences of each source
    mix_file.py     a mix and its file
    tapes.py        where the tokens of an entry lie in its source: one run, or the runs of a side file
    learned.py      which tokens contribute to the loss
    pack.py         document lengths -> the tape of a packed entry
    flat_tokens.py  many shards as one array of tokens
    object_store.py shards on an object store, read through a cache that fetches ahead
    forks.py        forks of a process that reads from an object store
    loader.py       the part of each batch that a rank reads
    digests.py      everything that was read, as one number
    continued.py    mixes that continue another, and how many first positions two mixes share
    segments.py     which positions of which stream the steps of a run read
    classes.py      SQL conditions on documents -> the tapes of classes
    mix_job.py      the job: weights and a budget -> mix.json and its report
    audit.py        where tokens come from, and which positions read them
    materialize.py  a mix written as shards in its order
    staging.py      shards and mix -> copies on a faster part of the file system
"""

from __future__ import annotations

from pretok.stream.continued import same_until
from pretok.stream.digests import data_hash, digest
from pretok.stream.view import View, open

__all__ = ["View", "data_hash", "digest", "open", "same_until"]
