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
from pretok.jobs.seal import seal
from pretok.jobs.source_plan import SourcePlan, is_complete, plan_source
from pretok.manifest import FILE_NAME, load_manifest
from pretok.partition import Partition
from pretok.shard import token_dtype
from pretok.storage import remove_leftovers
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
    sealed = _sealed_plans(shards, config)
    itemsize = token_dtype(vocab.size).itemsize
    plans = [
        plan_source(name, source, config, recipe.shards.size, itemsize, state, sealed.get(name), notice)
        for name, source in recipe.sources.items()
    ]
    remove_leftovers(shards)
    vocab.copy_to(shards / TOKENIZER_FILE)  # the shards then need nothing else; workers read this copy too
    tasks = [
        _task(partition, source_plan, recipe, vocab)
        for source_plan in plans
        if (state / source_plan.name).exists()
        for partition in source_plan.partitions
    ]
    open_tasks = [task for task in tasks if not _finished(task)]
    open_tasks.sort(key=lambda task: (-task.partition.estimate, task.partition.name))
    notice(f"{len(tasks)} partitions, {len(tasks) - len(open_tasks)} of them done")
    if open_tasks and (
        slow := load_encoder(open_tasks[0].tokenizer_json, vocab.fingerprint, vocab.eod_id).notice
    ):
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
    if tasks or not (shards / FILE_NAME).exists():
        failed = seal(shards, state, [p for p in plans if (state / p.name).exists()], config, vocab, crashed)
    else:
        failed = load_manifest(shards).data["failed"]
    if failed:
        raise PartitionsFailed(_describe_failures(failed, shards))
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


def _sealed_plans(shards: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The plans in an existing manifest, after checking that it was made with the same config."""
    if not (shards / FILE_NAME).exists():
        return {}
    data = load_manifest(shards).data
    refuse_changes("the shards", shards, data["config"], config)
    return dict(data["plans"])


def _task(partition: Partition, source: SourcePlan, recipe: Recipe, vocab: Vocabulary) -> TokenizeTask:
    record = recipe.sources[source.name].record
    return TokenizeTask(
        partition=partition,
        shards_dir=recipe.shards_dir.absolute(),
        state_dir=(recipe.shards_dir / STATE / source.name).absolute(),
        record=record,
        normalization=recipe.normalize.function,
        tokenizer_json=(recipe.shards_dir / TOKENIZER_FILE).absolute(),
        tokenizer=vocab.fingerprint,
        eod_id=vocab.eod_id,
        target=source.settings["target"],
        val_fraction=recipe.shards.val_fraction,
        val_seed=recipe.shards.seed,
    )


def _finished(task: TokenizeTask) -> bool:
    """Whether nothing is left to do; what a damaged partition left is removed, so that it is done again."""
    if is_complete(task.state_dir, task.partition.name):
        return True
    parts = load_parts(task.state_dir, task.partition.name)
    if parts and parts[-1].last:
        for part in reversed(parts):  # the record of part 0 goes last: until then the rest is known
            (task.state_dir / f"{part.name}.json").unlink()
            for suffix in (".bin", ".idx"):
                (task.shards_dir / task.partition.source / f"{part.name}{suffix}").unlink(missing_ok=True)
                (task.state_dir / f"{part.name}.val{suffix}").unlink(missing_ok=True)
    return False
