"""The unfinished parts of a shards folder, from the plans and records in its .state.

Input: SHARDS. Output: sentences for `status` and `verify`, so that incomplete shards never look complete. Also the plan
of another job that writes shards, which is kept with its unfinished files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.lock import share
from pretok.base.storage import read_json, write_json
from pretok.base.units import unit_words
from pretok.shards.manifest import STATE, Manifest, has_manifest, load_manifest


def unfinished(shards: Path) -> dict[str, tuple[int, int]]:
    """Return (partitions done, partitions planned) of each source, or append (`NAME.1`), that is not sealed."""
    progress: dict[str, tuple[int, int]] = {}
    if not (folders := sorted((shards / STATE).glob("*/"))):
        return progress
    from pretok.read.source_plan import PLAN_FILE, read_plan  # these import compiled loops
    from pretok.shards.partition_record import load_records

    manifest = load_manifest(shards, unfinished=False) if has_manifest(shards) else None
    for folder in folders:
        if (manifest and folder.name in manifest.units) or (plan := read_plan(folder / PLAN_FILE)) is None:
            continue
        progress[folder.name] = len(load_records(folder, plan)), len(plan.partitions)
    return progress


def refuse_unfinished(shards: Path) -> None:
    """Raise IntegrityError with the progress if a folder has state but no manifest yet."""
    if not has_manifest(shards) and (progress := unfinished(shards)):
        done, planned = map(sum, zip(*progress.values(), strict=True))
        raise IntegrityError(
            f"{shards} is unfinished: {done} of {planned} partitions are done; run the same command again"
        )


@contextmanager
def reading(manifest: Manifest, what: str) -> Iterator[None]:
    """Keep other jobs from changing shards while a long job reads them. New shards may still be added.

    Raises MismatchError if they changed since `manifest` was read.
    """
    with share(manifest.folder, what):
        refuse_unfinished(manifest.folder)
        now = load_manifest(manifest.folder)
        if now.was(manifest.fingerprint) is None:
            raise MismatchError(
                f"{manifest.folder} has just been changed by another job: run the same command again"
            )
        yield


def incomplete(manifest: Manifest) -> list[str]:
    """Sentences that say which sources are not sealed."""
    return [
        f"source {unit_words(name)} is unfinished: {done} of {planned} partitions are done (nothing of it is sealed); "
        f"its work is kept in {manifest.folder / STATE / name}: run pretok tokenize again"
        for name, (done, planned) in unfinished(manifest.folder).items()
    ]


def keep_plan(out: Path, plan: dict[str, object]) -> None:
    """Store the plan of the unfinished shards in `out`. Raises MismatchError if another plan is stored there."""
    path = out / STATE / "plan.json"
    if not path.exists():
        write_json(path, plan)
    elif (old := read_json(path)) != plan:
        raise MismatchError(
            f"{out} holds unfinished shards of another plan ({old}; this one is {plan}): delete the folder or choose "
            "another"
        )
