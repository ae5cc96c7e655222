"""What stands beside shards of the benchmark that their documents were searched for.

Input: a Benchmark, and what the parts of a source found of its items. Output, in SHARDS:

    benchmark.json             fingerprint, gram, shortest, files [{file, items, not_checkable [lines]}]
    contamination/SOURCE.json, and of what was appended SOURCE.1.json and so on
                               items [{item, size, documents, grams}]: the items of which anything was found, of how
                               many grams each is, in how many documents a part of it stands, and how many of its grams
                               the one held that held most

Documents that were rejected count. `found_items` adds up the sources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from pretok.base.console import Console, Table, table
from pretok.base.records import Count, Record, read_record, to_json
from pretok.base.storage import read_json, write_json
from pretok.base.units import plural
from pretok.kernels.ngrams import GRAM, SHORTEST
from pretok.screen.benchmark import Benchmark, ItemCount, save_benchmark, sum_items

FOLDER = "contamination"
HALF = 0.5
"""The table tells how many items stand in some document by at least this share."""


class BenchmarkFile(Record, frozen=True):
    """A file of items; not_checkable: lines of items that have no passage of SHORTEST words."""

    file: str
    items: Count
    not_checkable: tuple[Count, ...]


class BenchmarkEntry(Record, frozen=True):
    """benchmark.json; gram, shortest: words of a gram, and of the shortest passage that is looked for."""

    fingerprint: str
    gram: Count
    shortest: Count
    files: tuple[BenchmarkFile, ...]


class _Found(Record, frozen=True):
    """What was found in a source."""

    items: tuple[ItemCount, ...]


def benchmark_path(shards: Path) -> Path:
    """Where the benchmark is described."""
    return shards / "benchmark.json"


def kept_benchmark(state: Path) -> Path:
    """Where workers find the benchmark while the shards are made."""
    return state / "benchmark.npz"


def keep_benchmark(shards: Path, state: Path, benchmark: Benchmark, console: Console) -> None:
    """Describe the benchmark, and leave it for workers."""
    items: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, size in zip(benchmark.names, benchmark.sizes.tolist(), strict=True):
        file, _, line = name.rpartition(":")
        items[file].append((int(line), size))
    files = tuple(
        BenchmarkFile(file, len(held), tuple(line for line, size in held if not size))
        for file, held in items.items()
    )
    write_json(benchmark_path(shards), to_json(BenchmarkEntry(benchmark.fingerprint, GRAM, SHORTEST, files)))
    short = sum(len(file.not_checkable) for file in files)
    console.notice(
        f"benchmark: {plural(len(benchmark.names), 'item')}, {len(benchmark.grams.keys):,} different runs of words; "
        f"not checkable, because no text in them has {SHORTEST} words: {plural(short, 'item')}"
    )
    save_benchmark(benchmark, kept_benchmark(state))


def write_found(shards: Path, unit: str, parts: Iterable[tuple[ItemCount, ...]]) -> Path:
    """Write what the parts of a source, or of an append, found; no file where nothing was looked for. Its path."""
    path = shards / FOLDER / f"{unit}.json"
    if benchmark_path(shards).exists():
        write_json(path, to_json(_Found(sum_items(chain.from_iterable(parts)))))
    return path


def found_items(shards: Path, sources: Iterable[str]) -> tuple[ItemCount, ...]:
    """What was found in all these sources together. Raises IntegrityError."""
    folder = shards / FOLDER
    paths = [
        path for name in sources for text in (f"{name}.json", f"{name}.*.json") for path in folder.glob(text)
    ]
    return sum_items(chain.from_iterable(read_record(_Found, read_json(path), path).items for path in paths))


def contamination_table(shards: Path, sources: Iterable[str]) -> Table | None:
    """A row for each file of the benchmark; None where there is none. Raises IntegrityError."""
    path = benchmark_path(shards)
    if not path.exists():
        return None
    files = read_record(BenchmarkEntry, read_json(path), path).files
    found = found_items(shards, sources)
    rows = []
    for file in files:
        held = [item for item in found if item.item.rpartition(":")[0] == file.file]
        most = max((item.grams / item.size for item in held), default=0.0)
        half = sum(item.grams >= HALF * item.size for item in held)
        numbers = (file.items, len(file.not_checkable), len(held), half)
        rows.append((file.file, *(f"{number:,}" for number in numbers), f"{most:.2f}"))
    columns = ("benchmark", "items", "not checkable", "found in part", "half or more", "largest share")
    return table("contamination", columns, rows)
