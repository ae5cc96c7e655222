"""What masks cost: batches of a mix of conversations with and without which targets are learned, in turns.

Input: nothing; conversations of two turns of simulated lengths are written as shards. Output: microseconds a sequence
of both and their ratio, the least of ROUNDS, of sequences that run through documents and of packed ones."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.train_shards import bare_manifest
from pretok.base.records import replace
from pretok.config import make_mix
from pretok.shards.manifest import write_manifest
from pretok.shards.seal import side_files
from pretok.shards.writer import ShardWriter

DOCUMENTS = 50_000
SEQ_LEN, BATCH, BATCHES, ROUNDS = 4096, 8, 512, 7
TEMPLATE, USER, ANSWER = 4, 60, 200
"""Tokens between messages, and of these on average."""


def write_shards(folder: Path) -> Path:
    """Shards of one source of conversations; returns `folder`."""
    rng, entries = np.random.default_rng(0), []
    for number in range(4):
        name = folder / "chat" / f"chat-{number:05d}"
        lengths = rng.geometric((1 / USER, 1 / ANSWER) * 2, (DOCUMENTS // 4, 4))
        parts = np.full((len(lengths), 9), TEMPLATE)
        parts[:, 1::2] = lengths
        kinds = np.repeat(np.tile([0, 2, 0, 6, 0, 2, 0, 6, 0], len(lengths)).astype(np.uint8), parts.ravel())
        tokens = rng.integers(1, 50_000, len(kinds), dtype=np.uint16)
        sizes = parts.sum(axis=1, dtype=np.int32)
        tokens[np.cumsum(sizes) - 1] = 0
        with ShardWriter(name, np.dtype(np.uint16)) as writer:
            writer.append(tokens, sizes, kinds)
            entries.append(writer.seal("chat", "train")[0])
    paths = [folder / "chat" / f"chat-{number:05d}.spans" for number in range(4)]
    manifest = bare_manifest(50_000, entries)
    write_manifest(folder, replace(manifest, side_files=tuple(side_files(folder, "chat", paths))))
    return folder


def main() -> None:
    """Write, mix, read."""
    import pretok.stream
    from pretok.stream.mix_job import MixRequest, run_mix

    with tempfile.TemporaryDirectory() as work:
        shards = write_shards(Path(work) / "shards")
        for pack in ("none", "best-fit"):
            mix = Path(work) / f"{pack}.json"
            run_mix(shards, mix, MixRequest(make_mix({"seq_len": SEQ_LEN, "pack": pack}, "benchmark")))
            view = pretok.stream.open(shards, mix)
            least = [np.inf, np.inf]
            for turn in range(2 * ROUNDS):
                masked, began = bool(turn % 2), time.process_time()
                for first in range(0, BATCH * BATCHES, BATCH):
                    view.batch(range(first, first + BATCH), view.dtype, loss=masked)
                spent = (time.process_time() - began) / (BATCH * BATCHES) * 1e6
                least[masked] = min(least[masked], spent)
            plain, masked_one = least
            print(
                f"pack {pack}: plain {plain:.1f} us a sequence, masked {masked_one:.1f}, {masked_one / plain:.2f} times"
            )


if __name__ == "__main__":
    main()
