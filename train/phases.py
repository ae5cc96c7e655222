"""Phases of a run: the settings in force at each step, and whether a checkpoint may resume with them.

Input: settings, the ranks, and where a run is. Output: `Phase`s, each with its own data, batch and sizes, and
`Segment`s, which say from which step to which a phase lasts, at which position its stream starts, and the learning rate
of every step.

A phase begins at the first step at or after its `at` tokens. If its stream is the same as that of the phase before, or
begins with the same sequences, it continues at the current position; any other stream is read from its start. The
weights, moments, sizes and tokenizer of the model are the same for the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pretok.stream
from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import replace, to_json
from pretok.shards.manifest import shards_of
from pretok.stream import View, same_until
from pretok.stream.mix_file import mix_json, parse_mix
from pretok.stream.object_store import is_url
from pretok.stream.segments import RunSegment
from train.checkpoint.meta import META, Identity, Meta, RunState, TokenizerOrigin, complete_checkpoints
from train.config import IN_PHASES, TrainConfig
from train.model.sizes import ModelConfig, model_config
from train.optimizer import learning_rate
from train.parallel.layout import BatchSizes, solve_batch

MAY_CHANGE = {"model.seq_len", "model.rope_theta", "global_batch", "stream", "manifest", "mix"}
"""Fields of an Identity that a phase may change. `_equal_positions` decides about the data."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The settings in force from `at` tokens on, and their data."""

    at: int
    config: TrainConfig
    view: View
    model: ModelConfig
    batch: BatchSizes
    own_schedule: bool
    """The phase starts a new schedule."""

    @property
    def step_tokens(self) -> int:
        """Tokens per step."""
        return self.batch.global_batch * self.view.seq_len

    def learns_from(self) -> tuple[object, ...]:
        """Return what determines the usual scale of losses and gradients."""
        return self.view.fingerprint, self.model.rope_theta, self.batch.global_batch, self.config.z_loss

    def tokenizer(self) -> TokenizerOrigin:
        """Return the tokenizer of the ids, and the shards folder with a copy of it."""
        return TokenizerOrigin(self.view.tokenizer["fingerprint"], place_of(self.config.shards, shards_of))

    def identity(self) -> Identity:
        """Return the phase as a checkpoint records it."""
        view, batch, seed = self.view, self.batch.global_batch, self.config.seed
        mix = mix_json(view.mix)
        return Identity(self.model, batch, seed, view.fingerprint, view.manifest_fingerprint, mix)


def place_of(name: str, resolve: Callable[[Path], Path] = Path) -> str:
    """Return a path as an absolute one, after `resolve`; a URL as it is."""
    return name if is_url(name) else str(resolve(Path(name)).absolute())


def open_phases(config: TrainConfig, data_ranks: int) -> tuple[Phase, ...]:
    """Open the data of all phases and solve their sizes. Raises UsageError or MismatchError for an invalid phase."""
    phases: list[Phase] = []
    for at, settings, own_schedule in config.in_phases():
        where = f"phase at {at} tokens: " if at else ""
        try:
            batch = solve_batch(data_ranks, settings.global_batch, settings.micro_batch)
            phase = _open(at, settings, batch, own_schedule)
        except (UsageError, MismatchError) as error:
            raise type(error)(f"{where}{error}") from None
        if phases and (different := _fixed(phases[0].identity(), phase.identity())):
            raise MismatchError(f"{where}a phase cannot change {'; '.join(different)}")
        if phases and phases[0].tokenizer().fingerprint != phase.tokenizer().fingerprint:
            raise MismatchError(
                f"{where}{settings.shards} has another tokenizer than the shards of the first phase"
            )
        phases.append(phase)
    return tuple(phases)


def _sizes(config: TrainConfig) -> str:
    """Return the value that names the model's sizes.

    The --init-from folder may be gone when the run resumes; its checkpoints hold the sizes too.
    """
    if config.init_from is None or Path(config.init_from).is_dir():
        return config.sizes
    saved = complete_checkpoints(Path(config.out) / "checkpoints")
    if not saved:
        raise UsageError(
            f"--init-from: {config.init_from} is not a folder; name a transformers model, the output of train export, "
            "a checkpoint or a run"
        )
    return config.model or str(saved[-1])


