"""What packing costs and saves: documents cut, padding and seconds, from the lengths of any shards.

    python -m benchmarks.packing work/shards [--lengths 1024 2048 4096 8192]

For each length: cutting the flat stream of a source; `pretok mix --pack best-fit` in its windows and in one
window of 65,536 documents; next fit, which is how torchtitan's ChatDataset packs (documents in their order, a new
sequence where the next one does not fit); and OLMo-core's InstancePacker, best fit over all documents of a file, where
`pip install ai2-olmo-core` brought it. All get the same documents, of which longer ones first give the sequences that
they fill alone. Seconds are of one core for a million documents, without reading.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pretok.base.tokens import Ints
from pretok.shards.manifest import load_manifest
from pretok.stream.pack import DOCUMENTS, MOST_DOCUMENTS, window_of, window_runs


def cut_documents(lengths: Ints, seq_len: int) -> int:
    """Documents that the end of a sequence falls inside of, where the stream is cut at its first token."""
    ends = np.cumsum(lengths)
    return int(np.count_nonzero((ends - lengths) // seq_len != (ends - 1) // seq_len))


def in_windows(window: int) -> Callable[[Ints, int], int]:
    """Our packer with windows of so many documents: lengths, capacity -> sequences."""

    def bins(lengths: Ints, capacity: int) -> int:
        return sum(
            len(window_runs(part, part, capacity)[2])
            for part in np.split(lengths, range(window, len(lengths), window))
        )

    return bins


def next_fit(lengths: Ints, capacity: int) -> int:
    """Sequences, where each document goes behind the one before or opens a new one."""
    count, room = int((lengths // capacity).sum()), 0
    for rest in (lengths % capacity).tolist():
        if rest > room:
            count, room = count + 1, capacity
        room -= rest
    return count


def olmo_core(lengths: Ints, capacity: int) -> int:
    """OLMo-core's packer, of what is left of longer documents; its sequences are one token shorter, as it takes powers
    of 2 alone. ImportError where it is not installed."""
    from olmo_core.data.utils import InstancePacker

    capacity -= 1
    rests = lengths % capacity
    ends = np.cumsum(rests[rests > 0])
    instances, _, _ = InstancePacker(capacity).pack_documents(
        np.stack([ends - rests[rests > 0], ends], axis=1)
    )
    return int((lengths // capacity).sum()) + len(instances)


def rows(lengths: Ints, seq_len: int) -> Iterator[tuple[str, int, float | None, float | None]]:
    """(how, documents cut, padding as a share of all tokens, seconds for a million documents) of one length."""
    capacity, tokens = seq_len + 1, int(lengths.sum())
    longer = int(np.count_nonzero(lengths > capacity))
    yield "cut", cut_documents(lengths, seq_len), 0.0, None
    window = window_of(len(lengths), tokens, seq_len)
    packers = {
        f"best-fit, {window:,}": in_windows(window),
        f"best-fit, {MOST_DOCUMENTS:,}": in_windows(MOST_DOCUMENTS),
        "next fit (torchtitan)": next_fit,
        "OLMo-core": olmo_core,
    }
    for name, packer in packers.items():
        began = time.process_time()
        try:
            bins = packer(lengths, capacity)
            held = bins * (capacity - (packer is olmo_core))
        except ImportError:
            yield f"{name}: not installed", longer, None, None
            continue
        yield name, longer, 1 - tokens / held, (time.process_time() - began) / len(lengths) * 1e6


def main() -> None:
    """Print a table as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    args = parser.parse_args()
    manifest = load_manifest(args.shards)
    lengths = np.concatenate([shard.open().lengths for shard in manifest.shards if shard.split == "train"])
    lengths = lengths.astype(np.int64)
    window_runs(lengths[:DOCUMENTS], lengths[:DOCUMENTS], 1025)  # loads or compiles it
    print(f"{len(lengths):,} documents, {int(lengths.sum()):,} tokens\n")
    print("| sequences | packer, documents in a window | documents cut | padding | seconds for a million |")
    print("|---:|---|---:|---:|---:|")
    for seq_len in args.lengths:
        for name, cut, padding, seconds in rows(lengths, seq_len):
            share = "-" if padding is None else f"{padding:.3%}"
            spent = "-" if seconds is None else f"{seconds:.2f}"
            print(f"| {seq_len:,} | {name} | {cut:,} ({cut / len(lengths):.1%}) | {share} | {spent} |")


if __name__ == "__main__":
    main()
