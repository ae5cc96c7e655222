"""count: sources -> exact counts of every word, a lasting artifact.

Input: a Recipe. Output: COUNTS/counts.json, written last, and what it describes:

    bucket-00.parquet ... bucket-63.parquet   the words of one bucket, a row group per source
    heldout.parquet                           some held-out texts of each source, for comparing tokenizers

Vocabularies of any size and for any mix are trained from these files without reading text again, and the counts of
several corpora are added up bucket by bucket. Work in progress is in COUNTS/.state; a restart skips what is there.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pretok.base.console import Console
from pretok.base.errors import PartitionsFailed, UsageError
from pretok.base.execute import Engine
from pretok.base.failures import Failure, Failures, raise_failures
from pretok.base.lock import hold
from pretok.base.reads import map_reads
from pretok.base.records import read_record, replace, to_json
from pretok.base.storage import atomic_open, checksum, read_json, write_json
from pretok.base.tasks import Step, open_step
from pretok.config import Recipe
from pretok.counts.buckets import BUCKETS
from pretok.counts.counts_file import (
    FILE_NAME,
    HELDOUT_FILE,
    CorpusCounts,
    CountConfig,
    CountRecord,
    load_counts,
    write_counts,
)
from pretok.counts.task import (
    TEXT_SCHEMA,
    CountTask,
    ReduceTask,
    count_partition,
    load_record,
    reduce_buckets,
)
from pretok.kernels.unicode import FILE as UNICODE_FILE
from pretok.read.changes import SourceInputs, refuse, refuse_changes, shared_inputs
from pretok.read.files import stamps_of
from pretok.read.partition import plan, shard_bytes, stamped
from pretok.read.partition_runs import run_partitions
from pretok.read.probe import probe_inputs
from pretok.read.recognise import list_inputs
from pretok.read.rejects import poor_sources

STATE = ".state"
TOKEN_BYTES = 2
"""Width assumed when text is cut into partitions, which then are those of tokenization."""
HELDOUT_TEXT = 4 << 20
"""Bytes of held-out text kept of each source."""


def refuse_partial(what: str, failed: Sequence[Failure], stale: str) -> None:
    """PartitionsFailed where inputs were read only in part: names them, and the folders that mending makes stale."""
    if failed:
        names = "\n  ".join(f"{failure.file}: {failure.error}" for failure in failed)
        raise PartitionsFailed(
            f"{what}, but these inputs were read only in part:\n  {names}\n"
            f"fix the files, delete {stale} and run the same command again to count all of them"
        )


def run_count(
    recipe: Recipe,
    engine: Engine,
    console: Console,
    config: CountConfig | None = None,
) -> CorpusCounts:
    """Count what the recipe names, or return the counts that are there. MismatchError when those are of other input.

    config: what `count_config` gave, from a caller that has listed the inputs already. PartitionsFailed when a
    partition could not be counted or a source gave too little; inputs that are damaged are counted up to the damage and
    listed under `failed`. FolderInUse while another job counts there.
    """
    folder = recipe.counts_dir
    if config is None:
        config = count_config(recipe, engine, console)
    with open_step("count", engine, console) as step, _claim(folder, config) as done:
        if done:
            return _enough(done, recipe)
        state = folder / STATE
        with engine.stop.raising():
            tasks = {name: _tasks(name, config, recipe, state, console) for name in recipe.sources}
        records = _count(tasks, step)
        reductions = [
            ReduceTask(
                folder / f"bucket-{k:02d}.parquet",
                {name: [(task.path, k) for task in tasks[name]] for name in tasks},
            )
            for k in range(BUCKETS)
        ]
        texts = {name: [task.heldout_path for task in tasks[name]] for name in tasks}
        return _enough(_finish(folder, config, records, reductions, texts, step), recipe)


def _enough(counts: CorpusCounts, recipe: Recipe) -> CorpusCounts:
    """The counts, or PartitionsFailed when a source gave too little."""
    sources = {name: (record.read, record.rejected) for name, record in counts.records.items()}
    if complaints := poor_sources(
        recipe.shards.max_reject_share, sources, f"the counts are in {counts.folder}; delete it to count anew"
    ):
        failed = (f"{failure.file}: {failure.error}" for failure in counts.failed)
        raise PartitionsFailed("\n  ".join([*complaints, *failed]))
    return counts


def add_counts(parts: list[CorpusCounts], folder: Path, engine: Engine, console: Console) -> CorpusCounts:
    """Add up counts of several corpora into `folder`, or return the sum that is there; sources of one name become one.

    UsageError when the same counts are named twice; MismatchError when settings differ, or when `folder` holds another
    sum or counts, finished or not.
    """
    settings = [replace(part.config, inputs={}, added={}) for part in parts]
    for part, other in zip(parts[1:], settings[1:], strict=True):
        refuse_changes("the counts", part.folder, to_json(other), to_json(settings[0]))
    names = sorted({name for part in parts for name in part.sources})
    records = {name: CountRecord() for name in names}
    for part in parts:
        for name, record in part.records.items():
            records[name].add(record)
    added = {str(part.folder): part.fingerprint for part in parts}
    if len(set(added.values())) < len(parts):
        raise UsageError("two of these folders hold the same counts, which would be added twice")
    config = replace(settings[0], added=added)
    with open_step("count", engine, console) as step, _claim(folder, config) as done:
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
        for part in parts:
            part.check()
        texts = {name: [part.heldout_texts(name) for part, _ in groups[name]] for name in names}
        return _finish(folder, config, records, reductions, texts, step)


@contextmanager
def _claim(folder: Path, config: CountConfig) -> Iterator[CorpusCounts | None]:
    """Have `folder` for the counts that `config` describes; those that are there, or None if they are to be made.

    Raises MismatchError that names the differences when it holds others, finished or begun.
    """
    if done := _finished(folder, config):  # without a lock: the folder may be one that only others write to
        shutil.rmtree(folder / STATE, ignore_errors=True)  # of which a kill may have left a part
        yield done
        return
    with hold(folder, "count"):
        if done := _finished(folder, config):  # since a moment ago
            yield done
            return
        state = folder / STATE
        begun = state / FILE_NAME
        buckets = list(folder.glob("bucket-*.parquet"))
        old = read_record(CountConfig, read_json(begun), begun) if begun.exists() else None
        # What counted nothing binds nothing.
        if old and (old.added or buckets or any(state.glob("*.parquet"))):
            _refuse_others(folder, old, config)
        else:
            for path in buckets:  # of counts whose state someone has deleted
                path.unlink()
            write_json(begun, to_json(config))
        yield None


def _finished(folder: Path, config: CountConfig) -> CorpusCounts | None:
    """The finished counts in `folder`, None if there are none."""
    if not (folder / FILE_NAME).exists():
        return None
    done = load_counts(folder)
    _refuse_others(folder, done.config, config)
    return done


def _refuse_others(folder: Path, old: CountConfig, new: CountConfig) -> None:
    """MismatchError when counts made from `old` are not those of `new`."""
    before, now = old.added, new.added
    if sorted(before.values()) != sorted(now.values()):
        gone = [f"{path} is not added any more" for path in sorted(before.keys() - now.keys())]
        more = [f"{path} is new" for path in sorted(now.keys() - before.keys())]
        same = sorted(before.keys() & now.keys())
        other = [f"{path} holds other counts" for path in same if before[path] != now[path]]
        refuse("the counts", folder, [*gone, *more, *other])
    # The same counts may have been added from other folders.
    refuse_changes("the counts", folder, to_json(replace(old, added={})), to_json(replace(new, added={})))


def count_config(recipe: Recipe, engine: Engine, console: Console) -> CountConfig:
    """All that decides the counts: settings, and every input with its size and identity."""
    listed = {}
    with engine.stop.raising():
        for name, source in recipe.sources.items():
            listed[name], notices = list_inputs(source.inputs, source.format)
            for text in notices:
                console.notice(text)
    for text in shared_inputs(listed):
        console.notice(text)
    return CountConfig(
        pattern=recipe.vocab.pattern,
        unicode=UNICODE_FILE.read_text(encoding="ascii").splitlines()[0],
        normalize=recipe.normalize.function,
        sample=str(recipe.vocab.sample),
        holdout=str(recipe.vocab.holdout),
        seed=recipe.vocab.seed,
        inputs={
            name: SourceInputs(**to_json(recipe.sources[name].record), files=tuple(files))
            for name, files in listed.items()
        },
    )


def _tasks(name: str, config: CountConfig, recipe: Recipe, state: Path, console: Console) -> list[CountTask]:
    """How the text of a source is cut into tasks."""
    source, inputs = recipe.sources[name], config.inputs[name].files
    stamps = stamps_of(inputs)
    probes = probe_inputs(inputs, *source.probed, console=console)
    partitions = plan(name, probes, shard_bytes(probes, TOKEN_BYTES), TOKEN_BYTES)
    settings = replace(config, inputs={})
    return [
        CountTask(
            stamped(partition, stamps),
            state.absolute(),
            source.record,
            settings,
            HELDOUT_TEXT // len(partitions),
        )
        for partition in partitions
    ]


def _count(tasks: dict[str, list[CountTask]], step: Step) -> dict[str, CountRecord]:
    """Run the count tasks; per source what was read."""
    every = [task for parts in tasks.values() for task in parts]
    counted = [task for task in every if task.path.exists()]
    by_name, before = {}, Counter[str]()
    for task, record in zip(counted, map_reads(lambda task: load_record(task.path), counted), strict=True):
        by_name[task.partition.name] = record
        before.update(record.counts())
    left = [task for task in every if task.partition.name not in by_name]
    failures: Failures = []
    for task, record in run_partitions(count_partition, every, left, "to count", before, step, failures):
        by_name[task.partition.name] = record
    raise_failures(failures, step.console.log)
    records = {}
    for name, parts in tasks.items():
        records[name] = CountRecord()
        for task in parts:
            records[name].add(by_name[task.partition.name])
    return records


def _finish(
    folder: Path,
    config: CountConfig,
    records: dict[str, CountRecord],
    reductions: list[ReduceTask],
    texts: Mapping[str, Sequence[Path | pa.LargeStringArray]],
    step: Step,
) -> CorpusCounts:
    """Reduce the buckets, collect held-out texts, write counts.json, drop the state."""
    share = max(1, BUCKETS // (4 * step.engine.parallel))  # Ray takes 4 ms for a task, a small bucket 15
    groups = [reductions[k : k + share] for k in range(0, BUCKETS, share)]
    for _ in step.map(
        reduce_buckets, groups, "bucket group", lambda group: group[0].path.name, folder=folder
    ):
        pass
    heldout = folder / HELDOUT_FILE
    with (
        atomic_open(heldout) as file,
        pq.ParquetWriter(file, TEXT_SCHEMA, compression="zstd") as writer,
    ):
        for parts in texts.values():
            tables = [_texts_in(p) if isinstance(p, Path) else pa.table([p], TEXT_SCHEMA) for p in parts]
            table = pa.concat_tables(tables) if tables else TEXT_SCHEMA.empty_table()
            writer.write_table(table, row_group_size=max(1, len(table)))
    paths = [*(task.path for task in reductions), heldout]
    counts = write_counts(folder, records, {path.name: checksum(path) for path in paths}, config)
    shutil.rmtree(
        folder / STATE, ignore_errors=True
    )  # last: until counts.json stands, it is all that is done
    return counts


def _texts_in(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return file.read()