def _open(at: int, config: TrainConfig, batch: BatchSizes, own_schedule: bool) -> Phase:
    preset = model_config(_sizes(config))
    if config.init_from is None:  # --model may name an existing model, of which only the sizes are used
        preset = replace(preset, rows=0, dtype="float32")
    elif config.vocab_map is not None:  # the matrices get the rows of the new vocabulary
        preset = replace(preset, rows=0)
    seq_len = config.seq_len or (None if config.mix else preset.seq_len)
    view = pretok.stream.open(
        config.shards,
        config.mix,
        seq_len=seq_len,
        seed=config.seed,
        cache=config.cache,
        cache_bytes=config.cache_bytes,
    )
    theta = preset.rope_theta if config.rope_theta is None else config.rope_theta
    model = replace(preset, vocab_size=view.vocab_size, seq_len=view.seq_len, rope_theta=float(theta))
    return Phase(at, config, view, model, batch, own_schedule)


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps `step` to `last_step` - 1 (from 0) of a phase; `tokens` and `position` are those at its first step.

    The learning rate schedule runs from `schedule` to `schedule_end` tokens and counts in steps of `unit` tokens.
    """

    phase: Phase
    step: int
    last_step: int
    tokens: int
    position: int
    schedule: int
    schedule_end: int
    unit: int

    def reads(self) -> RunSegment:
        """Return the line of RUN/segments.jsonl for this segment."""
        view, config = self.phase.view, self.phase.config
        return RunSegment(
            step=self.step,
            tokens=self.tokens,
            position=self.position,
            global_batch=self.phase.batch.global_batch,
            seq_len=view.seq_len,
            seed=config.seed,
            stream=view.fingerprint,
            shards=place_of(config.shards),
            mix=place_of(config.mix) if config.mix else None,
            order=mix_json(view.mix),
            removals=view.removals,
        )

    def tokens_after(self, step: int) -> int:
        """Return the tokens done after `step` steps."""
        return self.tokens + (step - self.step) * self.phase.step_tokens

    def position_after(self, step: int) -> int:
        """Return the sequences of the stream read after `step` steps."""
        return self.position + (step - self.step) * self.phase.batch.global_batch

    def rate(self, step: int) -> float:
        """Return the learning rate of step `step` (from 0)."""
        done, whole = self.tokens_after(step) - self.schedule, self.schedule_end - self.schedule
        size = self.phase.step_tokens / self.unit
        return learning_rate(self.phase.config, done / self.unit, whole / self.unit, size)


def plan_segments(phases: Sequence[Phase], state: RunState, saved: Identity | None) -> list[Segment]:
    """Return the segments from the current state of the run to its end.

    saved: identity in the checkpoint that `state` comes from; None for a new run. Raises UsageError if there is too
    little data, nothing to do, or two phases begin with the same step; MismatchError if the checkpoint's phase
    disagrees with the settings.
    """
    number, began = _phase_of(phases, state, saved)
    step, tokens = state.step, state.tokens
    position = state.position
    if began and saved and _equal_positions(phases[number].view, saved) < position:
        position = 0  # another stream, which is read from its start
    schedule, unit = state.schedule, state.unit or phases[number].step_tokens
    if began and phases[number].own_schedule:
        schedule, unit = tokens, phases[number].step_tokens
    segments: list[Segment] = []
    while True:
        phase, following = phases[number], phases[number + 1 :]
        last = _last_step(phase, following[0].at if following else None, step, tokens, position)
        if segments and last == step:  # the run ends where this phase would begin
            break
        segment = Segment(phase, step, last, tokens, position, schedule, 0, unit)
        segments.append(segment)
        step, tokens = last, segment.tokens_after(last)
        if not following or tokens < following[0].at:
            break
        number += 1
        if following[1:] and following[1].at <= tokens:
            raise UsageError(
                f"phases: those at {following[0].at} and at {following[1].at} tokens both begin with step {step + 1}, "
                f"as a step has {phase.step_tokens} tokens; put them further apart, or merge them"
            )
        same = same_until(phase.view.mix, phases[number].view.mix)
        position = segment.position_after(last) if same >= segment.position_after(last) else 0
        if phases[number].own_schedule:
            schedule, unit = tokens, phases[number].step_tokens
    # A schedule may cover several segments and ends with the last of them: later entries overwrite earlier ones.
    ends = {segment.schedule: segment.tokens_after(segment.last_step) for segment in segments}
    return [replace(segment, schedule_end=ends[segment.schedule]) for segment in segments]


def _phase_of(phases: Sequence[Phase], state: RunState, saved: Identity | None) -> tuple[int, bool]:
    """Return (number of the phase of the next step, whether it begins with that step)."""
    if saved is None:
        return 0, True
    numbers = {phase.at: number for number, phase in enumerate(phases)}
    if state.phase not in numbers:
        raise MismatchError(
            f"the checkpoint of step {state.step} is in the phase at = {state.phase}, which is no longer in the "
            "settings: add it again"
        )
    number, tokens = numbers[state.phase], state.tokens
    passed = [phase for phase in phases[number + 1 :] if phase.at <= tokens]
    if not passed:
        return number, False
    if len(passed) > 1 or passed[0].at <= tokens - saved.step_tokens:
        raise MismatchError(
            f"the phase at {passed[0].at} tokens begins before the {tokens} tokens that are already trained; move its "
            "`at` beyond them, or change the settings outside of [[phases]]"
        )
    return number + 1, True


def _last_step(phase: Phase, next_at: int | None, step: int, tokens: int, position: int) -> int:
    """Return how many steps are done when the next phase begins or the run ends."""
    config, batch = phase.config, phase.batch.global_batch
    available = step + (len(phase.view) - position) // batch
    if config.steps is not None and config.tokens is not None:
        raise UsageError("give --steps or --tokens, not both")
    ends = [config.steps] if config.steps is not None else []
    if config.tokens is not None:
        ends.append(step + (config.tokens - tokens) // phase.step_tokens)
    if next_at is not None:
        ends.append(step + -(-(next_at - tokens) // phase.step_tokens))
    last = min(ends) if ends else available
    if last < step:
        given = f"--tokens {config.tokens}" if config.steps is None else f"--steps {config.steps}"
        raise UsageError(f"{given}: the run has done {step} steps already; give more, or another --out")
    if config.tokens is not None and last < 1:
        raise UsageError(
            f"--tokens {config.tokens:,} are less than one step of {batch} sequences of {phase.view.seq_len} tokens "
            f"({phase.step_tokens:,} tokens); give more, or a smaller --global-batch"
        )
    if not 0 < last <= available:
        raise UsageError(
            f"{max(1, last)} steps of {batch} sequences need more data: there are {len(phase.view)} sequences of "
            f"{phase.view.seq_len} tokens, enough for {available} steps"
        )
    return last


def _equal_positions(view: View, saved: Identity) -> int:
    """Return the length of the common beginning of a view and a checkpoint's stream.

    Documents that were removed since then do not count as a difference.
    """
    if view.fingerprint == saved.stream:
        return view.mix.length
    return same_until(parse_mix(saved.mix, Path(META)), view.mix, view.but_for_removals)


def differences(theirs: dict[str, Any], ours: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return name -> (theirs, ours) for every value that differs; values of inner tables have names like model.dim."""
    different: dict[str, tuple[Any, Any]] = {}
    for key, value in ours.items():
        other = theirs.get(key)
        if isinstance(value, dict) and isinstance(other, dict) and key != "mix":
            different |= differences(other, value, f"{prefix}{key}.")
        elif other != value:
            different[f"{prefix}{key}"] = (other, value)
    return different


