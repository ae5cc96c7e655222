"""count: sources -> exact counts of every word, kept for any number of vocabularies.

Input: a Recipe. Output: COUNTS/counts.json, written last, and the files it describes:

    bucket-00.parquet ... bucket-63.parquet   the words of one bucket, a row group per source
    heldout.parquet                           some held-out texts, a row group per source, for comparing tokenizers

Vocabularies of any size and for any mix are trained from these files without reading text again, and counts of
several corpora are added up bucket by bucket. Work in progress is in COUNTS/.state; a restart skips finished files.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pretok.base.console import Console
from pretok.base.errors import PartitionsFailed, UsageError
from pretok.base.execute import Engine
from pretok.base.failures import Failures, LeftOut, raise_failures
from pretok.base.lock import hold
from pretok.base.partition_tasks import run_partitions
from pretok.base.reads import map_reads
from pretok.base.records import read_record, replace, to_json
from pretok.base.storage import atomic_open, await_files, checksum, read_json, write_json
from pretok.base.tasks import Step, open_step
from pretok.config import Recipe
from pretok.config.changes import list_sources, refuse_changes
from pretok.kernels.compile import start_note
from pretok.kernels.unicode import FILE as UNICODE_FILE
from pretok.read.damage import CHANGED, forget, until_whole, without_damaged
from pretok.read.files import Stamp, stamps_of
from pretok.read.partition import plan, shard_bytes, stamped
from pretok.read.probe import probe_inputs
from pretok.read.recognise import SourceInputs
from pretok.read.rejects import DAMAGED_FILE, poor_sources
from pretok.read.rejects_file import merge_rejects, worst_files
from pretok.read.source_plan import PLAN_FILE, PlannedPiece, SourcePlan, read_plan, write_plan
from pretok.vocab.counts.buckets import BUCKETS, concatenate, read_group, write_groups
from pretok.vocab.counts.count_task import (
    Counted,
    CountTask,
    Groups,
    ReduceTask,
    count_partition,
    load_counted,
    reduce_buckets,
)
from pretok.vocab.counts.counts_file import (
    FILE_NAME,
    HELDOUT_FILE,
    CorpusCounts,
    CountConfig,
    CountRecord,
    load_counts,
    write_counts,
)

STATE = ".state"
TOKEN_BYTES = 2
"""Bytes per token assumed when text is split into partitions, so that these are those of tokenization."""
HELDOUT_TEXT = 4 << 20
"""Bytes of held-out text kept of each source."""


class AddedCounts(NamedTuple):
    """Counts of a source that are added up: those of a partition, or of a source of other counts."""

    record: CountRecord
    words: list[Groups]
    """Of each bucket."""
    texts: Groups
    """The held-out texts."""


def run_count(
    recipe: Recipe,
    engine: Engine,
    console: Console,
    config: CountConfig | None = None,
) -> CorpusCounts:
    """Count the words of the recipe's sources, or return the counts that are there.

    config: from `count_config`, if the caller has listed the inputs already. Raises MismatchError if the counts that
    are there are of other inputs or settings, PartitionsFailed if a partition could not be counted, as one with a
    damaged file, or a source gave too little, and FolderInUse while another job counts there.
    """
    folder = recipe.counts_dir
    if config is None:
        config = count_config(recipe, engine, console)
    with open_step("count", engine, console) as step, _claim(folder, config) as done:
        step.progress.note = start_note()
        if done:
            return _enough(done, recipe)
        with engine.stop.raising():
            plans = [_plan(name, config, recipe, folder / STATE, console) for name in recipe.sources]
        stamps = stamps_of([file for plan in plans for file in plan.inputs])

        def leave_out(plan: SourcePlan) -> SourcePlan:
            source, state = recipe.sources[plan.name], folder / STATE
            left = plan
            if source.skip_damaged:
                left = without_damaged(plan, state, source.most_damaged, console)
            if left != plan:
                # Before anything is counted by it: a restart leaves out the same files.
                write_plan(_plan_path(state, plan.name), left)
            return left

        def work(plans: list[SourcePlan]) -> Failures:
            tasks = [task for plan in plans for task in _tasks(plan, config, recipe, folder / STATE, stamps)]
            return _count(tasks, step)

        plans, failures = until_whole(plans, work, leave_out)
        raise_failures(failures, console.log)
        parts, records = dict[str, list[AddedCounts]](), dict[str, CountRecord]()
        for plan in plans:
            tasks = _tasks(plan, config, recipe, folder / STATE, stamps)
            await_files([task.path for task in tasks])
            counted = list(map_reads(lambda task: load_counted(task.path), tasks))
            parts[plan.name] = [_part(task.path, part) for task, part in zip(tasks, counted, strict=True)]
            records[plan.name] = _without(plan.left_out)
            pieces = (part.pieces for part in counted)
            sealed = plan.sealed(dict(zip((task.partition.number for task in tasks), pieces, strict=True)))
            merge_rejects(folder / "rejects" / f"{plan.name}.jsonl", folder / STATE, sealed)
        return _enough(_merge(folder, config, parts, records, step), recipe)


def _without(left_out: Sequence[LeftOut]) -> CountRecord:
    """Return a record of damaged files."""
    rejected = {DAMAGED_FILE: len(left_out)} if left_out else {}
    return CountRecord(read=len(left_out), rejected=rejected, left_out=tuple(left_out))


def _enough(counts: CorpusCounts, recipe: Recipe) -> CorpusCounts:
    """Return the counts. Raises PartitionsFailed if a source has no document or too many rejects."""
    sources = {name: (record.read, record.rejected) for name, record in counts.records.items()}
    if complaints := poor_sources(
        recipe.shards.max_reject_share, sources, lambda name: worst_files([counts.rejects_paths[name]])
    ):
        text = f"the counts are in {counts.folder}; delete it to count the inputs anew once they are fixed"
        raise PartitionsFailed("\n".join([*complaints, text]))
    return counts


def add_counts(parts: list[CorpusCounts], folder: Path, engine: Engine, console: Console) -> CorpusCounts:
    """Add up counts of several corpora into `folder`, or return the sum that is there. Sources of one name become one.

    Raises UsageError if the same counts are named twice; MismatchError if settings differ, or if `folder` holds other
    counts, finished or not.
    """
    settings = [replace(part.config, inputs={}, added={}, leaves=()) for part in parts]
    for part, other in zip(parts[1:], settings[1:], strict=True):
        refuse_changes("the counts", part.folder, to_json(other), to_json(settings[0]))
    added = {str(part.folder): part.fingerprint for part in parts}
    held = dict[str, int]()  # fingerprint of counts that are no sum -> number of the part that has them
    for number, part in enumerate(parts):
        for leaf in part.leaves:
            if (first := held.setdefault(leaf, number)) != number:
                raise UsageError(
                    f"{parts[first].folder} and {part.folder} hold the same counts, which would be added twice"
                )
    config = replace(settings[0], added=added, leaves=tuple(sorted(held)))
    with open_step("count", engine, console) as step, _claim(folder, config) as done:
        if done:
            return done
        engine.choose(sum(path.stat().st_size for part in parts for path in part.buckets))
        for part in parts:
            # A sum over damaged counts would get a seal of its own.
            part.check()
        names = sorted({name for part in parts for name in part.sources})
        records = {name: CountRecord() for name in names}
        return _merge(folder, config, {name: _parts_of(parts, name) for name in names}, records, step)


def _parts_of(counts: list[CorpusCounts], name: str) -> list[AddedCounts]:
    """Return the counts of a source in all counts that have it."""
    found = []
    for corpus in counts:
        if name in corpus.sources:
            group = [corpus.sources.index(name)]
            words: list[Groups] = [(path, group) for path in corpus.buckets]
            found.append(AddedCounts(corpus.records[name], words, (corpus.heldout_path, group)))
    return found


@contextmanager
def _claim(folder: Path, config: CountConfig) -> Iterator[CorpusCounts | None]:
    """Reserve `folder` for the counts that `config` describes; gives those that are there, or None to make them.

    Raises MismatchError that names the differences if it holds other counts, finished or begun.
    """
    if done := _finished(folder, config):  # without a lock, as the folder may be read-only
        shutil.rmtree(folder / STATE, ignore_errors=True)  # a kill may have left a part of it
        yield done
        return
    with hold(folder, "count"):
        done = _finished(folder, config)  # another job may have finished it a moment ago
        begun = folder / STATE / FILE_NAME
        buckets = list(folder.glob("bucket-*.parquet"))
        old = read_record(CountConfig, read_json(begun), begun) if begun.exists() else None
        # A job that counted nothing, say for a wrong field, binds nothing.
        if done is None and old and (old.added or buckets or any((folder / STATE).glob("*.parquet"))):
            old, left_out = _repaired(folder / STATE, old, config)
            refuse_changes("the counts", folder, to_json(old), to_json(config), left_out)
        elif done is None:
            shutil.rmtree(folder / STATE, ignore_errors=True)
            for path in buckets:  # buckets without a state may be of anything
                path.unlink()
        if done is None:
            write_json(begun, to_json(config))
        yield done


def _repaired(state: Path, old: CountConfig, now: CountConfig) -> tuple[CountConfig, list[LeftOut]]:
    """Return (the config of begun counts, with damaged files as they are now; those that were left out).

    What was read of changed files, and nothing else, is to be read again.
    """
    inputs, left_out = dict(old.inputs), list[LeftOut]()
    for name in inputs.keys() & now.inputs.keys():
        plan, files = read_plan(_plan_path(state, name)), now.inputs[name].files
        if plan is None:
            continue
        if any((state / f"{partition.name}{CHANGED}").exists() for partition in plan.partitions):
            forget(plan.partitions, state)  # it was read in parts, of which some may be of its former text
            _plan_path(state, name).unlink()
            inputs[name] = replace(inputs[name], files=files)
            continue
        done = {
            partition.number
            for partition in plan.partitions
            if (state / f"{partition.name}.parquet").exists()
        }
        new = plan.repaired(files, done)
        if new != plan:
            fixed = {row.partition for row in set(new.rows) - set(plan.rows)}
            forget((partition for partition in plan.partitions if partition.number in fixed), state)
            write_plan(_plan_path(state, name), new)
        inputs[name] = replace(inputs[name], files=tuple(new.inputs))
        left_out += new.left_out
    return replace(old, inputs=inputs), left_out


def _plan_path(state: Path, name: str) -> Path:
    return state / f"{name}.{PLAN_FILE}"


def _finished(folder: Path, config: CountConfig) -> CorpusCounts | None:
    """Return the finished counts in `folder`, None if there are none. Raises MismatchError if they are others."""
    if not (folder / FILE_NAME).exists():
        return None
    done = load_counts(folder)
    refuse_changes("the counts", folder, to_json(done.config), to_json(config), done.left_out)
    return done


def count_config(recipe: Recipe, engine: Engine, console: Console) -> CountConfig:
    """Return everything that decides the counts: the settings, and every input with its size and identity."""
    with engine.stop.raising():
        listed = list_sources(recipe, console, appended=False)
    files = {name: tuple(listing.files) for name, [listing] in listed.items()}
    return CountConfig(
        pattern=recipe.vocab.pattern,
        unicode=UNICODE_FILE.read_text(encoding="ascii").splitlines()[0],
        normalize=recipe.normalize.function,
        sample=str(recipe.vocab.sample),
        holdout=str(recipe.vocab.holdout),
        seed=recipe.vocab.seed,
        inputs={
            name: SourceInputs(**to_json(recipe.sources[name].record_format()), files=files[name])
            for name in files
        },
    )


def _plan(name: str, config: CountConfig, recipe: Recipe, state: Path, console: Console) -> SourcePlan:
    """Return the plan of a source: the one in `state`, or a new one, which is stored there."""
    if (old := read_plan(_plan_path(state, name))) is not None:
        return old
    inputs = config.inputs[name].files
    probes = probe_inputs(inputs, *recipe.sources[name].probed, console=console)
    new = SourcePlan(name, {}, tuple(map(PlannedPiece, inputs)))
    new = new.cut(plan(name, probes, shard_bytes(probes, TOKEN_BYTES), TOKEN_BYTES))
    write_plan(_plan_path(state, name), new)
    return new


def _tasks(
    plan: SourcePlan, config: CountConfig, recipe: Recipe, state: Path, stamps: Mapping[str, Stamp]
) -> list[CountTask]:
    """Return the tasks that count a source, one per partition."""
    source, settings = recipe.sources[plan.name], replace(config, inputs={})
    return [
        CountTask(
            partition=stamped(partition, stamps),
            folder=state.absolute(),
            record=source.record_format(),
            config=settings,
            keep_text=HELDOUT_TEXT // max(1, plan.end),
            skip_damaged=source.skip_damaged,
        )
        for partition in plan.partitions
    ]


def _count(every: list[CountTask], step: Step) -> Failures:
    """Run the count tasks that are not done. Returns the partitions that failed."""
    done, before, failures = [task for task in every if task.path.exists()], Counter[str](), Failures()
    for counted in map_reads(lambda task: load_counted(task.path), done):
        before.update(counted.record.counts())
    left = [task for task in every if task not in done]
    for _ in run_partitions(count_partition, every, left, "to count", before, step, failures):
        pass
    return failures


def _part(path: Path, counted: Counted) -> AddedCounts:
    """Return a counted partition. path: of its file."""
    texts = counted.runs * BUCKETS
    return AddedCounts(
        counted.record, [(path, range(k, texts, BUCKETS)) for k in range(BUCKETS)], (path, [texts])
    )


def _merge(
    folder: Path,
    config: CountConfig,
    sources: dict[str, list[AddedCounts]],
    records: dict[str, CountRecord],
    step: Step,
) -> CorpusCounts:
    """Add up the parts of each source, bucket by bucket, write counts.json and delete the state.

    records: of each source, what counts besides its parts.
    """
    reductions = [
        ReduceTask(
            folder / f"bucket-{k:02d}.parquet",
            {name: [part.words[k] for part in parts] for name, parts in sources.items()},
        )
        for k in range(BUCKETS)
    ]
    share = max(1, BUCKETS // (4 * step.engine.parallel))  # Ray takes 4 ms for a task, a small bucket 15
    groups = [reductions[k : k + share] for k in range(0, BUCKETS, share)]
    for _ in step.map(
        reduce_buckets, groups, "bucket group", lambda group: group[0].path.name, folder=folder
    ):
        pass
    for name, parts in sources.items():
        for part in parts:
            records[name].add(part.record)
    heldout = folder / HELDOUT_FILE
    texts = ([read_group(path, *groups) for _, _, (path, groups) in parts] for parts in sources.values())
    with atomic_open(heldout) as file:
        write_groups(file, map(concatenate, texts))
    paths = [*(task.path for task in reductions), heldout]
    await_files(paths)
    counts = write_counts(folder, records, {path.name: checksum(path) for path in paths}, config)
    # Last: until counts.json is written, the state is all that is done.
    shutil.rmtree(folder / STATE, ignore_errors=True)
    return counts
