"""tokenize: sources -> sealed shards with a manifest; every step resumes where it stopped.

Input: a Recipe with a trained vocabulary. Output: SHARDS/manifest.json and what it describes.

    plan      inputs -> partitions, kept in SHARDS/.state/NAME/plan.parquet so that a restart does the same work
              (NAME.1 and so on for appends)
    copies    if duplicates are looked for: find the copies in a pass before (`copies_job.py`)
    tokenize  one task per partition (`task.py`), largest first
    seal      merge the small files, write the manifest, remove the state of finished sources (`seal.py`)

A source whose inputs and settings are those of the manifest is left alone; one that changed is refused.

Appends are done in rounds: first all sources, then the first append of each, and so on; each round is sealed before the
next begins. So a folder that is made at once has the same shards and history as one that grew.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from pretok.base.console import Console
from pretok.base.errors import MismatchError, PartitionsFailed
from pretok.base.execute import Engine
from pretok.base.failures import Failures, raise_failures
from pretok.base.lock import hold
from pretok.base.storage import remove_leftovers
from pretok.base.tasks import Step, open_step
from pretok.base.tokens import token_dtype
from pretok.base.units import listed, plural
from pretok.chat.resolve import resolve
from pretok.config import Recipe
from pretok.read.changes import differences, refuse_changes, shared_inputs
from pretok.read.partition import stamped
from pretok.read.partition_runs import run_partitions
from pretok.read.rejects import poor_sources
from pretok.screen.benchmark import Benchmark, read_benchmark
from pretok.screen.removed import read_removed, removed_path
from pretok.screen.screening import Screening
from pretok.shards.contamination import keep_benchmark, kept_benchmark
from pretok.shards.copies_job import settle_copies
from pretok.shards.format import SHARD_SUFFIXES
from pretok.shards.inputs import SourcePlan, load_appends
from pretok.shards.manifest import (
    STATE,
    Manifest,
    has_manifest,
    load_manifest,
    unit_words,
)
from pretok.shards.parts import (
    all_software,
    is_complete,
    load_parts,
    refuse_other_engine,
    software,
)
from pretok.shards.plan import plan_source
from pretok.shards.seal import drop_finished, seal, sealed_manifest
from pretok.shards.task import (
    TokenizeTask,
    copies_path,
    damaged_path,
    encoder_of,
    hashes_path,
    tokenize_partition,
)
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, load_vocab


def run_tokenize(recipe: Recipe, engine: Engine, console: Console) -> None:
    """Bring SHARDS to what the recipe says, as the only job that writes there.

    Raises MismatchError, UsageError, FolderInUse, OutputError, Stopped; at the end PartitionsFailed, or InternalError
    after a bug in pretok.
    """
    vocab = load_vocab(recipe.vocab_dir, recipe.vocab.eod, recipe.vocab.bos)
    benchmark = read_benchmark(recipe.shards.against) if recipe.shards.against else None
    job = _Job(recipe, vocab, benchmark, engine, console)
    with hold(job.shards, "tokenize"):
        rounds = job.plan()
        unsealed = [plans for plans in rounds if any(map(job.is_unsealed, plans))]
        for plans in unsealed or [list(chain(*rounds))]:  # if all is sealed, one round says so
            job.run(plans)


@dataclass(frozen=True)
class _Job:
    """What all rounds have in common."""

    recipe: Recipe
    vocab: Vocabulary
    benchmark: Benchmark | None
    engine: Engine
    console: Console

    @property
    def shards(self) -> Path:
        """The folder that is made."""
        return self.recipe.shards_dir

    @property
    def state(self) -> Path:
        """Its folder of unfinished work."""
        return self.shards / STATE

    @property
    def config(self) -> dict[str, object]:
        """The settings that all sources share. To change one takes another output folder."""
        settings = self.recipe.shards
        reject = settings.reject_contaminated
        return {
            "tokenizer": self.vocab.fingerprint,
            "eod_id": self.vocab.eod_id,
            "bos_id": self.vocab.bos_id,
            "normalize": self.recipe.normalize.model_dump(),
            "val_fraction": str(settings.val_fraction),
            "val_seed": settings.seed,
            "benchmark": self.benchmark.fingerprint if self.benchmark else None,
            "reject_contaminated": None if reject is None else str(reject),
            "duplicates": None if settings.duplicates == "keep" else settings.duplicates,
        }

    def is_unsealed(self, plan: SourcePlan) -> bool:
        """Whether a plan is not sealed yet: until then it has a state folder."""
        return (self.state / plan.unit).exists()

    def plan(self) -> list[list[SourcePlan]]:
        """The plans of each round: those of the sources, then those of the first append of each, and so on."""
        sealed = {}
        if old := sealed_manifest(self.shards):
            drop_finished(self.state, old)
            known = old.sources.keys() & self.recipe.sources.keys()
            if not known:
                named = ", ".join(self.recipe.sources)
                holds = (
                    f"{self.shards} holds shards of {', '.join(old.sources)}, and this command names {named}"
                )
                raise MismatchError(
                    f"{'; '.join([holds, *differences(old.config, self.config)])}. Use another --out folder; to add "
                    f"{named} to these shards, name their sources too"
                )
            refuse_changes("the shards", self.shards, old.config, self.config)
            # A source without documents is read again and sealed anew.
            sealed = {name: load_appends(old, name) for name in sorted(known) if old.sources[name].documents}
        itemsize, size = token_dtype(self.vocab.size).itemsize, self.recipe.shards.size
        plans = []
        with self.engine.stop.raising():
            for name, source in self.recipe.sources.items():
                record, before = resolve(source.record, self.vocab, name), sealed.get(name, ())
                plans.append(
                    plan_source(
                        name, source, record, self.config, size, itemsize, self.state, before, self.console
                    )
                )
        inputs = {parts[0].name: list(chain(*(part.inputs for part in parts))) for parts in plans}
        for text in shared_inputs(inputs):
            self.console.notice(text)
        return [[one for one in parts if one] for parts in zip_longest(*plans)]

    def run(self, plans: list[SourcePlan]) -> None:
        """Tokenize and seal the plans of a round that are not sealed yet."""
        unsealed = [plan for plan in plans if self.is_unsealed(plan)]
        tasks = self._tasks(unsealed)
        todo = [task for task in tasks if not _finished(task)]
        failures: Failures = []
        if todo and self.benchmark:
            keep_benchmark(self.shards, self.state, self.benchmark, self.console)
        if todo and self.recipe.shards.duplicates != "keep":
            with open_step("look for copies", self.engine, self.console) as step:
                failures = settle_copies(tasks, sealed_manifest(self.shards), step)
        with open_step("tokenize", self.engine, self.console) as step:
            failed = {name for name, _ in failures}  # not tried again in this run
            if todo:
                self._encode(
                    tasks, [task for task in todo if task.partition.name not in failed], step, failures
                )
            else:
                finished = ", ".join(unit_words(plan.unit) for plan in plans)
                self.console.notice(f"nothing to do: the shards of {finished} are finished")
            self._seal(unsealed, failures)

    def _tasks(self, plans: list[SourcePlan]) -> list[TokenizeTask]:
        """The tasks of all partitions of the plans. Puts the tokenizer where workers read it."""
        recipe, vocab = self.recipe, self.vocab
        old = sealed_manifest(self.shards)
        tokenizer = self.shards / TOKENIZER_FILE
        if not old or not tokenizer.exists():
            vocab.copy_to(tokenizer)
        screening = Screening(
            benchmark=kept_benchmark(self.state).absolute() if self.benchmark else None,
            fingerprint=self.benchmark.fingerprint if self.benchmark else "",
            reject=recipe.shards.reject_contaminated,
            duplicates=recipe.shards.duplicates,
            removed=self._removed(old) if self.state.exists() else (),
        )
        tasks = [
            TokenizeTask(
                partition=stamped(partition, plan.stamps),
                shards_dir=self.shards.absolute(),
                state_dir=(self.state / plan.unit).absolute(),
                record=resolve(recipe.sources[plan.name].record, vocab, plan.name),
                keep=plan.kept,
                screening=screening,
                normalization=recipe.normalize.function,
                tokenizer_json=tokenizer.absolute(),
                tokenizer=vocab.fingerprint,
                eod_id=vocab.eod_id,
                bos_id=vocab.bos_id,
                target=plan.settings["target"],
                val_fraction=recipe.shards.val_fraction,
                val_seed=recipe.shards.seed,
                software=software(),
            )
            for plan in plans
            for partition in plan.partitions
        ]
        if tasks:
            made = [
                part.software for task in tasks for part in load_parts(task.state_dir, task.partition.name)
            ]
            refuse_other_engine(self.shards, all_software([*made, *([old.software] if old else [])]))
        return tasks

    def _removed(self, old: Manifest | None) -> tuple[Path, ...]:
        """The lists of removed texts: that of these shards and that of the recipe. Raises IntegrityError if one is
        damaged."""
        if old:
            old.check(removed_path(old.folder))
        own, named = removed_path(self.shards), self.recipe.shards.removed
        lists = [path for path in (own if own.exists() else None, named) if path is not None]
        read_removed(lists)
        return tuple(path.absolute() for path in lists)

    def _encode(
        self, tasks: list[TokenizeTask], todo: list[TokenizeTask], step: Step, failures: Failures
    ) -> None:
        """Have workers tokenize the partitions `todo`; adds those that failed to `failures`."""
        if not todo:
            return
        vocab = self.vocab
        if self.recipe.vocab.path is not None or vocab.bos_id is not None:
            eod, bos = (
                i if i is None else f"{vocab.tokens[i]!r} (id {i})" for i in (vocab.eod_id, vocab.bos_id)
            )
            begins = ", nothing is put before it" if bos is None else f" and begins with {bos}"
            self.console.notice(
                f"{vocab.path}: each document ends with {eod}{begins}; eod and bos under [vocab] name others"
            )
        before = Counter[str]()
        for task in tasks:
            for part in load_parts(task.state_dir, task.partition.name):
                before.update(part.counts)
        self.engine.choose(sum(task.partition.estimate for task in todo))
        self.engine.warm(len(todo), encoder_of, todo[0])  # meanwhile this process loads it too
        if slow := encoder_of(todo[0]).notice:
            self.console.notice(slow)
        for _ in run_partitions(tokenize_partition, tasks, todo, "to tokenize", before, step, failures):
            pass
        remove_leftovers(self.shards)

    def _seal(self, plans: list[SourcePlan], failures: Failures) -> None:
        """Seal the plans that are done, and raise what failed, is damaged or gave too little."""
        done = [
            plan
            for plan in plans
            if all(is_complete(self.state / plan.unit, one.name) for one in plan.partitions)
        ]
        errors = [
            error
            for plan in plans
            for partition in plan.partitions
            for part in load_parts(self.state / plan.unit, partition.name)
            for error in part.errors
        ]
        if done:
            manifest = seal(self.shards, self.state, done, self.config, self.vocab)
            _tell_encoded_again(manifest, {plan.name for plan in done}, self.console)
        problems = []
        if errors:
            waiting = " and ".join(unit_words(plan.unit) for plan in plans if plan not in done)
            files = listed([f"{one.partition}: {one.file}: {one.error}" for one in errors], 20, "\n  ")
            problems.append(
                f"{plural(len(errors), 'input')} could not be read to the end; nothing of {waiting} is in the shards:\n"
                f"  {files}\nrepair each file or replace it by what can be read of it (an empty file will do), and run "
                "the same command again: only these partitions are done again"
            )
        if failures and problems:
            self.console.notice(problems[0])
        raise_failures(failures, self.console.log)
        sealed = load_manifest(self.shards).sources if has_manifest(self.shards) else {}
        counts = {name: (of.read, of.rejected) for name, of in sealed.items() if name in self.recipe.sources}
        share, where = self.recipe.shards.max_reject_share, f"see {self.shards / 'rejects'}"
        if problems := [*problems, *poor_sources(share, counts, where)]:
            raise PartitionsFailed("\n".join(problems))


def _tell_encoded_again(manifest: Manifest, names: set[str], console: Console) -> None:
    """Name the shards of these sources that `tokenizers` encoded because the sample differed."""
    compared = [manifest.sources[name].compared for name in sorted(names)]
    if shards := [shard for one in compared if one for shard in one.encoded_again]:
        lines = [f"{one.shard}: {one.file}, line or row {one.position}" for one in shards]
        console.notice(
            f"the fast engine gave a document other ids than tokenizers in {plural(len(shards), 'shard')}; tokenizers "
            "encoded all of each, whose ids are right. Please report the first document of each:\n  "
            + listed(lines, 20, "\n  ")
        )


def _finished(task: TokenizeTask) -> bool:
    """Whether a partition is done. If an input was damaged, removes everything of the partition, to be done again.

    A marker exists while files are removed, so that after a kill the first parts of the old input are not taken for
    parts of the new one. Files are removed before the record that names them.
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
