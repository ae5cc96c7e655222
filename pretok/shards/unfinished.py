"""What of a shards folder is not sealed yet, from the plans and part records in its .state.

Input: SHARDS. Output: sentences for `status` and `verify`, so that what is incomplete never looks complete. And
the plan of a job that is no tokenization, kept where its unfinished files are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.failures import Failure
from pretok.base.lock import share
from pretok.base.storage import read_json, write_json
from pretok.shards.manifest import STATE, Manifest, has_manifest, load_manifest, unit_words


class Progress(NamedTuple):
    """How many partitions of a source are done of those that are planned, and inputs that were not read to the end."""

    done: int
    planned: int
    failed: tuple[Failure, ...]


def unfinished(shards: Path) -> dict[str, Progress]:
    """How far the work is on each source, or on `NAME.1` of what is appended, that is not sealed."""
    found: dict[str, Progress] = {}
    if not (folders := sorted((shards / STATE).glob("*/"))):
        return found
    from pretok.shards.inputs import read_plan  # what makes shards, with its compiled loops
    from pretok.shards.parts import is_complete, load_parts

    manifest = load_manifest(shards, unfinished=False) if has_manifest(shards) else None
    for folder in folders:
        if (manifest and manifest.holds(folder.name)) or (plan := read_plan(folder)) is None:
            continue
        names = [partition.name for partition in plan.partitions]
        failed = [error for name in names for part in load_parts(folder, name) for error in part.errors]
        found[folder.name] = Progress(
            sum(is_complete(folder, name) for name in names), len(names), tuple(failed)
        )
    return found


def refuse_unfinished(shards: Path) -> None:
    """IntegrityError that says how far the work is, when a folder has not got a manifest yet but its state."""
    if not has_manifest(shards) and (found := unfinished(shards)):
        done, planned = sum(one.done for one in found.values()), sum(one.planned for one in found.values())
        raise IntegrityError(
            f"{shards} is unfinished: {done} of {planned} partitions are done; run the same command again"
        )


@contextmanager
def reading(manifest: Manifest, what: str) -> Iterator[None]:
    """For a job that reads shards for long: none of them changes while the context is open. New ones may come.

    Raises MismatchError where they changed since `manifest` was read.
    """
    with share(manifest.folder, what):
        refuse_unfinished(manifest.folder)
        now = load_manifest(manifest.folder)
        if now.was(manifest.fingerprint) is None:
            raise MismatchError(
                f"{manifest.folder} has just been changed by another job: run the same command again"
            )
        yield


def incomplete(manifest: Manifest, most: int = 5) -> list[str]:
    """Sentences on what is missing from sealed shards: sources that are not sealed, and at most so many of the inputs
    that were not read to their end."""
    sentences, failed = [], []
    for name, found in unfinished(manifest.folder).items():
        sentences.append(
            f"source {unit_words(name)} is unfinished: {found.done} of {found.planned} partitions are done (nothing of "
            f"it is sealed); its work is kept in {manifest.folder / STATE / name}: run pretok tokenize again"
        )
        failed += [f"missing from source {unit_words(name)}: {f.file} ({f.error})" for f in found.failed]
    more = [f"and {len(failed) - most} more inputs"] if len(failed) > most else []
    return [*sentences, *failed[:most], *more]


def keep_plan(out: Path, plan: dict[str, object]) -> None:
    """Say in `out` what its unfinished shards belong to. Raises MismatchError where they belong to another plan."""
    path = out / STATE / "plan.json"
    if not path.exists():
        write_json(path, plan)
    elif (old := read_json(path)) != plan:
        raise MismatchError(
            f"{out} holds unfinished shards of another plan ({old}; this one is {plan}): delete the folder or choose "
            "another"
        )
