"""tokenize: sources -> sealed shards with a manifest; every step restarts where it stopped.

Input: a Recipe with a trained vocabulary. Output: SHARDS/manifest.json and what it describes.

    plan      inputs -> partitions, kept in SHARDS/.state/NAME/plan.parquet so that a restart does the same work
              (NAME.1 and so on of what is appended)
    copies    where duplicates are wanted: which documents are copies, by a pass before (`pretok.shards.copies_job`)
    tokenize  one task a partition (`pretok.shards.task`), largest first
    seal      merge the small files, write the manifest (`pretok.shards.seal`), drop the state of finished sources

A source whose inputs and settings equal what the manifest says is left alone; one that changed is refused.

Appends follow each other in rounds: first all sources themselves, then the first append of each, each round sealed
before the next begins. So a folder that is made at once has the shards and the history of one that grew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path

from pretok.base.console import Console
from pretok.base.errors import MismatchError, PartitionsFailed
from pretok.base.execute import Engine
from pretok.base.failures import Failure, Failures, raise_failures
from pretok.base.lock import hold
from pretok.base.storage import remove_leftovers
from pretok.base.tasks import Step, open_step
from pretok.base.tokens import token_dtype
from pretok.base.units import listed, plural
from pretok.chat.resolve import resolve
from pretok.config import Recipe
from pretok.read.changes import differences, refuse_changes, shared_inputs
from pretok.read.guarded import one_child
from pretok.read.kept import Keep
from pretok.read.partition import Partition, stamped
from pretok.read.partition_runs import run_partitions
from pretok.read.rejects import poor_sources
from pretok.screen.benchmark import Benchmark, read_benchmark
from pretok.screen.removed import read_removed, removed_path, write_removed
from pretok.screen.screening import Screening
from pretok.shards.contamination import keep_benchmark, kept_benchmark
from pretok.shards.copies_job import settle_copies
from pretok.shards.format import SHARD_SUFFIXES
from pretok.shards.inputs import SourcePlan, load_appends
from pretok.shards.manifest import (
    FILE_NAME,
    STATE,
    Manifest,
    has_manifest,
    load_manifest,
    unit_words,
)
from pretok.shards.parts import all_software, is_complete, load_parts, refuse_other_engine, software
from pretok.shards.plan import plan_source
from pretok.shards.seal import drop_finished, seal, sealed_manifest, unpublish
from pretok.shards.task import (
    TokenizeTask,
    copies_path,
    damaged_path,
    encoder_of,
    hashes_path,
    tokenize_partition,
)
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, load_vocab


def shared_config(recipe: Recipe, vocab: Vocabulary, benchmark: Benchmark | None) -> dict[str, object]:
    """What every source of an output has in common; a change needs another output folder. What is not used is None, as
    in shards that were made before it could be."""
    reject = recipe.shards.reject_contaminated
    return {
        "tokenizer": vocab.fingerprint,
        "eod_id": vocab.eod_id,
        "bos_id": vocab.bos_id,
        "normalize": recipe.normalize.model_dump(),
        "val_fraction": str(recipe.shards.val_fraction),
        "val_seed": recipe.shards.seed,
        "benchmark": benchmark.fingerprint if benchmark else None,
        "reject_contaminated": None if reject is None else str(reject),
        "duplicates": None if recipe.shards.duplicates == "keep" else recipe.shards.duplicates,
    }


def run_tokenize(recipe: Recipe, engine: Engine, console: Console) -> Step:
    """Bring SHARDS to what the recipe says, as the only job that writes there. What the workers did is in the Step.

    Raises MismatchError, UsageError, FolderInUse, OutputError, Stopped; at the end PartitionsFailed, or InternalError
    after a bug of ours.
    """
    vocab = load_vocab(recipe.vocab_dir, recipe.vocab.eod, recipe.vocab.bos)
    benchmark = read_benchmark(recipe.shards.against) if recipe.shards.against else None
    shards, state = recipe.shards_dir, recipe.shards_dir / STATE
    with hold(shards, "tokenize"):
        rounds = _plan_all(recipe, vocab, benchmark, engine, console)
        begun = [plans for plans in rounds if any((state / one.unit).exists() for one in plans)]
        for plans in begun or [list(chain(*rounds))]:  # where all is sealed that is told once
            tasks = _prepare(recipe, vocab, benchmark, plans)
            todo = [task for task in tasks if not _finished(task)]
            failures: Failures = []
            if todo and benchmark:
                keep_benchmark(shards, state, benchmark, console)
            if todo and recipe.shards.duplicates != "keep":
                with open_step("look for copies", engine, console) as step:
                    failures = settle_copies(tasks, sealed_manifest(shards, state), step)
            with open_step("tokenize", engine, console) as step:
                if not todo:
                    finished = (
                        f"the shards of {', '.join(unit_words(plan.unit) for plan in plans)} are finished"
                    )
                    manifest = "; writing the manifest" if tasks else ""
                    console.notice(f"nothing to do: {finished}{manifest}")
                # Partitions that failed already are not tried again in this run.
                left = {task.partition.name for task in todo} - {name for name, _ in failures}
                _encode(
                    recipe,
                    vocab,
                    tasks,
                    [task for task in todo if task.partition.name in left],
                    step,
                    failures,
                )
                _seal(recipe, vocab, benchmark, plans, tasks, failures, console)
        if complaints := _poor_sources(load_manifest(shards), recipe):
            raise PartitionsFailed("\n".join(complaints))
        return step


def _plan_all(
    recipe: Recipe, vocab: Vocabulary, benchmark: Benchmark | None, engine: Engine, console: Console
) -> list[list[SourcePlan]]:
    """The plans of each round: of the sources, of the first append of each, and so on."""
    shards, state = recipe.shards_dir, recipe.shards_dir / STATE
    config = shared_config(recipe, vocab, benchmark)
    old = sealed_manifest(shards, state)
    drop_finished(state, old)
    sealed = {}
    if old and old.totals.documents:  # what holds no document binds nothing
        known = old.sources.keys() & recipe.sources.keys()
        if not known:
            named = ", ".join(recipe.sources)
            told = [f"{shards} holds shards of {', '.join(old.sources)}, and this command names {named}"]
            raise MismatchError(
                f"{'; '.join([*told, *differences(old.config, config)])}. Use another --out folder; to add {named} to "
                "these shards, name their sources too"
            )
        refuse_changes("the shards", shards, old.config, config)
        sealed = {name: load_appends(old, name) for name in sorted(known)}
    itemsize = token_dtype(vocab.size).itemsize
    plans = []
    with engine.stop.raising(), one_child():
        for name, source in recipe.sources.items():
            record, before = resolve(source.record, vocab, name), sealed.get(name, ())
            plans.append(
                plan_source(
                    name, source, record, config, recipe.shards.size, itemsize, state, before, console
                )
            )
    inputs = {parts[0].name: list(chain(*(part.inputs for part in parts))) for parts in plans}
    for text in shared_inputs(inputs):
        console.notice(text)
    return [[one for one in parts if one] for parts in zip_longest(*plans)]


def _prepare(
    recipe: Recipe, vocab: Vocabulary, benchmark: Benchmark | None, plans: list[SourcePlan]
) -> list[TokenizeTask]:
    """The tasks of all partitions of a round that are not sealed; what workers read is put in its place."""
    shards, state = recipe.shards_dir, recipe.shards_dir / STATE
    old = sealed_manifest(shards, state)
    if not old or not (shards / TOKENIZER_FILE).exists():
        vocab.copy_to(shards / TOKENIZER_FILE)  # the shards then need nothing else; workers read this copy
    screening = Screening(
        benchmark=kept_benchmark(state).absolute() if benchmark else None,
        fingerprint=benchmark.fingerprint if benchmark else "",
        reject=recipe.shards.reject_contaminated,
        duplicates=recipe.shards.duplicates,
        removed=_keep_removed(recipe, old, shards, state),
    )
    tasks = [
        TokenizeTask(
            partition=stamped(partition, plan.stamps),
            shards_dir=shards.absolute(),
            state_dir=(state / plan.unit).absolute(),
            record=resolve(recipe.sources[plan.name].record, vocab, plan.name),
            keep=Keep(plan.kept, recipe.sources[plan.name].on_mismatch == "reject"),
            screening=screening,
            normalization=recipe.normalize.function,
            tokenizer_json=(shards / TOKENIZER_FILE).absolute(),
            tokenizer=vocab.fingerprint,
            eod_id=vocab.eod_id,
            bos_id=vocab.bos_id,
            target=plan.settings["target"],
            val_fraction=recipe.shards.val_fraction,
            val_seed=recipe.shards.seed,
            software=software(),
        )
        for plan in plans
        if (state / plan.unit).exists()
        for partition in plan.partitions
    ]
    if tasks:
        parts = (part for task in tasks for part in load_parts(task.state_dir, task.partition.name))
        made = [old.software] if old and old.totals.documents else []
        refuse_other_engine(shards, all_software([*made, *(part.software for part in parts)]))
    unpublish(shards, state, {one.name for one in plans if not one.append and (state / one.unit).exists()})
    return tasks


def _keep_removed(recipe: Recipe, old: Manifest | None, shards: Path, state: Path) -> Path | None:
    """Where workers find the texts that were removed, of these shards and of the list that the recipe names; None where
    there are none. IntegrityError where the manifest names a list that is not there."""
    own, named = removed_path(shards), recipe.shards.removed
    if not state.exists():
        return None
    if old:
        old.check(removed_path(old.folder))
    paths = [*([own] if own.exists() else []), *([named] if named is not None else [])]
    if not paths:
        return None
    kept = removed_path(state).absolute()
    write_removed(kept, read_removed(paths))
    return kept


def _encode(
    recipe: Recipe,
    vocab: Vocabulary,
    tasks: list[TokenizeTask],
    todo: list[TokenizeTask],
    step: Step,
    failures: Failures,
) -> None:
    """Have workers tokenize the partitions that are to do; which failed goes to `failures`."""
    if not todo:
        return
    if recipe.vocab.path is not None or vocab.bos_id is not None:
        eod, bos = (i if i is None else f"{vocab.tokens[i]!r} (id {i})" for i in (vocab.eod_id, vocab.bos_id))
        begins = ", nothing is put before it" if bos is None else f" and begins with {bos}"
        step.console.notice(
            f"{vocab.path}: each document ends with {eod}{begins}; eod and bos under [vocab] name others"
        )
    before = Counter[str]()
    for task in tasks:
        for part in load_parts(task.state_dir, task.partition.name):
            before.update(part.counts)
    step.engine.choose(sum(task.partition.estimate for task in todo))
    step.engine.warm(len(todo), encoder_of, todo[0])  # meanwhile this process loads it too
    if slow := encoder_of(todo[0]).notice:
        step.console.notice(slow)
    for _ in run_partitions(tokenize_partition, tasks, todo, "to tokenize", before, step, failures):
        pass
    remove_leftovers(recipe.shards_dir)


def _seal(
    recipe: Recipe,
    vocab: Vocabulary,
    benchmark: Benchmark | None,
    plans: list[SourcePlan],
    tasks: list[TokenizeTask],
    failures: Failures,
    console: Console,
) -> None:
    """Seal what is done, and tell what failed. failures: the partitions that could not be done."""
    shards, state = recipe.shards_dir, recipe.shards_dir / STATE
    partitions = {task.partition.name: task.partition for task in tasks}
    crashed = [_failure(partitions[name], error.message) for name, error in failures]
    unsealed = [plan for plan in plans if (state / plan.unit).exists()]
    # What is appended is sealed when all of it is done: until then the shards stay what they are.
    waiting = [
        plan
        for plan in unsealed
        if plan.append and not all(is_complete(state / plan.unit, part.name) for part in plan.partitions)
    ]
    sealable = [plan for plan in unsealed if plan not in waiting]
    if sealable or not (tasks or has_manifest(shards)):
        # The manifests of shards without one have no such key.
        config = {
            key: value
            for key, value in shared_config(recipe, vocab, benchmark).items()
            if key != "bos_id" or value is not None
        }
        names = {plan.name for plan in sealable}
        here = [failure for failure in crashed if failure.source in names]
        _tell_encoded_again(seal(shards, state, sealable, config, vocab, here), names, console)
    manifest = load_manifest(shards)
    failed = [failure for failure in manifest.failed if failure not in crashed]
    for plan in waiting:
        for partition in plan.partitions:
            for part in load_parts(state / plan.unit, partition.name):
                failed += part.errors
    told = _describe_failures(failed, manifest, [unit_words(plan.unit) for plan in waiting])
    if failures and failed:
        console.notice(told)
    raise_failures(failures, console.log)
    if failed:
        raise PartitionsFailed("\n".join([told, *_poor_sources(manifest, recipe)]))


def _tell_encoded_again(manifest: Manifest, names: set[str], console: Console) -> None:
    """Say which shards of these sources `tokenizers` encoded, as a sample of them differed."""
    found = [manifest.sources[name].compared for name in sorted(names)]
    if shards := [shard for compared in found if compared for shard in compared.encoded_again]:
        lines = [f"{one.shard}: {one.file}, line or row {one.position}" for one in shards]
        console.notice(
            f"the fast engine gave a document other ids than tokenizers in {plural(len(shards), 'shard')}; tokenizers "
            "encoded all of each, whose ids are right. `pretok verify` with a large --sample looks for more. Please "
            "report the first document of each:\n  " + listed(lines, 20, "\n  ")
        )


def _failure(partition: Partition, message: str) -> Failure:
    files = ", ".join(sorted({piece.file.path for piece in partition.pieces}))
    return Failure(partition.name, files, message)


def _describe_failures(failed: Sequence[Failure], manifest: Manifest, waiting: Sequence[str]) -> str:
    """waiting: appends of which nothing is in the shards yet."""
    lines = [f"  {f.partition}: {f.file}: {f.error}" for f in failed[:20]]
    more = (
        [f"  and {len(failed) - 20} more, under `failed` in {manifest.folder / FILE_NAME}"]
        if len(failed) > 20
        else []
    )
    rest = f"nothing of {' and '.join(waiting)} is" if waiting else "everything else is"
    rest = rest if manifest.totals.documents else "nothing is"
    head = f"{plural(len(failed), 'input')} could not be read to the end; {rest} in the shards:"
    return "\n".join(
        [head, *lines, *more,
         "fix the files and run the same command again: only these partitions are done again"]
    )  # fmt: skip


def _poor_sources(manifest: Manifest, recipe: Recipe) -> list[str]:
    """Complaints about sources of the recipe that gave too little."""
    sources = manifest.sources
    damaged = {failure.source for failure in manifest.failed}  # a source without records is damaged then
    counts = {
        name: (sources[name].read, sources[name].rejected)
        for name in recipe.sources
        if sources[name].read or name not in damaged
    }
    return poor_sources(recipe.shards.max_reject_share, counts, f"see {recipe.shards_dir / 'rejects'}")


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
            for suffix in SHARD_SUFFIXES:
                (task.shards_dir / task.partition.source / f"{part.name}{suffix}").unlink(missing_ok=True)
                (task.state_dir / f"{part.name}.val{suffix}").unlink(missing_ok=True)
            (task.state_dir / f"{part.name}.json").unlink()
        for path in (hashes_path(task), copies_path(task), damaged_path(task)):
            path.unlink(missing_ok=True)
        marker.unlink()
    return False
