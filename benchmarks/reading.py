"""What a mix costs a rank: to make, to open, to read.

Input: simulated documents, 1,000 tokens on average, a third of them as an assistant writes; and 5,000 shards of 3
trillion tokens, holes of sparse files. Output: for each kind of mix the seconds to make it, the size of its side files
and, in a fresh process, what opening it takes and holds, a random sequence from files that were evicted from memory
(posix_fadvise) and again, and reading forward in batches of 64, without and with the loss mask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, fresh, medians, timed
from benchmarks.train_shards import bare_manifest, write_documents
from pretok.shards.manifest import Shard, load_manifest, write_manifest

SEQ_LEN, BATCH = 4096, 64
HALVES = {"classes": {"half": "web where tokens % 2 = 0"}}
KINDS: dict[str, dict[str, Any]] = {
    "one source": {},
    "two classes": HALVES,
    "packed": {"pack": "best-fit"},
    "two classes, packed": {"pack": "best-fit", **HALVES},
}


def write_huge(folder: Path, shards: int = 5000, tokens: int = 600_000_000) -> Path:
    """Shards of tokens that are holes; returns `folder`."""
    (folder / "web").mkdir(parents=True)
    entries = []
    for number in range(shards):
        name = f"web/web-{number:05d}.bin"
        with (folder / name).open("wb") as file:
            file.truncate(2 * tokens)
        root = "0" * 64  # nothing compares it: hashing the holes would take minutes
        entries.append(
            Shard(name, "web", "train", tokens, tokens // 1000, 2 * tokens, 4 * tokens, root, root)
        )
    write_manifest(folder, bare_manifest(50_000, entries))
    return folder


def make_mix(shards: Path, mix: Path, table: dict[str, Any]) -> Row:
    """Make it in a process of its own."""
    from pretok.base.execute import peak_bytes
    from pretok.config import make_mix as checked
    from pretok.stream.mix_job import MixRequest, run_mix

    before = peak_bytes()
    request = MixRequest(checked({"seq_len": SEQ_LEN, **table}, "benchmark"))
    spent, _ = timed(lambda: run_mix(shards, mix, request))
    beside = sum(path.stat().st_size for path in mix.parent.glob("side_files/*"))
    documents = load_manifest(shards).totals.documents
    return {
        "made in s": spent["s"],
        "by MB": (peak_bytes() - before) / 1e6,
        "side files, bytes per document": beside / documents,
    }


def evict(paths: Iterable[Path]) -> None:
    """Drop the pages of files from memory, as far as they are on the disk."""
    os.sync()
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read_mix(shards: Path, mix: Path | None, count: int) -> Row:
    """Open and read up to `count` sequences forward, and a hundredth of them at random."""
    import pretok.stream
    from pretok.base.execute import peak_bytes

    spent, view = timed(lambda: pretok.stream.open(shards, mix, seq_len=SEQ_LEN))
    peak = peak_bytes()
    positions = np.random.default_rng(0).integers(0, len(view), max(8, count // 100)).tolist()
    evict(path for path in shards.rglob("*") if path.is_file() and mix)
    cold = [timed(partial(view.__getitem__, position))[0]["s"] for position in positions]
    hot, _ = timed(lambda: [view[position] for position in positions])
    starts = range(0, min(count, len(view)) // BATCH * BATCH, BATCH)

    def forward(loss: bool) -> Callable[[], None]:
        def work() -> None:
            for first in starts:
                view.batch(range(first, first + BATCH), view.dtype, loss=loss)

        return work

    forward(False)()
    millions = len(starts) * BATCH * SEQ_LEN / 1e6
    return {
        "open ms": 1e3 * spent["s"],
        "peak MB": peak / 1e6,
        "random, evicted, ms": 1e3 * float(np.median(cold)),
        "random, M tokens per CPU s": len(positions) * SEQ_LEN / 1e6 / hot["CPU s"],
        "forward, M tokens per CPU s": millions / timed(forward(False))[0]["CPU s"],
        "with mask": millions / timed(forward(True))[0]["CPU s"],
    }


def measure(inputs: Inputs) -> Table:
    """Each kind of mix, and the huge source without one."""
    count = inputs.scaled(50_000)
    shards = write_documents(inputs.folder / "read", inputs.scaled(300_000), 1000, 4, chat=True)
    table: Table = {}
    for kind, settings in KINDS.items():
        mix = inputs.folder / kind / "mix.json"
        mix.parent.mkdir()
        made = fresh(make_mix, shards, mix, settings)
        table[kind] = made | medians([fresh(read_mix, shards, mix, count) for _ in range(inputs.runs)])
    huge = write_huge(inputs.folder / "huge", inputs.scaled(5000))
    table[f"{inputs.scaled(5000):,} shards of 600 M tokens"] = fresh(read_mix, huge, None, count)
    return table
