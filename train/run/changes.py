"""RUN/changes.jsonl and RUN/segments.jsonl: what was changed in mid-run, by hand between two starts or by a phase, and
what the steps read.

Input: a checkpoint and the settings it goes on with, or two phases. Output: a line for each change with the step it is
in force from, and the same in words; a line for each `RunSegment` (`pretok.stream.segments`). Only rank 0 writes; what
a run did again after a kill is there once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretok.base.records import to_json
from pretok.stream.mix_file import mix_json
from pretok.stream.segments import SEGMENTS, RunSegment, written_segments
from train.checkpoint.meta import Meta
from train.config import TrainConfig
from train.run.lines import Lines
from train.run.phases import Segment, differences
from train.run.report import Reporter


class Changes:
    """The files of a run whose next step is `step` (from 0)."""

    def __init__(self, out: Path, rank: int, step: int, report: Reporter) -> None:
        self._report = report
        self._changes: Lines | None = None
        if rank == 0:  # what is in force from this step on is told now

            def before(record: Any) -> bool:
                return bool(record["step"] < step)

            self._changes, self._segments = (
                Lines(out / "changes.jsonl", before),
                Lines(out / SEGMENTS, before),
            )
            self._segment = next(reversed(written_segments(out)), None)

    def by_hand(self, meta: Meta, config: TrainConfig, segment: Segment) -> None:
        """Settings that are others than those the checkpoint was saved with."""
        found = differences(meta.config, config.as_dict())
        sizes = differences(to_json(meta.identity.model), to_json(segment.phase.model))
        if "rope_theta" not in found and meta.progress.phase == segment.phase.at and "rope_theta" in sizes:
            found["rope_theta"] = sizes["rope_theta"]  # of a file of sizes
        for name, (was, now) in found.items():
            self._report(f"setting {name} was {was}, is {now}")
        self._write("hand", segment, found)

    def by_phase(self, before: TrainConfig, segment: Segment) -> None:
        """A phase that begins."""
        found = differences(before.as_dict(), segment.phase.config.as_dict())
        told = ", ".join(f"{name} was {was}, is {now}" for name, (was, now) in found.items())
        where = f"reads its stream from sequence {segment.position} on"
        self._report(f"phase at {segment.phase.at:,} tokens: {told or 'nothing changes'}; {where}")
        self._write("phase", segment, found)

    def reads(self, segment: Segment) -> None:
        """A segment begins, or goes on after a start."""
        view, config = segment.phase.view, segment.phase.config
        now = RunSegment(
            step=segment.step,
            tokens=segment.tokens,
            position=segment.position,
            global_batch=segment.phase.batch.global_batch,
            seq_len=view.seq_len,
            seed=config.seed,
            stream=view.fingerprint,
            shards=str(Path(config.shards).absolute()),
            mix=str(Path(config.mix).absolute()) if config.mix else None,
            order=mix_json(view.mix),
            removals=view.removals,
        )
        if self._changes is not None and not (self._segment and self._segment.goes_on_with(now)):
            self._segments.add(to_json(now))
            self._segment = now

    def _write(self, by: str, segment: Segment, found: dict[str, tuple[Any, Any]]) -> None:
        if self._changes is not None and (found or by == "phase"):
            place = {"step": segment.step, "tokens": segment.tokens, "position": segment.position, "by": by}
            self._changes.add(place | {"changes": {name: list(pair) for name, pair in found.items()}})