def _fixed(theirs: Identity, ours: Identity, changes: Collection[str] = MAY_CHANGE) -> list[str]:
    """Describe the differences that are not allowed."""
    different = differences(to_json(theirs), to_json(ours))
    return [f"{name} was {was}, is {now}" for name, (was, now) in different.items() if name not in changes]


def check_resume(phases: Sequence[Phase], meta: Meta, out: str) -> None:
    """Raise MismatchError if a checkpoint cannot resume with these settings: another model, seed, tokenizer or data.

    In the middle of a phase the data may change only if the sequences read so far are the same.
    """
    number, began = _phase_of(phases, meta.progress, meta.identity)
    phase, state, saved = phases[number], meta.progress, meta.identity
    common = _equal_positions(phase.view, saved)
    diverged = not began and common < state.position
    different = _fixed(
        saved, phase.identity(), MAY_CHANGE - ({"model.seq_len", "stream"} if diverged else set())
    )
    if (was := meta.config.get("optimizer", "adamw")) != phase.config.optimizer:
        different.append(f"optimizer was {was}, is {phase.config.optimizer}")
    tokenizer = phase.tokenizer().fingerprint
    if meta.tokenizer.fingerprint != tokenizer:
        different.append(
            f"{phase.config.shards} was made with another vocabulary than {meta.tokenizer.shards}, which the run read: "
            f"the same ids stand for other tokens (fingerprint {tokenizer}, was {meta.tokenizer.fingerprint})"
        )
    if diverged:
        different.append(
            f"the data differs from sequence {common} on, and {state.position} are already read; to change the data "
            f"add a phase: [[phases]] with at = {state.tokens} and {' or '.join(IN_PHASES[:3])}"
        )
    if different:
        raise MismatchError(
            f"{out} was started with other settings: {'; '.join(different)}. Resume with the original settings, or "
            f"choose another --out (add --init-from {out} to start from these weights, if the sizes are the same)"
        )
