"""RUN/segments.jsonl: which positions of which stream the steps of a run read.

`train` writes it, and commands such as trace read it later. Input: a segment as it begins, or the folder of a run.
Output: `RunSegment`s. A new segment begins only when the data or the batch of the run changes, by a changed setting or
by a phase.
"""

from __future__ import annotations

from pathlib import Path

from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import Count, Digest, Record, Signed, read_record, replace
from pretok.base.storage import read_json, read_lines
from pretok.shards.manifest import Manifest
from pretok.stream.mix_file import check_sources, parse_mix
from pretok.stream.view import View

SEGMENTS = "segments.jsonl"
CONFIG = "config.json"


class RunSegment(Record, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=False):
    """From step `step` on, with `tokens` done, each step reads `global_batch` positions, from `position` on."""

    step: Count
    tokens: Count
    position: Count
    global_batch: Count
    seq_len: Count
    seed: Signed
    stream: Digest
    """Fingerprint of the order."""
    shards: str
    """Their path."""
    mix: str | None = None
    """Its path; None if every sequence is read once, in the order of `seed`."""
    order: dict[str, object]
    """The content of the mix file."""
    removals: Count = 0
    """How many removals the shards had seen when the segment began; documents removed later were still read."""

    def position_after(self, step: int) -> int:
        """Return how many positions of the stream are read after `step` steps."""
        return self.position + (step - self.step) * self.global_batch

    def tokens_after(self, step: int) -> int:
        """Return how many tokens are done after `step` steps."""
        return self.tokens + (step - self.step) * self.global_batch * self.seq_len

    def continues(self, other: RunSegment) -> bool:
        """Return whether `other` only continues this segment, without any change."""
        here = replace(self, step=other.step, position=self.position_after(other.step))
        return replace(here, tokens=other.tokens) == other


class Resolved(Record, frozen=True, forbid_unknown_fields=False):
    """The needed fields of `resolved` in config.json, the settings as `train` resolved them."""

    model: dict[str, object]
    """Its sizes."""
    steps: Count


class RunSettings(Record, frozen=True, forbid_unknown_fields=False):
    """The needed fields of a run's config.json."""

    resolved: Resolved
    model: str


def check_run(run: Path) -> None:
    """Raise UsageError unless `run` is the folder of a run."""
    if not (run / CONFIG).exists():
        what = f"is not the folder of a run: it has no {CONFIG}" if run.exists() else "does not exist"
        raise UsageError(f"{run} {what}; name the folder of a run (train --out)")


def read_settings(run: Path) -> RunSettings:
    """Read RUN/config.json. Raises UsageError if it is missing, IntegrityError if train did not write it."""
    check_run(run)
    return read_record(RunSettings, read_json(run / CONFIG), run / CONFIG)


def read_segments(run: Path) -> tuple[RunSegment, ...]:
    """Return all segments in the order of their steps. Raises UsageError if the first are missing, IntegrityError."""
    read_settings(run)
    segments = written_segments(run)
    if not segments or segments[0].step:
        raise UsageError(
            f"{run / SEGMENTS} does not say what the first steps read: restore the file that the run wrote, or "
            "give a mix instead"
        )
    return segments


def written_segments(run: Path) -> tuple[RunSegment, ...]:
    """Return the segments in RUN/segments.jsonl; () if there is no file."""
    path = run / SEGMENTS
    return tuple(read_record(RunSegment, line, path) for line in read_lines(path))


def open_segments(segments: tuple[RunSegment, ...], manifest: Manifest) -> list[View]:
    """Open the stream of each segment on shards that hold its documents, or have grown from those that did.

    Raises MismatchError if a segment read other shards or another stream.
    """
    views = []
    for segment in segments:
        order = parse_mix(segment.order, Path(SEGMENTS))
        try:
            check_sources(order, manifest, manifest.folder)
        except MismatchError as error:
            raise MismatchError(f"from step {segment.step + 1} the run read other shards: {error}") from None
        if order.fingerprint != segment.stream:
            raise MismatchError(
                f"from step {segment.step + 1} the run read the stream {segment.stream}; "
                f"{segment.mix or manifest.folder} is {order.fingerprint} now: name the shards of that run"
            )
        views.append(View(manifest, order, Path(segment.mix or "").parent))
    return views
