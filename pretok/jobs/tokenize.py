"""tokenize: sources -> sealed shards with a manifest; every step restarts where it stopped.

Enters: a Recipe with a trained vocabulary. Leaves: SHARDS/manifest.json and what it describes.

    plan      inputs -> partitions, kept in SHARDS/.state/NAME/plan.json so that a restart does the same work
    tokenize  one task a partition (`pretok.tokenize`), largest first
    seal      merge the small files, write the manifest (`pretok.jobs.seal`), drop the state of finished sources

A source whose inputs and settings equal what the manifest says is left alone; one that changed is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretok.config import Recipe
from pretok.engine import Counts, Engine, TaskError
from pretok.errors import PartitionsFailed
from pretok.jobs.changes import refuse_changes
from pretok.jobs.rejects import poor_sources
from pretok.jobs.seal import drop_finished, seal, standing, withdraw
from pretok.jobs.source_plan import SourcePlan, is_complete, plan_source, shared_inputs
from pretok.manifest import FILE_NAME, has_manifest, load_manifest
from pretok.partition import Partition
from pretok.shard import token_dtype
from pretok.storage import copy_file, remove_leftovers
from pretok.tokenize import TokenizeTask, load_encoder, load_parts, tokenize_partition
from pretok.vocab import TOKENIZER_FILE, Vocabulary, load_vocab

STATE = ".state"


@dataclass(frozen=True, slots=True)
class TokenizeSummary:
    """What a run did: the manifest's totals are on disk; this is what the run adds.

    partitions: of all sources that were not sealed before; nodes: partitions done on each; idle: share of the workers'
    time in which they had no task, their start included; peak: most bytes of memory that a worker held.
    """

    partitions: int
    nodes: dict[str, int]
    idle: float
    peak: int


def shared_config(recipe: Recipe, vocab: Vocabulary) -> dict[str, Any]:
    """What every source of an output has in common; a change needs another output folder."""
    return {
        "tokenizer": vocab.fingerprint,
        "eod_id": vocab.eod_id,
        "normalize": recipe.normalize.model_dump(),
        "val_fraction": str(recipe.shards.val_fraction),
        "val_seed": recipe.shards.seed,
    }


def run_tokenize(
    recipe: Recipe,
    engine: Engine,
    on_report: Callable[[Counts], None],
    notice: Callable[[str], None],
) -> TokenizeSummary:
    """Bring SHARDS to what the recipe says. Raises MismatchError, UsageError, Stopped; PartitionsFailed at the end."""
    vocab = load_vocab(recipe.vocab_dir, eod=recipe.vocab.eod)
    shards = recipe.shards_dir
    state = shards / STATE
    config = shared_config(recipe, vocab)
    drop_finished(state)
    old = standing(shards, state)
    if old and old.totals.documents:  # what holds no document binds nothing
        refuse_changes("the shards", shards, old.config, config)
    sealed = old.plans if old and old.totals.documents else {}
    itemsize = token_dtype(vocab.size).itemsize
    with engine.stop.raising():
        plans = [
            plan_source(name, source, config, recipe.shards.size, itemsize, state, sealed.get(name), notice)
            for name, source in recipe.sources.items()
        ]
    for text in shared_inputs({source_plan.name: source_plan.inputs for source_plan in plans}):
        notice(text)
    remove_leftovers(shards)
    if not old or not (shards / TOKENIZER_FILE).exists():  # the shards then need nothing else to be decoded
        copy_file(vocab.path, shards / TOKENIZER_FILE)
    tasks = [
        _task(partition, source_plan, recipe, vocab)
        for source_plan in plans
        if (state / source_plan.name).exists()
        for partition in source_plan.partitions
    ]
    withdraw(shards, state, {task.partition.source for task in tasks})
    open_tasks = [task for task in tasks if not _finished(task)]
    open_tasks.sort(key=lambda task: (-task.partition.estimate, task.partition.name))
    notice(f"{len(tasks)} partitions, {len(tasks) - len(open_tasks)} of them done")
    if open_tasks and (slow := load_encoder(vocab.path.absolute(), vocab.eod_id, vocab.size).notice):
        notice(slow)
    crashed: list[dict[str, Any]] = []
    nodes: dict[str, int] = {}
    began, busy, peak = time.monotonic(), 0.0, 0
    for outcome in engine.map(tokenize_partition, open_tasks, on_report):
        partition = open_tasks[outcome.index].partition
        if isinstance(outcome.result, TaskError):
            notice(f"partition {partition.name} failed: {outcome.result.message}")
            crashed.append(_failure(partition, outcome.result.message))
        else:
            nodes[outcome.node] = nodes.get(outcome.node, 0) + 1
        busy, peak = busy + outcome.seconds, max(peak, outcome.peak)
    available = max(1, engine.workers or 0) * (time.monotonic() - began)
    if tasks or not has_manifest(shards):
        failed = seal(shards, state, [p for p in plans if (state / p.name).exists()], config, vocab, crashed)
    else:
        failed = load_manifest(shards).data["failed"]
    complaints = [_describe_failures(failed, shards)] if failed else []
    complaints += _poor_sources(shards, recipe)
    if complaints:
        raise PartitionsFailed("\n".join(complaints))
    return TokenizeSummary(len(tasks), dict(sorted(nodes.items())), 1 - busy / available, peak)


def _failure(partition: Partition, message: str) -> dict[str, Any]:
    files = ", ".join(sorted({piece.file.path for piece in partition.pieces}))
    return {"partition": partition.name, "file": files, "error": message}


def _describe_failures(failed: list[dict[str, Any]], shards: Path) -> str:
    lines = [f"  {f['partition']}: {f['file']}: {f['error']}" for f in failed[:20]]
    more = (
        [f"  and {len(failed) - 20} more, under `failed` in {shards / FILE_NAME}"] if len(failed) > 20 else []
    )
    return "\n".join(
        [f"{len(failed)} inputs could not be read to their end; everything else is in the shards:", *lines, *more,
         "mend the files and run the same command again: only these partitions are done again"]
    )  # fmt: skip


def _poor_sources(shards: Path, recipe: Recipe) -> list[str]:
    """Complaints about sources of the recipe that gave too little."""
    sources = load_manifest(shards).contents.sources
    counts = {name: (sources[name].read, sources[name].rejected) for name in recipe.sources}
    return poor_sources(recipe.shards.max_reject_share, counts, f"see {shards / 'rejects'}")


def _task(partition: Partition, source: SourcePlan, recipe: Recipe, vocab: Vocabulary) -> TokenizeTask:
    record = recipe.sources[source.name].record
    return TokenizeTask(
        partition=partition,
        shards_dir=recipe.shards_dir.absolute(),
        state_dir=(recipe.shards_dir / STATE / source.name).absolute(),
        record=record,
        normalization=recipe.normalize.function,
        tokenizer_json=vocab.path.absolute(),
        eod_id=vocab.eod_id,
        vocab_size=vocab.size,
        target=source.settings["target"],
        val_fraction=recipe.shards.val_fraction,
        val_seed=recipe.shards.seed,
    )


def _finished(task: TokenizeTask) -> bool:
    """Whether nothing is left to do; what a damaged partition left is removed, so that it is done again as a whole.

    A marker stands while that goes on: after a kill, the first parts of the old input are not taken for parts of the
    new one. Files go before the record that names them.
    """
    if is_complete(task.state_dir, task.partition.name):
        return True
    parts = load_parts(task.state_dir, task.partition.name)
    marker = task.state_dir / f"{task.partition.name}.again"
    if (parts and parts[-1].last) or marker.exists():
        marker.touch()
        for part in reversed(parts):
            for suffix in (".bin", ".idx"):
                (task.shards_dir / task.partition.source / f"{part.name}{suffix}").unlink(missing_ok=True)
                (task.state_dir / f"{part.name}.val{suffix}").unlink(missing_ok=True)
            (task.state_dir / f"{part.name}.json").unlink()
        marker.unlink()
    return False
