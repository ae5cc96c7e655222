"""The results of a search for benchmark items, as files beside the shards.

Input: a Benchmark, and what the parts of a source found of its items. Output, in SHARDS:

    benchmark.json             fingerprint, gram, shortest, files [{file, items, not_checkable [lines]}]
    contamination/SOURCE.json  items [{item, size, documents, grams}]: for each item that was found, its number of
                               grams, the documents that hold a part of it, and the most grams that one document holds;
                               for appends SOURCE.1.json and so on

Rejected documents count. `found_items` adds up the sources.
"""

from __future__ import annotations

from collections import Counter
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
"""The table counts the items of which some document holds at least this share."""


class BenchmarkFile(Record, frozen=True):
    """A file of items; not_checkable: the lines of items without a passage of SHORTEST words."""

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
    """contamination/SOURCE.json."""

    items: tuple[ItemCount, ...]


def benchmark_path(shards: Path) -> Path:
    """Path of the description of the benchmark."""
    return shards / "benchmark.json"


def kept_benchmark(state: Path) -> Path:
    """Path of the benchmark for workers while the shards are made."""
    return state / "benchmark.npz"


def keep_benchmark(shards: Path, state: Path, benchmark: Benchmark, console: Console) -> None:
    """Write the description of the benchmark, and the benchmark for workers."""
    items = Counter(name.rpartition(":")[0] for name in benchmark.names)
    short = [name.rpartition(":") for name in benchmark.not_checkable]
    files = tuple(
        BenchmarkFile(file, count, tuple(int(line) for name, _, line in short if name == file))
        for file, count in items.items()
    )
    write_json(benchmark_path(shards), to_json(BenchmarkEntry(benchmark.fingerprint, GRAM, SHORTEST, files)))
    console.notice(
        f"benchmark: {plural(len(benchmark.names), 'item')}, {len(benchmark.grams.keys):,} different runs of words; "
        f"not checkable, because no text in them has {SHORTEST} words: {plural(len(short), 'item')}"
    )
    save_benchmark(benchmark, kept_benchmark(state))


def write_found(shards: Path, unit: str, parts: Iterable[tuple[ItemCount, ...]]) -> Path:
    """Write what the parts of a source or an append found, if there is a benchmark; the path of the file."""
    path = shards / FOLDER / f"{unit}.json"
    if benchmark_path(shards).exists():
        write_json(path, to_json(_Found(sum_items(chain.from_iterable(parts)))))
    return path


def found_items(shards: Path, sources: Iterable[str]) -> tuple[ItemCount, ...]:
    """What was found in these sources together. Raises IntegrityError."""
    folder = shards / FOLDER
    paths = [
        path for name in sources for text in (f"{name}.json", f"{name}.*.json") for path in folder.glob(text)
    ]
    return sum_items(chain.from_iterable(read_record(_Found, read_json(path), path).items for path in paths))


def contamination_table(shards: Path, sources: Iterable[str]) -> Table | None:
    """A row for each file of the benchmark; None without a benchmark. Raises IntegrityError."""
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
