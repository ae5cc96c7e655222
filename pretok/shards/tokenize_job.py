"""tokenize: sources -> sealed shards with a manifest; every step resumes where it stopped.

Input: a Recipe with a trained vocabulary. Output: SHARDS/manifest.json and what it describes.

    plan      inputs -> partitions, kept in SHARDS/.state/NAME/plan.json so that a restart does the same work
              (NAME.1 and so on for appends)
    copies    if duplicates are looked for: find the copies in a pass before (`copies_job.py`)
    tokenize  one task per partition (`task.py`), largest first
    seal      merge the small files, write the manifest, remove the state of finished sources (`seal.py`)

A source whose inputs and settings are those in the manifest is left alone; a changed one is refused.

Appends are done in rounds: first all sources, then the first append of each, and so on; each round is sealed before the
next begins. So a folder that is made at once has the same shards and history as one that grew.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path

from pretok.base.console import Console
from pretok.base.errors import MismatchError, PartitionsFailed
from pretok.base.execute import Engine
from pretok.base.failures import Failures, raise_failures
from pretok.base.lock import hold
from pretok.base.partition_tasks import run_partitions
from pretok.base.storage import remove_leftovers
from pretok.base.tasks import Step, open_step
from pretok.base.tokens import token_dtype
from pretok.base.units import listed, plural, unit_words
from pretok.chat.resolve import resolve
from pretok.config import Recipe, located
from pretok.config.changes import list_sources, refuse_changes
from pretok.kernels.compile import start_note
from pretok.read.damage import until_whole, without_damaged
from pretok.read.partition import stamped
from pretok.read.record_format import RecordFormat
from pretok.read.rejects import poor_sources
from pretok.read.rejects_file import ALL_REJECTS, merge_rejects, worst_files
from pretok.read.source_plan import PLAN_FILE, SourcePlan, write_plan
from pretok.screen.benchmark import Benchmark, read_benchmark
from pretok.screen.removed import read_removed, removed_path
from pretok.screen.screening import Screening
from pretok.shards.contamination import keep_benchmark, kept_benchmark
from pretok.shards.copies_job import hash_documents, settle_copies
from pretok.shards.inputs import load_appends
from pretok.shards.manifest import (
    STATE,
    Manifest,
    SourceCounts,
    TokenizerEntry,
    has_manifest,
    load_manifest,
)
from pretok.shards.partition_record import (
    ENGINES,
    all_records,
    load_record,
    load_records,
    software,
)
from pretok.shards.plan import plan_source
from pretok.shards.seal import DonePlan, drop_finished, found_in, seal, sealed_manifest
from pretok.shards.tokenize_task import (
    COPIES,
    TokenizeTask,
    load_encoder,
    markers_of,
    tokenize_partition,
)
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, load_vocab


def run_tokenize(recipe: Recipe, engine: Engine, console: Console) -> None:
    """Complete SHARDS as the recipe says, as the only job that writes there.

    Raises MismatchError, UsageError, FolderInUse, OutputError, Stopped; at the end PartitionsFailed, or InternalError
    after a bug in pretok.
    """
    with located(recipe, "vocab", "path"):
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
    """The state that all rounds share."""

    recipe: Recipe
    vocab: Vocabulary
    benchmark: Benchmark | None
    engine: Engine
    console: Console
    records: dict[str, RecordFormat] = field(default_factory=dict)
    """Source -> how its records are read, with the chat template that `plan` has checked."""

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
            **{name: software()[name] for name in ENGINES},
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

    @property
    def tokenizer(self) -> TokenizerEntry:
        """The tokenizer of all shards."""
        vocab = self.vocab
        dtype = token_dtype(vocab.size).name
        return TokenizerEntry(vocab.fingerprint, vocab.size, vocab.eod_id, dtype, vocab.bos_id)

    def is_unsealed(self, plan: SourcePlan) -> bool:
        """Whether a plan is not sealed yet: until then it has a state folder."""
        return (self.state / plan.unit).exists()

    def plan(self) -> list[list[SourcePlan]]:
        """Return the plans of each round: those of the sources, then those of the first append of each, and so on."""
        sealed = {}
        if old := sealed_manifest(self.shards):
            # A kill during the last seal may have left state, which `is_unsealed` would take for unfinished.
            drop_finished(self.state, old)
            known = old.sources.keys() & self.recipe.sources.keys()
            if not known:
                raise MismatchError(
                    f"{self.shards} holds shards of {', '.join(old.sources)}, and this command names "
                    f"{', '.join(self.recipe.sources)}: use another --out folder or, to add to these shards, also name "
                    "their sources"
                )
            refuse_changes("the shards", self.shards, old.config, self.config)
            sealed = {name: load_appends(old, name) for name in sorted(known)}
        itemsize, size = token_dtype(self.vocab.size).itemsize, self.recipe.shards.size
        plans = []
        with self.engine.stop.raising():
            listed = list_sources(self.recipe, self.console)
            for name, source in self.recipe.sources.items():
                before = sealed.get(name, ())
                with located(self.recipe, "sources", name, "inputs"):
                    self.records[name] = resolve(source.record_format(), self.vocab, name, source.limits)
                    plans.append(
                        plan_source(
                            name,
                            source,
                            listed[name],
                            self.records[name],
                            self.config,
                            size,
                            itemsize,
                            self.state,
                            before,
                            self.console,
                        )
                    )
        return [[plan for plan in parts if plan] for parts in zip_longest(*plans)]

    def run(self, plans: list[SourcePlan]) -> None:
        """Tokenize and seal the plans of a round that are not sealed yet."""
        unsealed, failed = [plan for plan in plans if self.is_unsealed(plan)], Failures()
        if self._todo(unsealed) and self.benchmark:
            keep_benchmark(self.shards, self.state, self.benchmark, self.console)
        if self._todo(unsealed) and self.recipe.shards.duplicates != "keep":
            with open_step("look for copies", self.engine, self.console) as step:
                # Before the first shard is written, as the first of two equal texts may be in the last
                # partition. It gets all tasks: what was decided for those that are done stays.
                unsealed, failed = until_whole(
                    unsealed, lambda plans: hash_documents(self._tasks(plans), step), self._leave_out
                )
                settle_copies(self._tasks(unsealed), sealed_manifest(self.shards), step)
        with open_step("tokenize", self.engine, self.console) as step:
            step.progress.note = start_note()
            if self._todo(unsealed):
                self._show_markers()
            elif not failed:
                finished = ", ".join(unit_words(plan.unit) for plan in plans)
                self.console.notice(f"nothing to do: the shards of {finished} are finished")
            unsealed, failures = until_whole(
                unsealed, lambda plans: self._encode(plans, step, failed), self._leave_out
            )
            self._seal(unsealed, failures)

    def _show_markers(self) -> None:
        """Say which tokens end and begin documents, where no build of the vocabulary has said it."""
        vocab = self.vocab
        if self.recipe.vocab.path is not None or vocab.bos_id is not None:
            eod, bos = (
                i if i is None else f"{vocab.tokens[i]!r} (id {i})" for i in (vocab.eod_id, vocab.bos_id)
            )
            begins = "no token before it" if bos is None else f"BOS {bos}"
            self.console.notice(
                f"{vocab.path}: EOD {eod}, {begins}; to change them, set eod and bos under [vocab]"
            )

    def _todo(self, plans: list[SourcePlan]) -> list[TokenizeTask]:
        """Return the tasks that are not done."""
        return [task for task in self._tasks(plans) if not task.state(".json").exists()]

    def _leave_out(self, plan: SourcePlan) -> SourcePlan:
        """Return the plan without its damaged files, if its source skips them."""
        source, state = self.recipe.sources[plan.name], self.state / plan.unit
        if not source.skip_damaged:
            return plan
        left = without_damaged(plan, state, source.most_damaged, self.console, (COPIES,))
        if left != plan:
            write_plan(state / PLAN_FILE, left)
        return left

    def _tasks(self, plans: list[SourcePlan]) -> list[TokenizeTask]:
        """Return the tasks of all partitions of the plans. Copies the tokenizer to where workers read it."""
        recipe, vocab = self.recipe, self.vocab
        old = sealed_manifest(self.shards)
        tokenizer = self.shards / TOKENIZER_FILE
        # Once a manifest lists the tokenizer, the file stays as it is.
        if not old or not tokenizer.exists():
            vocab.copy_to(tokenizer)
        screening = Screening(
            benchmark=kept_benchmark(self.state).absolute() if self.benchmark else None,
            fingerprint=self.benchmark.fingerprint if self.benchmark else "",
            reject=recipe.shards.reject_contaminated,
            duplicates=recipe.shards.duplicates,
            removed=self._removed(old) if self.state.exists() else (),
        )
        return [
            TokenizeTask(
                partition=stamped(partition, plan.stamps),
                shards_dir=self.shards.absolute(),
                state_dir=(self.state / plan.unit).absolute(),
                record=self.records[plan.name],
                limits=recipe.sources[plan.name].limits,
                skip_damaged=recipe.sources[plan.name].skip_damaged,
                keep=plan.kept,
                screening=screening,
                normalization=recipe.normalize.function,
                tokenizer=self.tokenizer,
                target=plan.settings["target"],
                val_fraction=recipe.shards.val_fraction,
                val_seed=recipe.shards.seed,
                software=software(),
            )
            for plan in plans
            for partition in plan.partitions
        ]

    def _removed(self, old: Manifest | None) -> tuple[Path, ...]:
        """Return the lists of removed texts: that of these shards and that of the recipe.

        Raises IntegrityError if one is damaged.
        """
        if old:
            old.check(removed_path(old.folder))
        own, named = removed_path(self.shards), self.recipe.shards.removed
        lists = [path for path in (own if own.exists() else None, named) if path is not None]
        read_removed(lists)
        return tuple(path.absolute() for path in lists)

    def _encode(self, plans: list[SourcePlan], step: Step, failed: Failures) -> Failures:
        """Let workers tokenize the partitions that are not done.

        failed: those that failed already in this run, which are not tried again. Returns these and those that fail now.
        """
        failures, tasks, before = list(failed), self._tasks(plans), Counter[str]()
        for record in (load_record(task.state(".json")) for task in tasks):
            before.update(record.counts if record else {})
        # What failed while hashing would fail again at once, and its error would be shown twice.
        names = {name for name, _ in failed}
        todo = [task for task in self._todo(plans) if task.partition.name not in names]
        if not todo:
            return failures
        self.engine.choose(sum(task.partition.estimate for task in todo))
        if slow := self.engine.prepare(load_encoder, (self.vocab, self.tokenizer, markers_of(todo[0]))):
            self.console.notice(slow)
        for _ in run_partitions(tokenize_partition, tasks, todo, "to tokenize", before, step, failures):
            pass
        # No task runs any more, so what is unfinished was left by workers that were killed.
        remove_leftovers(self.shards)
        return failures

    def _seal(self, plans: list[SourcePlan], failures: Failures) -> None:
        """Seal the plans that are done.

        Raises an error for partitions that failed, damaged files and sources with too few documents. A source without
        documents is not sealed, so that its inputs and settings can still be changed.
        """
        full, empty = list[DonePlan](), dict[str, SourceCounts]()
        for plan in plans:
            records = (load_records if failures else all_records)(self.state / plan.unit, plan)
            # A source is sealed whole: the manifest would not show that a part is missing.
            if len(records) < len(plan.partitions):
                continue
            if plan.append or any(record.shards for record in records.values()):
                full.append((plan, records))
            else:
                merge_rejects(
                    self.state / plan.unit / ALL_REJECTS,
                    self.state / plan.unit,
                    plan.sealed({number: record.pieces for number, record in records.items()}),
                )
                empty[plan.name] = found_in(plan, records)
        if full:
            manifest = seal(self.shards, self.state, full, self.config, self.tokenizer)
            _report_encoded_again(manifest, {plan.name for plan, _ in full}, self.console)
        raise_failures(failures, self.console.log)
        sealed = load_manifest(self.shards).sources if has_manifest(self.shards) else {}
        counts = {
            name: (known.read, known.rejected)
            for name, known in (sealed | empty).items()
            if name in self.recipe.sources
        }

        def where(name: str) -> str:
            merged = sorted((self.shards / "rejects").glob(f"{name}-{'[0-9]' * 5}.jsonl"))
            return worst_files([*merged, self.state / name / ALL_REJECTS])

        problems = poor_sources(self.recipe.shards.max_reject_share, counts, where)
        if problems:
            raise PartitionsFailed("\n".join(problems))


def _report_encoded_again(manifest: Manifest, names: set[str], console: Console) -> None:
    """Name the partitions of these sources that `tokenizers` encoded because the sample differed."""
    if again := [text for name in sorted(names) for text in manifest.sources[name].encoded_again]:
        console.notice(
            f"the fast engine gave a document other ids than tokenizers in {plural(len(again), 'partition')}; "
            "tokenizers encoded these as a whole, so their ids are right. Please report the first document of each:\n  "
            + listed(again, 20, "\n  ")
        )
