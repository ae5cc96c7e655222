"""count: sources -> exact counts of every word, a lasting artifact.

Enters: a Recipe. Leaves: COUNTS/counts.json, written last, and what it describes:

    bucket-00.parquet ... bucket-63.parquet   the words of one bucket, a row group per source
    heldout.parquet                           some held-out texts of each source, for comparing tokenizers

Vocabularies of any size and for any mix are trained from these files without reading text again, and the counts of
several corpora are added up bucket by bucket. Work in progress is in COUNTS/.state; a restart skips what is there.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pretok.base.errors import IntegrityError, MismatchError, PartitionsFailed, UsageError
from pretok.base.execute import Engine
from pretok.base.failures import TaskError, raise_failures
from pretok.base.lock import hold
from pretok.base.progress import Progress
from pretok.base.storage import atomic_open, checksum, fingerprint, read_json, remove_leftovers, write_json
from pretok.base.tasks import run_tasks
from pretok.base.tell import Teller
from pretok.base.units import counted
from pretok.config import Recipe
from pretok.counts.buckets import BUCKETS, read_metadata
from pretok.counts.task import (
    TEXT_SCHEMA,
    CountRecord,
    CountTask,
    ReduceTask,
    count_partition,
    reduce_buckets,
)
from pretok.kernels.unicode import FILE as UNICODE_FILE
from pretok.read.changes import INPUTS, refuse, refuse_changes, shared_inputs
from pretok.read.files import InputFile, list_inputs
from pretok.read.partition import Partition, plan, shard_bytes
from pretok.read.partition_runs import expect, run_partitions
from pretok.read.probe import probe_inputs
from pretok.read.rejects import poor_sources

FORMAT = "pretok-counts"
VERSION = 1
FILE_NAME = "counts.json"
HELDOUT_FILE = "heldout.parquet"
STATE = ".state"
ADDED = "added"
"""Key of the settings of a sum: folder of the counts that were added -> their fingerprint."""
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
    tell: Teller,
    config: dict[str, Any] | None = None,
) -> Counts:
    """Count what the recipe names, or return the counts that are there. MismatchError when those are of other input.

    config: what `count_config` gave, from a caller that has listed the inputs already. PartitionsFailed when a
    partition could not be counted or a source gave too little; inputs that are damaged are counted up to the damage and
    listed under `failed`. FolderInUse while another job counts there.
    """
    folder = recipe.counts_dir
    if config is None:
        config = count_config(recipe, engine, tell)
    with tell.progress("count") as progress, _claim(folder, config) as done:
        if done:
            return _enough(done, recipe)
        state = folder / STATE
        with engine.stop.raising():
            tasks = {
                name: _tasks(name, config["inputs"][name]["files"], recipe, state, tell)
                for name in recipe.sources
            }
        records = _count(tasks, engine, progress, tell)
        reductions = [
            ReduceTask(
                folder / f"bucket-{k:02d}.parquet",
                {name: [(task.path, k) for task in tasks[name]] for name in tasks},
            )
            for k in range(BUCKETS)
        ]
        texts = {name: [task.heldout_path for task in tasks[name]] for name in tasks}
        return _enough(_finish(folder, config, records, reductions, texts, engine, tell), recipe)


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


def add_counts(parts: list[Counts], folder: Path, engine: Engine, tell: Teller) -> Counts:
    """Add up counts of several corpora into `folder`, or return the sum that is there; sources of one name become one.

    UsageError when the same counts are named twice; MismatchError when settings differ, or when `folder` holds another
    sum or counts, finished or not.
    """
    configs = [
        {key: value for key, value in part.data["config"].items() if key not in (INPUTS, ADDED)}
        for part in parts
    ]
    for part, config in zip(parts[1:], configs[1:], strict=True):
        refuse_changes("the counts", part.folder, config, configs[0])
    names = sorted({name for part in parts for name in part.sources})
    records = {name: CountRecord() for name in names}
    for part in parts:
        for name in part.sources:
            records[name].add(part.of(name))
    if len({fingerprint(part.data) for part in parts}) < len(parts):
        raise UsageError("two of these folders hold the same counts, which would be added twice")
    inputs = {"added": [part.data["config"] for part in parts]}
    added = {str(part.folder): fingerprint(part.data) for part in parts}
    config = {**configs[0], INPUTS: inputs, ADDED: added}
    with tell.progress("count"), _claim(folder, config) as done:
        if done:
            return done
        engine.choose(sum(path.stat().st_size for part in parts for path in part.buckets))
        groups = {
            name: [(part, part.sources.index(name)) for part in parts if name in part.sources]
            for name in names
        }
        reductions = [
            ReduceTask(
                folder / f"bucket-{k:02d}.parquet",
                {name: [(part.buckets[k], group) for part, group in groups[name]] for name in names},
            )
            for k in range(BUCKETS)
        ]
        texts = {name: [part.heldout_texts(name) for part, _ in groups[name]] for name in names}
        return _finish(folder, config, records, reductions, texts, engine, tell)


@contextmanager
def _claim(folder: Path, config: dict[str, Any]) -> Iterator[Counts | None]:
    """Have `folder` for the counts that `config` describes; those that are there, or None if they are to be made.

    Raises MismatchError that names the differences when it holds others, finished or begun.
    """
    if done := _finished(folder, config):  # without a lock: the folder may be one that only others write to
        yield done
        return
    with hold(folder, "count"):
        if done := _finished(folder, config):  # since a moment ago
            yield done
            return
        (folder / FILE_NAME).unlink(missing_ok=True)  # of no document, or `_finished` would have refused
        state = folder / STATE
        begun = state / FILE_NAME
        buckets = list(folder.glob("bucket-*.parquet"))
        old = read_json(begun) if begun.exists() else None
        if old and (
            ADDED in old or buckets or any(state.glob("*.parquet"))
        ):  # what counted nothing binds nothing
            _refuse_others(folder, old, config)
        else:
            for path in buckets:  # of counts whose state someone has deleted
                path.unlink()
            write_json(begun, config)
        remove_leftovers(folder)
        yield None


def _finished(folder: Path, config: dict[str, Any]) -> Counts | None:
    """The finished counts in `folder`; None if there are none or if they hold no document and are of something else."""
    if not (folder / FILE_NAME).exists():
        return None
    done = load_counts(folder)
    try:
        _refuse_others(folder, done.data["config"], config)
    except MismatchError:
        if any(done.of(name).read > done.of(name).rejected.total() for name in done.sources):
            raise
        return None
    return done


def _refuse_others(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """MismatchError when counts made from `old` are not those of `new`."""
    before, now = old.get(ADDED, {}), new.get(ADDED, {})
    if sorted(before.values()) == sorted(now.values()):
        same = {INPUTS, ADDED} if now else {ADDED}  # the same counts, perhaps under other paths
        refuse_changes(
            "the counts", folder, old, {key: value for key, value in new.items() if key not in same}
        )
        return
    refuse(
        "the counts",
        folder,
        [
            *(f"{path} is not added any more" for path in sorted(before.keys() - now.keys())),
            *(f"{path} is new" for path in sorted(now.keys() - before.keys())),
            *(
                f"{path} holds other counts"
                for path in sorted(before.keys() & now.keys())
                if before[path] != now[path]
            ),
        ],
    )


def count_config(recipe: Recipe, engine: Engine, tell: Teller) -> dict[str, Any]:
    """All that decides the counts: settings, and every input with its size and identity."""
    inputs, listed = {}, {}
    with engine.stop.raising():
        for name, source in recipe.sources.items():
            listed[name], notices = list_inputs(source.inputs, source.format)
            inputs[name] = {**asdict(source.record), "files": [asdict(file) for file in listed[name]]}
            for text in notices:
                tell.notice(text)
    for text in shared_inputs(listed):
        tell.notice(text)
    return {
        "pattern": recipe.vocab.pattern,
        "unicode": UNICODE_FILE.read_text(encoding="ascii").splitlines()[0],
        "normalize": recipe.normalize.model_dump(),
        "sample": str(recipe.vocab.sample),
        "holdout": str(recipe.vocab.holdout),
        "seed": recipe.vocab.seed,
        "inputs": inputs,
    }


def partitions_of(name: str, inputs: list[dict[str, Any]], recipe: Recipe, tell: Teller) -> list[Partition]:
    """How the text of a source is cut into tasks."""
    probes = probe_inputs([InputFile(**file) for file in inputs], recipe.sources[name].field, tell)
    return plan(name, probes, shard_bytes(probes, TOKEN_BYTES), TOKEN_BYTES)


def _tasks(
    name: str, inputs: list[dict[str, Any]], recipe: Recipe, state: Path, tell: Teller
) -> list[CountTask]:
    source = recipe.sources[name]
    partitions = partitions_of(name, inputs, recipe, tell)
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
    progress: Progress,
    tell: Teller,
) -> dict[str, CountRecord]:
    """Run the count tasks; per source what was read."""
    every = [task for parts in tasks.values() for task in parts]
    size = expect(every, progress)
    by_name = _counted_before([task for task in every if task.path.exists()])
    left = [task for task in every if task.partition.name not in by_name]
    done = Counter({"partitions": len(by_name)})
    for task in every:
        if record := by_name.get(task.partition.name):
            done.update(record.counts(task.partition.source))
    progress.start_from(dict(done))
    text = f"{counted(len(every), 'partition')} to count"
    if by_name:
        text += f", {len(by_name)} of them done by an earlier run, with {done['documents']:,} documents"
    tell.notice(text)
    if place := engine.choose(size):
        tell.notice(place)
    failures = []
    for task, outcome in run_partitions(count_partition, left, len(by_name), engine, progress, tell):
        if isinstance(outcome.result, TaskError):
            failures.append((task.partition.name, outcome.result))
        else:
            by_name[task.partition.name] = outcome.result
    raise_failures(failures, tell)
    records = {}
    for name, parts in tasks.items():
        records[name] = CountRecord()
        for task in parts:
            records[name].add(by_name[task.partition.name])
    return records


def _counted_before(tasks: list[CountTask]) -> dict[str, CountRecord]:
    """What an earlier run counted, by partition; read in threads, as a file of a slow file system takes 10 ms."""
    with ThreadPoolExecutor(16) as pool:
        found = pool.map(lambda task: CountRecord.from_json(read_metadata(task.path)), tasks)
        return {task.partition.name: record for task, record in zip(tasks, found, strict=True)}


def _finish(
    folder: Path,
    config: dict[str, Any],
    records: dict[str, CountRecord],
    reductions: list[ReduceTask],
    texts: dict[str, list[Any]],
    engine: Engine,
    tell: Teller,
) -> Counts:
    """Reduce the buckets, collect held-out texts, write counts.json, drop the state."""
    share = max(1, BUCKETS // (4 * engine.parallel))  # Ray takes 4 ms for a task, a small bucket 15
    groups = [reductions[k : k + share] for k in range(0, BUCKETS, share)]
    names = [group[0].path.name for group in groups]
    failures = [
        (names[outcome.index], outcome.result)
        for outcome in run_tasks(reduce_buckets, groups, names, "group of buckets", engine, tell)
        if isinstance(outcome.result, TaskError)
    ]
    remove_leftovers(folder)
    raise_failures(failures, tell, "groups of buckets")
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
