"""What a stream costs when nothing of it is in memory: the page cache evicted, thousands of shards, little memory.

Input: random tokens in 8 large shards, and as many in 5,000 small ones. Output: how long a rank takes to open them and
to its first batch, how long a batch of 8 shuffled sequences of 4,096 takes at the median and at the 99th percentile,
from the disk and again from memory; how much the disk gave for it (beyond 1: read for nothing); and the memory of a
process that may hold no more than ROOM beside the page cache while it reads everything once, and again of one in a
control group of ROOM in which the page cache counts, where this user may make one.

Pages are evicted by posix_fadvise(2), DONTNEED, after a sync; entries of folders and inodes stay in memory.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians

SEQ_LEN = 4096
TOKENS = 500_000_000
SHARDS = (8, 5000)
MICRO_BATCH = 8
BATCHES = 1000
ROOM = 160 << 20
"""Bytes of memory of its own for a process that reads everything; the interpreter and NumPy take a quarter of them."""


def write_shards(folder: Path, shards: int, tokens: int) -> Path:
    """So many shards of one source with `tokens` tokens in all; returns `folder`. They are on the disk then."""
    from benchmarks.train_shards import bare_manifest
    from pretok.shards.manifest import Shard, write_manifest

    each = tokens // shards
    values = np.random.default_rng(0).integers(1, 50_000, each, dtype=np.uint16)
    (folder / "random").mkdir(parents=True)
    entries = []
    for number in range(shards):
        name = f"random/random-{number:05d}.bin"
        values.tofile(folder / name)
        entries.append(Shard(name, "random", "train", each, each // 1000, 2 * each, 4 * each, "", ""))
    write_manifest(folder, bare_manifest(50_000, entries))
    os.sync()
    return folder


def evict(paths: Iterable[Path]) -> None:
    """Drop the pages of files from memory, as far as they are on the disk."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def _from_disk() -> int:
    """Bytes that the disk gave this process so far (proc(5), io)."""
    text = Path("/proc/self/io").read_text(encoding="ascii")
    return int(text.partition("\nread_bytes:")[2].split()[0])


def run_cold(folder: Path) -> dict[str, float]:
    """What the first thousand batches of a rank cost, from evicted files and then again."""
    from pretok.base.execute import peak_bytes

    evict(path for path in folder.rglob("*") if path.is_file())
    began = time.perf_counter()
    import pretok.stream

    imported = time.perf_counter()
    view = pretok.stream.open(folder, seq_len=SEQ_LEN)
    opened = time.perf_counter()
    view.batch(range(MICRO_BATCH))
    first = time.perf_counter()
    before = _from_disk()
    cold = _seconds(view)
    read = _from_disk() - before
    hot = _seconds(view)
    return {
        "open, ms": 1e3 * (opened - imported),
        "first batch, ms": 1e3 * (first - opened),
        "batch from the disk, median, ms": 1e3 * float(np.percentile(cold, 50)),
        "batch from the disk, 99th percentile, ms": 1e3 * float(np.percentile(cold, 99)),
        "batch from memory, median, ms": 1e3 * float(np.percentile(hot, 50)),
        "batch from memory, 99th percentile, ms": 1e3 * float(np.percentile(hot, 99)),
        "bytes from the disk per byte of tokens": read / (BATCHES * MICRO_BATCH * 2 * (SEQ_LEN + 1)),
        "import, ms": 1e3 * (imported - began),
        "peak memory, MB": peak_bytes() / 1e6,
    }


def _seconds(view: Any) -> list[float]:
    """Of each of BATCHES batches after the first."""
    found = []
    for number in range(1, BATCHES + 1):
        began = time.perf_counter()
        view.batch(range(number * MICRO_BATCH, (number + 1) * MICRO_BATCH), view.dtype)
        found.append(time.perf_counter() - began)
    return found


@contextmanager
def control_group(room: int) -> Iterator[Path]:
    """The folder of a new control group of so many bytes (cgroups(7), version 2 or 1), page cache among them. A process
    joins it whose id is written to `cgroup.procs` there.

    Raises OSError where the user may make none.
    """
    home, limit, version = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory"
    if (Path("/sys/fs/cgroup") / "cgroup.controllers").exists():
        home, limit, version = Path("/sys/fs/cgroup"), "memory.max", ""
    lines = [
        line.split(":", 2) for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    ]
    here = home / next(path for _, controllers, path in lines if controllers == version).strip("/")
    group = here / f"pretok-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(room), encoding="ascii")
        yield group
    finally:
        group.rmdir()


@contextmanager
def confined(room: int) -> Iterator[None]:
    """This process in a control group of so many bytes."""
    with control_group(room) as group:
        try:
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            yield
        finally:
            (group.parent / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


@contextmanager
def limited(room: int) -> Iterator[None]:
    """This process with so many bytes of its own, page cache aside, from now on (RLIMIT_DATA)."""
    resource.setrlimit(resource.RLIMIT_DATA, (room, room))
    yield


def run_all_of_it(folder: Path, limit: Callable[[int], AbstractContextManager[None]]) -> dict[str, float]:
    """M tokens a second of one pass over evicted files in ROOM of memory, a batch of it, and the most it held."""
    import pretok.stream
    from pretok.base.execute import peak_bytes

    evict(path for path in folder.rglob("*") if path.is_file())
    with limit(ROOM):
        view = pretok.stream.open(folder, seq_len=SEQ_LEN)
        took = []
        for start in range(0, len(view) - MICRO_BATCH, MICRO_BATCH):
            began = time.perf_counter()
            view.batch(range(start, start + MICRO_BATCH), view.dtype)
            took.append(time.perf_counter() - began)
    return {
        "M tokens/s": len(view) * SEQ_LEN / 1e6 / sum(took),
        "batch, 99th percentile, ms": 1e3 * float(np.percentile(took, 99)),
        "peak memory, MB": peak_bytes() / 1e6,
    }


LIMITS = {"160 MiB beside the page cache": limited, "160 MiB with the page cache": confined}


def measure_cold(inputs: Inputs, runs: int) -> dict[str, Any]:
    """Both folders, medians; the pass over everything once each."""
    found: dict[str, float] = {}
    for shards in SHARDS:
        with tempfile.TemporaryDirectory(dir=inputs.folder) as work:
            folder = write_shards(Path(work) / "shards", shards, TOKENS)
            values = medians([fresh(run_cold, folder) for _ in range(runs)])
            for name, limit in LIMITS.items():
                with suppress(OSError):  # a user who may make no control groups
                    passed = fresh(run_all_of_it, folder, limit)
                    values |= {f"all of it once, {name}: {key}": value for key, value in passed.items()}
        found |= {f"{shards:,} shards: {key}": value for key, value in values.items()}
    return found
