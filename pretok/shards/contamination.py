"""The results of a search for benchmark items, as files next to the shards.

Input: a Benchmark, and the matches of its items in the parts of a source. Output, in SHARDS:

    benchmark.json             fingerprint, gram, shortest, items {FILE: number}, not_checkable [FILE:LINE]
    contamination/SOURCE.json  [{item, size, documents, grams}]: for each item that was found, its number of grams, the
                               documents that hold a part of it, and the most grams that one document holds; for
                               appends SOURCE.1.json and so on

Rejected documents count. `found_items` adds up the sources that the manifest lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain
from pathlib import Path

from pretok.base.console import Console, Table, table
from pretok.base.records import Count, Digest, Record, read_record, to_json
from pretok.base.storage import read_json, write_json
from pretok.base.units import plural
from pretok.kernels.ngrams import GRAM, SHORTEST
from pretok.screen.benchmark import Benchmark, ItemCount, save_benchmark, sum_items
from pretok.shards.manifest import Manifest

FOLDER = "contamination"
HALF = 0.5
"""The table counts the items of which some document holds at least this share."""


class BenchmarkEntry(Record, frozen=True):
    """benchmark.json."""

    fingerprint: Digest
    gram: Count
    """Words of a gram."""
    shortest: Count
    """Words of the shortest passage that is searched for."""
    items: dict[str, Count]
    """The number of items in each file."""
    not_checkable: tuple[str, ...]
    """Items, as FILE:LINE, without a passage of `shortest` words."""


def benchmark_path(shards: Path) -> Path:
    """Path of the description of the benchmark."""
    return shards / "benchmark.json"


def kept_benchmark(state: Path) -> Path:
    """Path of the benchmark for workers while the shards are made."""
    return state / "benchmark.npz"


def keep_benchmark(shards: Path, state: Path, benchmark: Benchmark, console: Console) -> None:
    """Write the description of the benchmark, and the benchmark for workers."""
    items, short = Counter(map(_file_of, benchmark.names)), tuple(benchmark.not_checkable)
    entry = BenchmarkEntry(benchmark.fingerprint, GRAM, SHORTEST, items, short)
    write_json(benchmark_path(shards), to_json(entry))
    console.notice(
        f"benchmark: {plural(len(benchmark.names), 'item')}, {len(benchmark.grams.keys):,} different runs of words; "
        f"not checkable, because no text in them has {SHORTEST} words: {plural(len(short), 'item')}"
    )
    save_benchmark(benchmark, kept_benchmark(state))


def write_found(shards: Path, unit: str, parts: Iterable[tuple[ItemCount, ...]]) -> Path:
    """Write the matches in a source or an append, if there is a benchmark; returns the path of the file."""
    path = shards / FOLDER / f"{unit}.json"
    if benchmark_path(shards).exists():
        write_json(path, to_json(sum_items(chain.from_iterable(parts))))
    return path


def found_items(manifest: Manifest, sources: Collection[str]) -> tuple[ItemCount, ...]:
    """Return what was found in these sources together. Raises IntegrityError."""
    listed = [file.path for file in manifest.side_files if file.source in sources]
    paths = [manifest.folder / path for path in listed if path.startswith(f"{FOLDER}/")]
    for path in paths:
        manifest.check(path)
    found = (read_record(tuple[ItemCount, ...], read_json(path), path) for path in paths)
    return sum_items(chain.from_iterable(found))


def _file_of(item: str) -> str:
    """Return the file of an item, FILE:LINE."""
    return item.rpartition(":")[0]


def contamination_table(manifest: Manifest, sources: Collection[str]) -> Table | None:
    """Return a row for each file of the benchmark; None without a benchmark. Raises IntegrityError."""
    path = benchmark_path(manifest.folder)
    if not manifest.check(path):
        return None
    benchmark = read_record(BenchmarkEntry, read_json(path), path)
    short, found = Counter(map(_file_of, benchmark.not_checkable)), found_items(manifest, sources)
    rows = []
    for file, items in benchmark.items.items():
        held = [item for item in found if _file_of(item.item) == file]
        most = max((item.grams / item.size for item in held), default=0.0)
        half = sum(item.grams >= HALF * item.size for item in held)
        numbers = (items, short[file], len(held), half)
        rows.append((file, *(f"{number:,}" for number in numbers), f"{most:.2f}"))
    columns = ("benchmark", "items", "not checkable", "found in part", "half or more", "largest share")
    return table("contamination", columns, rows)
