"""RUN/segments.jsonl: which positions of which stream the steps of a run read; written by `train`, read by who asks
later.

Input: a segment as it begins, or the folder of a run. Output: `RunSegment`s: a run goes on in one segment until its
data or its batch changes, by hand or by a phase.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.records import Count, Record, Signed, read_record, replace
from pretok.base.storage import read_json, read_lines
from pretok.shards.manifest import Manifest
from pretok.stream import View
from pretok.stream.mix_file import check_sources, load_mix, parse_mix

SEGMENTS = "segments.jsonl"
CONFIG = "config.json"


class RunSegment(Record, frozen=True, kw_only=True, omit_defaults=True):
    """From step number `step` (from 0, with `tokens` done) on each step reads `global_batch` positions of a stream, the
    first of them from `position` on.

    stream: fingerprint of the order; order: the mix itself as its file has it; shards, mix: where they were; mix None:
    every sequence once, in the order of `seed`; removals: how often documents had been removed from the shards when
    its steps began, so later ones had still been read.
    """

    step: Count
    tokens: Count
    position: Count
    global_batch: Count
    seq_len: Count
    seed: Signed
    stream: str
    shards: str
    mix: str | None = None
    order: dict[str, object]
    removals: Count = 0

    def position_after(self, step: int) -> int:
        """Positions of the stream that are read when `step` steps are done."""
        return self.position + (step - self.step) * self.global_batch

    def tokens_after(self, step: int) -> int:
        """Tokens that are done then."""
        return self.tokens + (step - self.step) * self.global_batch * self.seq_len

    def goes_on_with(self, other: RunSegment) -> bool:
        """Whether nothing changes where `other` begins."""
        here = replace(self, step=other.step, position=self.position_after(other.step))
        return replace(here, tokens=other.tokens) == other


class Resolved(Record, frozen=True):
    """What of `resolved` in config.json is needed: what `train` made of the settings. model: its sizes."""

    model: dict[str, object]
    steps: Count


class RunSettings(Record, frozen=True):
    """What of a run's config.json is needed."""

    resolved: Resolved
    model: str


def check_run(run: Path) -> None:
    """UsageError unless this is the folder of a run."""
    if not (run / CONFIG).exists():
        what = f"is no folder of a run: it has no {CONFIG}" if run.exists() else "does not exist"
        raise UsageError(f"{run} {what}; name the folder of a run (train --out)")


def read_settings(run: Path) -> RunSettings:
    """RUN/config.json. Raises UsageError where there is none, IntegrityError for one that train did not write."""
    check_run(run)
    path = run / CONFIG
    data: Any = read_json(path)
    if not isinstance(data, dict) or not isinstance(data.get("resolved"), dict):
        raise IntegrityError(f"{path} is not what train writes: it lacks 'resolved'")
    resolved = _known(Resolved, data["resolved"])
    return read_record(RunSettings, _known(RunSettings, data) | {"resolved": resolved}, path)


def _known(kind: type[Record], data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record among more that others wrote."""
    return {key: value for key, value in data.items() if key in kind.__struct_fields__}


def read_segments(run: Path) -> tuple[RunSegment, ...]:
    """All segments, in the order of their steps. UsageError where they are not known, IntegrityError."""
    read_settings(run)
    segments = written_segments(run)
    if not segments or segments[0].step:
        raise UsageError(
            f"{run / SEGMENTS} does not say what the first steps read: bring back the file that the run wrote, or "
            "give a mix instead"
        )
    return segments


def written_segments(run: Path) -> tuple[RunSegment, ...]:
    """What RUN/segments.jsonl says; empty where there is none."""
    path = run / SEGMENTS
    return tuple(read_record(RunSegment, _known(RunSegment, line), path) for line in read_lines(path))


def open_segments(
    segments: tuple[RunSegment, ...], manifest: Manifest, mix: Path | None = None
) -> list[View]:
    """The stream of each segment over shards that hold its documents, or have grown from those; mix: where that of the
    last one is now, None: what the run recorded of it. Raises UsageError, MismatchError where a segment read something
    else."""
    views = []
    for number, segment in enumerate(segments):
        moved = mix if number == len(segments) - 1 else None
        order = parse_mix(segment.order, Path(SEGMENTS)) if moved is None else load_mix(moved)
        try:
            check_sources(order, manifest, manifest.folder)
        except MismatchError as error:
            raise MismatchError(
                f"from step {segment.step + 1} on the run read other shards: {error}"
            ) from None
        if order.fingerprint != segment.stream:
            raise MismatchError(
                f"from step {segment.step + 1} on the run read the stream {segment.stream}; "
                f"{mix or segment.mix or manifest.folder} is {order.fingerprint} now: name the shards and the mix "
                "of that run"
            )
        beside = moved or (None if segment.mix is None else Path(segment.mix))
        views.append(View(manifest, order, folder=beside and beside.parent))
    return views
