"""A mix that goes on with another: its first positions are the other's bit for bit, its sources go on where they were.

Input: a mix.json, and at which position it is left: given, or that of a run's newest checkpoint. Output: the mix of
these positions in the shards of today, behind which `stream.mix_job` puts new stages; and, of two mixes, how many
positions they prove to have in common. numpy, msgspec and the standard library only.

The shards may have grown since: the history of their manifest proves it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import replace
from pretok.base.storage import read_json
from pretok.shards.manifest import Manifest
from pretok.stream.mix_file import Mix, MixSource, check_sources, load_mix, parse_mix

_CHECKPOINT = re.compile(r"step-\d{8}")


def same_until(one: Mix, other: Mix, equal: Mapping[str, str] | None = None) -> int:
    """How many first positions of two mixes are the same by their files: the same tokens from the same sequences, of
    which the same are learned. equal: fingerprint of shards -> that of others which count as the same
    (`Manifest.but_for_removals`).

    That is so as far as their stages read the same entries, which came in the same shards.
    """
    if one.fingerprint == other.fingerprint:
        return one.length
    if (one.split, one.seq_len, one.seed, one.cuts) != (other.split, other.seq_len, other.seed, other.cuts):
        return 0
    same = 0
    for left, right, length, others in zip(
        _stages(one, equal or {}), _stages(other, equal or {}), one.lengths, other.lengths, strict=False
    ):
        if left != right:
            break
        same += min(length, others)
        if length != others:
            break
    return same


def _stages(mix: Mix, equal: Mapping[str, str]) -> list[list[tuple[int, list[MixSource]]]]:
    """What each stage reads: the quota of each pool and its entries, in the order that decides between equal times."""
    pools = []
    for numbers in mix.pools.values():
        entries = [mix.sources[number] for number in numbers if mix.sources[number].sequences]
        shards = [entry.manifest or mix.manifest for entry in entries]
        same = [
            replace(entry, manifest=equal.get(then, then), stage=0)
            for entry, then in zip(entries, shards, strict=True)
        ]
        pools.append([(entry.stage, one) for entry, one in zip(entries, same, strict=True)])
    return [
        [
            (quota, [one for since, one in pool if since <= number])
            for pool, quota in zip(pools, stage.quotas, strict=True)
            if quota
        ]
        for number, stage in enumerate(mix.stages)
    ]


def beginning(manifest: Manifest, path: Path, at: int, seq_len: int | None = None) -> Mix:
    """The first `at` positions of the mix in `path`, as a mix in the shards of `manifest`.

    Raises UsageError when the mix has not so many positions or, where one is given, another sequence length,
    MismatchError when the shards have not grown from those it was made of, and what `load_mix` raises.
    """
    mix = load_mix(path)
    if not 1 <= at <= len(mix):
        raise UsageError(f"{path} has {len(mix)} sequences; it cannot be continued at {at}")
    mix = mix.first(at)
    if seq_len not in (None, mix.seq_len):
        raise UsageError(
            f"{path} has sequences of {mix.seq_len} tokens, and a mix that goes on with it keeps them. For {seq_len} "
            "make a mix of its own (without --continue) and name it in a phase of the run, which reads it from its "
            "first sequence: it may read again what was read here"
        )
    check_sources(mix, manifest, path)
    if mix.manifest != manifest.fingerprint:
        # What was appended becomes entries of their own (`mix_job`).
        sources = tuple(replace(source, manifest=source.manifest or mix.manifest) for source in mix.sources)
        mix = replace(mix, manifest=manifest.fingerprint, sources=sources)
    return mix


def run_position(run: Path, path: Path) -> int:
    """The position of a run's newest checkpoint, which must read the mix in `path` or one that begins as it does.

    Raises UsageError when the folder has no checkpoint, MismatchError when the run reads something else.
    """
    found = sorted(
        meta
        for meta in (run / "checkpoints").glob("step-*/meta.json")
        if _CHECKPOINT.fullmatch(meta.parent.name)
    )
    if not found:
        raise UsageError(f"{run} has no checkpoint; say with --at at which sequence the mix is left")
    data = read_json(found[-1])
    try:
        position, stream = int(data["progress"]["position"]), data["identity"]["stream"]
        read: Any = data["identity"].get("mix")
    except (KeyError, TypeError, AttributeError, ValueError):
        raise MismatchError(f"{found[-1]} does not say where the run is; use --at") from None
    mix = load_mix(path)
    same = (
        len(mix) if stream == mix.fingerprint else same_until(parse_mix(read, found[-1]), mix) if read else 0
    )
    if same < position:
        raise MismatchError(
            f"{run} has read {position} sequences of the stream {stream}; {path} is {mix.fingerprint} and the same up "
            f"to {same}: name the mix that the run reads"
        )
    return position
