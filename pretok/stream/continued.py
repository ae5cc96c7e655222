"""A mix that continues another: its first positions are the same bit for bit, and its sources continue from there.

Input: a mix.json, and the position at which to leave it: given, or that of a run's newest checkpoint. Output: the mix
of these positions on the shards of today, to which `stream.mix_job` appends new stages; and, for two mixes, how many
first positions they provably have in common. The shards may have grown since: the history of their manifest proves it.
It needs only numpy, msgspec and the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import replace
from pretok.base.storage import read_json
from pretok.shards.manifest import Manifest
from pretok.stream.mix_file import Mix, MixSource, check_sources, load_mix, parse_mix


def same_until(mix: Mix, other: Mix, equal: Mapping[str, str] | None = None) -> int:
    """Return how many first positions of two mixes are the same, judging by their files.

    The same: equal tokens from the same sequences, and the same of them learned. That holds while their stages read the
    same entries, added with the same shards. equal: fingerprint of shards -> that of others which count as the same
    (`Manifest.but_for_removals`).
    """
    if mix.fingerprint == other.fingerprint:
        return mix.length
    if (mix.split, mix.seq_len, mix.seed, mix.cuts) != (other.split, other.seq_len, other.seed, other.cuts):
        return 0
    same = 0
    for left, right, length, others in zip(
        _stages(mix, equal or {}), _stages(other, equal or {}), mix.lengths, other.lengths, strict=False
    ):
        if left != right:
            break
        # Equal quotas and entries give equal positions, so a stage that one of them leaves early is equal up to there.
        # What follows it lies at other positions.
        same += min(length, others)
        if length != others:
            break
    return same


def _stages(mix: Mix, equal: Mapping[str, str]) -> list[list[tuple[int, MixSource]]]:
    """Return what each stage reads: quotas and entries, in the order that breaks ties."""
    shards = [entry.manifest or mix.manifest for entry in mix.sources]
    known = [
        replace(source, manifest=equal.get(at, at)) for source, at in zip(mix.sources, shards, strict=True)
    ]
    return [
        [(quota, entry) for quota, entry in zip(stage.quotas, known, strict=True) if quota]
        for stage in mix.stages
    ]


def beginning(manifest: Manifest, path: Path, at: int, seq_len: int | None = None) -> Mix:
    """Return the first `at` positions of the mix in `path`, as a mix on the shards of `manifest`.

    Raises UsageError if the mix has fewer positions, or a sequence length other than `seq_len` (if given);
    MismatchError if the shards have not grown from those of the mix; and what `load_mix` raises.
    """
    mix = load_mix(path)
    if not 1 <= at <= len(mix):
        raise UsageError(f"{path} has {len(mix)} sequences; it cannot be continued at {at}")
    mix = mix.first(at)
    if seq_len not in (None, mix.seq_len):
        raise UsageError(
            f"{path} has sequences of {mix.seq_len} tokens, and a mix that continues it keeps this length. For "
            f"{seq_len} make a separate mix (without --continue) and name it in a phase of the run; it starts from its "
            "first sequence, so it may repeat what was read here"
        )
    check_sources(mix, manifest, path)
    if mix.manifest != manifest.fingerprint:
        # Every entry keeps the shards of its time; what was appended since becomes new entries (`mix_job`).
        sources = tuple(replace(source, manifest=source.manifest or mix.manifest) for source in mix.sources)
        mix = replace(mix, manifest=manifest.fingerprint, sources=sources)
    return mix


def run_position(run: Path, path: Path) -> int:
    """Return the position of a run's newest checkpoint, after checking that the run reads the mix in `path`.

    A mix that begins with the same sequences up to there is fine too. Raises UsageError if there is no checkpoint,
    MismatchError if the run reads something else.
    """
    checkpoints = sorted((run / "checkpoints").glob("step-????????/meta.json"))
    if not checkpoints:
        raise UsageError(f"{run} has no checkpoint; give the sequence at which to leave the mix with --at")
    data = read_json(checkpoints[-1])
    try:
        position, identity = int(data["progress"]["position"]), data["identity"]
        stream, read = identity["stream"], identity.get("mix")
    except (KeyError, TypeError, AttributeError, ValueError):
        raise MismatchError(f"{checkpoints[-1]} has no position of the run; give it with --at") from None
    mix = load_mix(path)
    same = (
        len(mix)
        if stream == mix.fingerprint
        else same_until(parse_mix(read, checkpoints[-1]), mix)
        if read
        else 0
    )
    if same < position:
        raise MismatchError(
            f"{run} has read {position} sequences of the stream {stream}; {path} is the stream {mix.fingerprint} and "
            f"has only the first {same} in common with it: name the mix that the run reads"
        )
    return position
