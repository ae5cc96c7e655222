"""count: sources -> exact counts of every word, a lasting artifact.

Enters: a Recipe. Leaves: COUNTS/counts.json, written last, and what it describes:

    bucket-00.parquet ... bucket-63.parquet   the words of one bucket, a row group per source
    heldout.parquet                           some held-out texts of each source, for comparing tokenizers

Vocabularies of any size and for any mix are trained from these files without reading text again, and the counts of
several corpora are added up bucket by bucket. Work in progress is in COUNTS/.state; a restart skips what is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pretok.config import Recipe
from pretok.count import (
    TEXT_SCHEMA,
    CountRecord,
    CountTask,
    ReduceTask,
    count_partition,
    reduce_buckets,
)
from pretok.engine import Counts as Increments
from pretok.engine import Engine, TaskError
from pretok.errors import IntegrityError, MismatchError, PartitionsFailed
from pretok.files import InputFile, list_inputs
from pretok.jobs.changes import refuse_changes
from pretok.jobs.rejects import poor_sources
from pretok.jobs.source_plan import shared_inputs
from pretok.partition import Partition, plan, shard_bytes
from pretok.probe import probe_inputs
from pretok.storage import atomic_open, checksum, read_json, remove_leftovers, write_json
from pretok.unicode import FILE as UNICODE_FILE
from pretok.wordfile import BUCKETS

FORMAT = "pretok-counts"
VERSION = 1
FILE_NAME = "counts.json"
HELDOUT_FILE = "heldout.parquet"
STATE = ".state"
TOKEN_BYTES = 2
"""Width assumed when text is cut into partitions, which then are those of tokenization."""
HELDOUT_TEXT = 4 << 20
"""Bytes of held-out text kept of each source."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Finished counts in `folder`; `data` is counts.json."""

    folder: Path
    data: dict[str, Any]

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in the order of the row groups."""
        return list(self.data["sources"])

    @property
    def pattern(self) -> str:
        """Name of the pattern the words were cut by."""
        return str(self.data["config"]["pattern"])

    @property
    def buckets(self) -> list[Path]:
        """The files of words."""
        return [self.folder / entry["path"] for entry in self.data["buckets"]]

    def of(self, source: str) -> CountRecord:
        """What was read of a source."""
        return CountRecord.from_json(self.data["sources"][source])

    def heldout_texts(self, source: str) -> pa.LargeStringArray:
        """The held-out texts kept of a source."""
        with pq.ParquetFile(self.folder / HELDOUT_FILE) as file:
            return file.read_row_group(self.sources.index(source)).column("text").combine_chunks()


def load_counts(folder: Path) -> Counts:
    """Read FOLDER/counts.json. Raises IntegrityError (missing, damaged) or MismatchError (other format)."""
    data = read_json(folder / FILE_NAME)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{folder / FILE_NAME} does not describe counts of words")
    if data["version"] != VERSION:
        raise MismatchError(
            f"{folder / FILE_NAME} has version {data['version']}, this program reads {VERSION}"
        )
    return Counts(folder, data)


def refuse_partial(what: str, failed: list[dict[str, Any]], stale: str) -> None:
    """PartitionsFailed where inputs were read only in part: names them, and the folders that mending makes stale."""
    if failed:
        names = "\n  ".join(f"{failure['file']}: {failure['error']}" for failure in failed)
        raise PartitionsFailed(
            f"{what}, but these inputs were read only in part:\n  {names}\n"
            f"mend the files, delete {stale} and run the same command again to count all of them"
        )


def run_count(
    recipe: Recipe,
    engine: Engine,
    on_report: Callable[[Increments], None],
    notice: Callable[[str], None],
    config: dict[str, Any] | None = None,
) -> Counts:
    """Count what the recipe names, or return the counts that are there. MismatchError when those are of other input.

    config: what `count_config` gave, from a caller that has listed the inputs already. PartitionsFailed when a
    partition could not be counted or a source gave too little; inputs that are damaged are counted up to the damage and
    listed under `failed`.
    """
    folder = recipe.counts_dir
    state = folder / STATE
    if config is None:
        config = count_config(recipe, engine, notice)
    if (folder / FILE_NAME).exists():
        done = load_counts(folder)
        try:
            refuse_changes("the counts", folder, done.data["config"], config)
            return _enough(done, recipe)
        except MismatchError:
            if any(done.of(name).read > done.of(name).rejected.total() for name in done.sources):
                raise
        for path in (folder / FILE_NAME, *done.buckets):  # counts of no document bind nothing
            path.unlink(missing_ok=True)
    if (state / FILE_NAME).exists() and any(state.glob("*.parquet")):
        refuse_changes("the counts", folder, read_json(state / FILE_NAME), config)
    with engine.stop.raising():
        tasks = {
            name: _tasks(name, config["inputs"][name]["files"], recipe, state, notice)
            for name in recipe.sources
        }
    write_json(state / FILE_NAME, config)
    remove_leftovers(folder)
    records = _count(tasks, engine, on_report, notice)
    reductions = [
        ReduceTask(
            folder / f"bucket-{k:02d}.parquet",
            {name: [(task.path, k) for task in tasks[name]] for name in tasks},
        )
        for k in range(BUCKETS)
    ]
    texts = {name: [task.heldout_path for task in tasks[name]] for name in tasks}
    return _enough(_finish(folder, config, records, reductions, texts, engine), recipe)


def _enough(counts: Counts, recipe: Recipe) -> Counts:
    """The counts, or PartitionsFailed when a source gave too little."""
    records = {name: counts.of(name) for name in counts.sources}
    sources = {name: (record.read, record.rejected) for name, record in records.items()}
    if complaints := poor_sources(
        recipe.shards.max_reject_share, sources, f"the counts are in {counts.folder}; delete it to count anew"
    ):
        failed = (f"{failure['file']}: {failure['error']}" for failure in counts.data["failed"])
        raise PartitionsFailed("\n  ".join([*complaints, *failed]))
    return counts


def add_counts(parts: list[Counts], folder: Path, engine: Engine) -> Counts:
    """Add up counts of several corpora into `folder`; sources of one name become one source."""
    configs = [
        {key: value for key, value in part.data["config"].items() if key != "inputs"} for part in parts
    ]
    for part, config in zip(parts[1:], configs[1:], strict=True):
        refuse_changes("the counts", part.folder, config, configs[0])
    names = sorted({name for part in parts for name in part.sources})
    records = {name: CountRecord() for name in names}
    for part in parts:
        for name in part.sources:
            records[name].add(part.of(name))
    holders = {
        name: [(part, part.sources.index(name)) for part in parts if name in part.sources] for name in names
    }
    reductions = [
        ReduceTask(
            folder / f"bucket-{k:02d}.parquet",
            {name: [(part.buckets[k], group) for part, group in holders[name]] for name in names},
        )
        for k in range(BUCKETS)
    ]
    texts = {name: [part.heldout_texts(name) for part, _ in holders[name]] for name in names}
    added = {"added": [part.data["config"] for part in parts]}
    return _finish(folder, {**configs[0], "inputs": added}, records, reductions, texts, engine)


def count_config(recipe: Recipe, engine: Engine, notice: Callable[[str], None]) -> dict[str, Any]:
    """All that decides the counts: settings, and every input with its size and identity."""
    inputs, listed = {}, {}
    with engine.stop.raising():
        for name, source in recipe.sources.items():
            listed[name], notices = list_inputs(source.inputs, source.format)
            inputs[name] = {**asdict(source.record), "files": [asdict(file) for file in listed[name]]}
            for text in notices:
                notice(text)
    for text in shared_inputs(listed):
        notice(text)
    return {
        "pattern": recipe.vocab.pattern,
        "unicode": UNICODE_FILE.read_text(encoding="ascii").splitlines()[0],
        "normalize": recipe.normalize.model_dump(),
        "sample": str(recipe.vocab.sample),
        "holdout": str(recipe.vocab.holdout),
        "seed": recipe.vocab.seed,
        "inputs": inputs,
    }


def partitions_of(
    name: str, inputs: list[dict[str, Any]], recipe: Recipe, notice: Callable[[str], None] = lambda text: None
) -> list[Partition]:
    """How the text of a source is cut into tasks."""
    probes = probe_inputs([InputFile(**file) for file in inputs], recipe.sources[name].field, notice)
    return plan(name, probes, shard_bytes(probes, TOKEN_BYTES), TOKEN_BYTES)


def _tasks(
    name: str, inputs: list[dict[str, Any]], recipe: Recipe, state: Path, notice: Callable[[str], None]
) -> list[CountTask]:
    source = recipe.sources[name]
    partitions = partitions_of(name, inputs, recipe, notice)
    return [
        CountTask(
            partition=partition,
            folder=state.absolute(),
            record=source.record,
            normalization=recipe.normalize.function,
            pattern=recipe.vocab.pattern,
            sample=recipe.vocab.sample,
            holdout=recipe.vocab.holdout,
            seed=recipe.vocab.seed,
            keep_text=HELDOUT_TEXT // len(partitions),
        )
        for partition in partitions
    ]


def _count(
    tasks: dict[str, list[CountTask]],
    engine: Engine,
    on_report: Callable[[Increments], None],
    notice: Callable[[str], None],
) -> dict[str, CountRecord]:
    """Run the count tasks; per source what was read."""
    ordered = sorted(
        (task for parts in tasks.values() for task in parts),
        key=lambda task: (-task.partition.estimate, task.partition.name),
    )
    done = sum(task.path.exists() for task in ordered)
    notice(f"{len(ordered)} partitions to count, {done} of them done")
    by_name: dict[str, CountRecord] = {}
    failures = []
    for outcome in engine.map(count_partition, ordered, on_report):
        name = ordered[outcome.index].partition.name
        if isinstance(outcome.result, TaskError):
            failures.append(f"{name}: {outcome.result.message}")
        else:
            by_name[name] = outcome.result
    if failures:
        raise PartitionsFailed(
            "\n  ".join([f"{len(failures)} partitions could not be counted; run again to retry:", *failures])
        )
    records = {}
    for name, parts in tasks.items():
        records[name] = CountRecord()
        for task in parts:
            records[name].add(by_name[task.partition.name])
    return records


def _finish(
    folder: Path,
    config: dict[str, Any],
    records: dict[str, CountRecord],
    reductions: list[ReduceTask],
    texts: dict[str, list[Any]],
    engine: Engine,
) -> Counts:
    """Reduce the buckets, collect held-out texts, write counts.json, drop the state."""
    share = max(1, BUCKETS // (4 * (engine.workers or 1)))  # Ray takes 4 ms for a task, a small bucket 15
    groups = [reductions[k : k + share] for k in range(0, BUCKETS, share)]
    for outcome in engine.map(reduce_buckets, groups):
        if isinstance(outcome.result, TaskError):
            raise PartitionsFailed(f"{groups[outcome.index][0].path}: {outcome.result.message}")
    with (
        atomic_open(folder / HELDOUT_FILE) as file,
        pq.ParquetWriter(file, TEXT_SCHEMA, compression="zstd") as writer,
    ):
        for parts in texts.values():
            tables = [_texts_in(p) if isinstance(p, Path) else pa.table([p], TEXT_SCHEMA) for p in parts]
            table = pa.concat_tables(tables) if tables else TEXT_SCHEMA.empty_table()
            writer.write_table(table, row_group_size=max(1, len(table)))
    data = {
        "format": FORMAT,
        "version": VERSION,
        "sources": {name: record.to_json() for name, record in records.items()},
        "failed": [error for record in records.values() for error in record.errors],
        "buckets": [{"path": task.path.name, "checksum": checksum(task.path)} for task in reductions],
        "config": config,
    }
    write_json(folder / FILE_NAME, data)
    shutil.rmtree(folder / STATE, ignore_errors=True)
    return Counts(folder, data)


def _texts_in(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return file.read()
