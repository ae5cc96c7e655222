"""A mix that goes on with another: its first positions are the other's bit for bit, its sources go on where they were.

Input: a mix.json, and at which position it is left: given, or that of a run's newest checkpoint. Output: the mix of
these positions in the shards of today, behind which `stream.mix_job` puts new stages; and, of two mixes, how many
positions they prove to have in common. numpy, msgspec and the standard library only.

The shards may have grown by sources: those of the old mix's manifest, taken alone, must have its fingerprint, which
covers path, size and checksum of every shard and the tokenizer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import replace
from pretok.base.storage import read_json
from pretok.shards.manifest import Manifest
from pretok.stream.mix_file import Earlier, Mix, check_sources, load_mix, parse_mix

_CHECKPOINT = re.compile(r"step-\d{8}")


def same_until(one: Mix, other: Mix) -> int:
    """How many first positions of two mixes are the same by their files: the same tokens from the same sequences.

    That is so as far as their stages are the same, in shards that one grew out of the other or both out of third ones.
    Sources that neither has drawn from by then do not matter.
    """
    if one.fingerprint == other.fingerprint:
        return one.length
    if (one.split, one.seq_len, one.seed, one.cuts) != (other.split, other.seq_len, other.seed, other.cuts):
        return 0
    mine, theirs = _shards(one), _shards(other)
    known = max((min(mine[name], theirs[name]) for name in mine.keys() & theirs.keys()), default=0)
    same = 0
    for left, right, length, others in zip(
        _stages(one), _stages(other), one.lengths, other.lengths, strict=False
    ):
        if left != right:
            break
        same += min(length, others)
        if length != others:
            break
    return min(same, known)


def _shards(mix: Mix) -> dict[str, int]:
    """Fingerprint of shards -> positions from the first that lie in them."""
    return {part.manifest: part.length for part in mix.earlier} | {mix.manifest: mix.length}


def _stages(mix: Mix) -> list[list[tuple[object, ...]]]:
    """Name, tokens, packing and quota of the sources of each stage, in the order that decides between equal times."""
    return [
        [
            (source.name, source.tokens, source.packed, quota)
            for source, quota in zip(mix.sources, quotas, strict=True)
            if quota
        ]
        for quotas in mix.stages
    ]


def beginning(manifest: Manifest, path: Path, at: int, seq_len: int | None = None) -> Mix:
    """The first `at` positions of the mix in `path`, as a mix in the shards of `manifest`.

    Raises UsageError when the mix has not so many positions or, where one is given, another sequence length (the
    message says what would come again), MismatchError when the shards are not those it was made of
    with nothing but more sources, and what `load_mix` raises.
    """
    mix = load_mix(path)
    if not 1 <= at <= len(mix):
        raise UsageError(f"{path} has {len(mix)} sequences; it cannot be continued at {at}")
    mix = mix.first(at)
    if seq_len not in (None, mix.seq_len):
        raise UsageError(_other_length(mix, path, seq_len))
    if mix.manifest != manifest.fingerprint:
        _check_grown(mix, manifest, path)
        earlier = mix.earlier
        if not earlier or earlier[-1].length < at:
            earlier = (*earlier, Earlier(mix.manifest, at))
        mix = replace(mix, manifest=manifest.fingerprint, earlier=earlier)
    check_sources(mix, manifest, path)
    return mix


def _check_grown(mix: Mix, manifest: Manifest, path: Path) -> None:
    """MismatchError unless the sources that the mix's shards had are in `manifest` as they were."""
    report = read_json(path).get("report") or {}
    names = {source.name for source in mix.sources} | set(report.get("left_out") or ())
    if missing := sorted(names.difference(manifest.sources)):
        raise MismatchError(
            f"{path} was made of shards with the sources {', '.join(sorted(names))}; {manifest.folder} lacks "
            f"{', '.join(missing)}: it can be continued only where these are as they were"
        )
    old = replace(manifest, shards=tuple(shard for shard in manifest.shards if shard.source in names))
    if old.fingerprint != mix.manifest:
        raise MismatchError(
            f"{path} was made of shards with fingerprint {mix.manifest}; in {manifest.folder} the sources it knew "
            f"({', '.join(sorted(names))}) have {old.fingerprint}: a mix goes on only in shards that have these "
            "unchanged, beside new sources"
        )


def _other_length(mix: Mix, path: Path, seq_len: int | None) -> str:
    """What to do instead, and which tokens of what `mix`, the beginning of the one in `path`, read may come again."""
    read = zip(mix.sources, mix.order().prefix(len(mix)).tolist(), strict=True)
    told = ", ".join(
        f"{source.name} {min(drawn, source.sequences) * mix.seq_len:,}" for source, drawn in read
    )
    return (
        f"{path} has sequences of {mix.seq_len} tokens, and a mix that goes on with it keeps them. For {seq_len} make "
        "a mix of its own (without --continue) and name it in a phase of the run, which reads it from its first "
        f"sequence. What was read up to sequence {len(mix)} may come again in it, at most so many tokens: {told}"
    )


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
