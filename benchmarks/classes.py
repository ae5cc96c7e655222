"""What classes cost: to make, to open, to read.

    python -m benchmarks.classes [--folder DIR] [--documents 10000000] [--read 2000000] [--cold 300000]

1. `divide` of `--documents` documents of simulated lengths into two classes and a rest, by quality and length: seconds,
   and tokens a second.
2. A mix of 20 classes of half the documents each over 3 trillion tokens in 3 billion documents of 3,000 shards, opened
   in a fresh process: seconds and memory. Runs and shards are holes of sparse files, what is read to open is real;
   the 20 classes share one side file, which each of them opens and reads by itself.
3. Two classes of half the documents each, at random, of `--read` documents: microseconds for a random sequence, and
   tokens a second of one process that reads forward, beside the same documents as one source. Tokens are holes of
   sparse files of the true sizes, runs are real; all comes from memory.
4. Two such classes, the same packed, and one source, of `--cold` documents with tokens on the disk: milliseconds for a
   random sequence, and bytes that the disk gave, where every file was evicted from memory before it (posix_fadvise);
   and bytes of their side files.
5. Memory of making classes, of packing and of `disclose` over half an epoch of packed sequences, each in a process of
   its own, for an eighth of `--documents` and for a quarter of them: it should not grow as they do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cold import _from_disk, evict
from benchmarks.measure import fresh
from benchmarks.stream import sparse
from benchmarks.train_shards import bare_manifest
from pretok.base.execute import peak_bytes
from pretok.base.records import replace
from pretok.base.tokens import Ints
from pretok.base.tree import root_of
from pretok.config import make_mix
from pretok.shards.format import index_bytes
from pretok.shards.ledger import SCHEMA, WINDOW
from pretok.shards.manifest import Manifest, Shard, load_manifest, write_manifest
from pretok.stream.mix_file import Mix, MixSource, Stage, load_mix, sequences, write_mix
from pretok.stream.tapes import EACH, FOLDER, WIDE, TapeWriter, path_of, shards_key

SEQ_LEN = 4096
SHARD_DOCUMENTS = 1_000_000
CLASSES = {"good": "quality >= 0.5 and tokens < 20000", "long": "quality >= 0.5 and tokens >= 20000"}
HALVES = {"half": "quality >= 0.5"}
COLD = 200
"""Sequences that are read from evicted files."""
QUALITY = pa.field("quality", pa.float32())


def lengths_of(documents: int, seed: int) -> Ints:
    """Log-normal, 1,000 tokens on average."""
    drawn = np.random.default_rng(seed).lognormal(6.4, 1.0, documents)
    return np.clip(drawn, 2, 1 << 20).astype(np.int64)


def simulate(folder: Path, documents: int, *, holes: bool = True) -> Manifest:
    """Shards of simulated documents: tokens are holes, or random; indexes and ledgers with a quality are real."""
    shards = []
    for number, first in enumerate(range(0, documents, SHARD_DOCUMENTS)):
        lengths = lengths_of(min(SHARD_DOCUMENTS, documents - first), number)
        shard = shard_entry(folder, number, len(lengths), int(lengths.sum()))
        sparse(shard.bin_path, shard.file_bytes)
        if not holes:
            ids = np.random.default_rng(number).integers(1, 50_000, shard.tokens, dtype=np.uint16)
            ids.tofile(shard.bin_path)
        shard.index_path.write_bytes(index_bytes(lengths.astype(np.int32), np.dtype("<u2")))
        quality = np.random.default_rng(number).random(len(lengths), np.float32)
        zeros = np.zeros(len(lengths), np.int64)
        file = pa.array(["f"]).take(pa.array(zeros))
        columns = [file, zeros, np.arange(len(lengths)), lengths, lengths * 4]
        hashes = pa.array([b"0" * 16], SCHEMA.field("hash").type).take(pa.array(zeros))
        arrays = [
            pa.array(c).cast(f.type)
            for c, f in zip([*columns, hashes, quality], [*SCHEMA, QUALITY], strict=True)
        ]
        pq.write_table(
            pa.table(arrays, schema=SCHEMA.append(QUALITY)), shard.ledger_path, row_group_size=WINDOW
        )
        shards.append(replace(shard, index_root=root_of(shard.index_path)))
    write_manifest(folder, bare_manifest(50_000, shards))
    return load_manifest(folder)


def shard_entry(folder: Path, number: int, documents: int, tokens: int) -> Shard:
    path = f"web/web-{number:05d}.bin"
    return Shard(path, "web", "train", tokens, documents, 2 * tokens, 4 * tokens, "", "", folder=folder)


def mix_of(manifest: Manifest, entries: list[MixSource], length: int) -> Mix:
    quotas = tuple(length // len(entries) for _ in entries)
    return Mix(manifest.fingerprint, "train", SEQ_LEN, 0, "epoch", tuple(entries), (Stage(quotas),))


def made(folder: Path, documents: int) -> None:
    """Part 1."""
    from pretok.stream.classes import divide

    manifest = simulate(folder / "shards", documents)
    began, used = time.perf_counter(), time.process_time()
    entries = divide(manifest, "train", "web", CLASSES, folder / FOLDER, SEQ_LEN, "epoch")
    seconds = time.perf_counter() - began
    print(
        f"made: {documents:,} documents into {', '.join(f'{e.name} {e.tokens:,}' for e in entries)} tokens in "
        f"{seconds:.1f} s, {time.process_time() - used:.1f} s of processor, "
        f"{manifest.totals.tokens / seconds / 1e6:,.0f} M tokens/s; peak {peak_bytes() / 2**20:.0f} MiB; side files "
        f"{sum(path.stat().st_size for path in (folder / FOLDER).iterdir()) / documents:.3f} bytes a document"
    )


def opened(folder: Path) -> None:
    """Part 2."""
    tokens, documents, shards = 3 * 10**12, 3 * 10**9, 3000
    entries = [shard_entry(folder, n, documents // shards, tokens // shards) for n in range(shards)]
    write_manifest(folder / "shards", bare_manifest(50_000, entries))
    runs = documents // 4  # of a half at random: some two documents each
    blocks = -(-runs // EACH)
    with TapeWriter(folder / FOLDER, "half") as writer:
        # The runs are a hole: what a sequence reads of them is not measured here.
        writer._at, writer.tokens = blocks * EACH * WIDE.itemsize, tokens // 2
        writer._file.file.seek(writer._at)
        starts = np.linspace(0, tokens // 2, blocks + 1).astype(np.int64)[:-1]
        places = 2 * EACH * WIDE.itemsize * np.arange(blocks) + 1
        columns = (starts, 2 * starts, 2 * starts + 1, places, 0 * starts)
        writer._blocks = list(zip(*(column.tolist() for column in columns), strict=True))
        digest = writer.seal({"shards": shards, "indexes": shards_key(entries), "members": documents // 2})
    held = [
        MixSource(f"class-{n:02d}", tokens // 2, sequences(tokens // 2, SEQ_LEN, "epoch"), "web", digest)
        for n in range(20)
    ]
    manifest = load_manifest(folder / "shards")
    write_mix(folder / "mix.json", mix_of(manifest, held, 10**8), {})
    code = (
        "import sys, time, json; began = time.perf_counter()\n"
        "import pretok.stream\n"
        "from pretok.base.execute import peak_bytes\n"
        "loaded, before = time.perf_counter(), peak_bytes()\n"
        "view = pretok.stream.open(sys.argv[1] + '/shards', sys.argv[1] + '/mix.json')\n"
        "print(json.dumps([loaded - began, time.perf_counter() - loaded, before, peak_bytes()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    load, seconds, before, peak = json.loads(done.stdout)
    size = runs * WIDE.itemsize / 1e9
    print(
        f"opened: 20 classes of {size:.2f} GB each over 3,000 shards in {seconds:.2f} s after {load:.2f} s of imports; "
        f"peak {peak / 2**20:.0f} MiB, {(peak - before) / 2**20:.0f} of them by opening"
    )


def read(folder: Path, documents: int) -> None:
    """Part 3."""
    import pretok.stream
    from pretok.stream.classes import divide

    manifest = simulate(folder / "shards", documents)
    entries = divide(manifest, "train", "web", HALVES, folder / FOLDER, SEQ_LEN, "epoch")
    length = min(100_000, 2 * min(entry.sequences for entry in entries))
    write_mix(folder / "mix.json", mix_of(manifest, entries, length), {})
    whole = mix_of(manifest, [MixSource("web", *_sizes(manifest))], length)
    write_mix(folder / "whole.json", whole, {})
    for name in ("mix.json", "whole.json", "mix.json", "whole.json"):
        view = pretok.stream.open(folder / "shards", folder / name)
        positions = np.random.default_rng(1).integers(0, len(view), 1000).tolist()
        times = []
        for position in positions:
            began = time.perf_counter()
            view[position]
            times.append(time.perf_counter() - began)
        view = pretok.stream.open(folder / "shards", folder / name)
        began, used = time.perf_counter(), time.process_time()
        for first in range(0, len(view) - 63, 64):
            view.batch(range(first, first + 64), view.dtype)
        count = (len(view) // 64) * 64 * SEQ_LEN
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        pieces = len(view.pieces_of(np.arange(1024))[0].row) / 1024
        what = "two classes" if name == "mix.json" else "one source"
        print(
            f"read {what}: a random sequence {np.median(times) * 1e6:.0f} us, forward {count / seconds / 1e6:.0f} M "
            f"tokens/s ({count / processor / 1e6:.0f} a second of processor); {pieces:.1f} pieces a sequence"
        )


def cold(folder: Path, documents: int) -> None:
    """Part 4."""
    import pretok.stream
    from pretok.stream.classes import divide
    from pretok.stream.mix_job import MixRequest, run_mix

    manifest = simulate(folder / "shards", documents, holes=False)
    entries = divide(manifest, "train", "web", HALVES, folder / FOLDER, SEQ_LEN, "epoch")
    length = 2 * min(entry.sequences for entry in entries)
    write_mix(folder / "classes.json", mix_of(manifest, entries, length), {})
    write_mix(folder / "whole.json", mix_of(manifest, [MixSource("web", *_sizes(manifest))], length), {})
    classes = {name: f"web where {condition}" for name, condition in HALVES.items()}
    for name, table in (("packed", {}), ("packed-classes", {"classes": classes})):
        wish = make_mix({"seq_len": SEQ_LEN, "pack": "best-fit", **table}, "benchmark")
        run_mix(folder / "shards", folder / f"{name}.json", MixRequest(wish))
    os.sync()
    for name in ("whole", "classes", "packed", "packed-classes"):
        view = pretok.stream.open(folder / "shards", folder / f"{name}.json")
        files = {path_of(folder / FOLDER, one.tape) for one in view.mix.sources if one.tape}
        held, stored = sum(path.stat().st_size for path in files), 2 * manifest.totals.tokens
        print(
            f"side files, {name}: {held / documents:.3f} bytes a document, {held / stored:.3%} of the tokens' bytes"
        )
        times, again, before = [], [], _from_disk()
        for position in np.random.default_rng(1).integers(0, len(view), COLD).tolist():
            evict(path for path in folder.rglob("*") if path.is_file())
            began = time.perf_counter()
            view[position]
            times.append(1e3 * (time.perf_counter() - began))
            began = time.perf_counter()
            view[position]
            again.append(1e3 * (time.perf_counter() - began))
        each = (_from_disk() - before) / COLD
        print(
            f"cold, {name}: a random sequence {np.median(times):.2f} ms, 99th percentile "
            f"{np.percentile(times, 99):.2f} ms; {each / 1024:.0f} KiB from the disk; again from memory "
            f"{np.median(again):.2f} ms"
        )


def memory(folder: Path, documents: int) -> None:
    """Part 5."""
    for count in (documents // 8, documents // 4):
        here = folder / str(count)
        fresh(simulate, here / "shards", count, quiet=True)
        for what in (make_classes, make_packing, disclose_half):
            seconds, peak, loaded = fresh(what, here, quiet=True)
            print(
                f"memory, {what.__name__}, {count:,} documents: {(peak - loaded) / 2**20:.0f} MiB beside "
                f"{loaded / 2**20:.0f} of the libraries, in {seconds:.1f} s"
            )


def _measured(work: Callable[[], object]) -> tuple[float, int, int]:
    """(seconds, peak, peak before) of the process in which something is done."""
    loaded, began = peak_bytes(), time.perf_counter()
    work()
    return time.perf_counter() - began, peak_bytes(), loaded


def make_classes(folder: Path) -> tuple[float, int, int]:
    import duckdb  # noqa: F401

    from pretok.stream.classes import divide

    manifest = load_manifest(folder / "shards")
    options = (SEQ_LEN, "epoch")
    return _measured(lambda: divide(manifest, "train", "web", CLASSES, folder / FOLDER, *options))


def make_packing(folder: Path) -> tuple[float, int, int]:
    from pretok.stream.mix_job import MixRequest, run_mix
    from pretok.stream.pack import window_runs

    window_runs(np.arange(9), np.ones(9, np.int64), 9)  # loads the kernel
    wish = make_mix({"seq_len": SEQ_LEN, "pack": "best-fit"}, "benchmark")
    return _measured(lambda: run_mix(folder / "shards", folder / "packed.json", MixRequest(wish)))


def disclose_half(folder: Path) -> tuple[float, int, int]:
    import duckdb  # noqa: F401

    from pretok.disclosure.figures import open_figures
    from pretok.disclosure.read import read_mix
    from pretok.stream.continued import beginning

    manifest = load_manifest(folder / "shards")
    half = beginning(manifest, folder / "packed.json", len(load_mix(folder / "packed.json")) // 2)
    write_mix(folder / "half.json", half, {})

    def count() -> None:
        with open_figures(manifest, {}) as figures:
            figures.add("read", read_mix(manifest, folder / "half.json"))

    return _measured(count)


def _sizes(manifest: Manifest) -> tuple[int, int]:
    tokens = manifest.totals.tokens
    return tokens, sequences(tokens, SEQ_LEN, "epoch")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, help="where to work; a new folder below the system's by default"
    )
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--read", type=int, default=2_000_000)
    parser.add_argument("--cold", type=int, default=300_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as work:
        opened(Path(work) / "open")
        read(Path(work) / "read", args.read)
        made(Path(work) / "make", args.documents)
        cold(Path(work) / "cold", args.cold)
        memory(Path(work) / "memory", args.documents)


if __name__ == "__main__":
    main()
