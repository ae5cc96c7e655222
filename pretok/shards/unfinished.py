"""What of a shards folder is not sealed yet, from the plans and part records in its .state.

Input: SHARDS. Output: sentences for `status` and `verify`, so that what is incomplete never looks complete. And
the plan of a job that is no tokenization, kept where its unfinished files are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.lock import share
from pretok.base.storage import read_json, write_json
from pretok.shards.manifest import STATE, Manifest, has_manifest, load_manifest, unit_words


def unfinished(shards: Path) -> dict[str, tuple[int, int]]:
    """{source, or `NAME.1` of what is appended: (partitions done, partitions planned)} of what is not sealed."""
    found: dict[str, tuple[int, int]] = {}
    if not (folders := sorted((shards / STATE).glob("*/"))):
        return found
    from pretok.shards.inputs import read_plan  # what makes shards, with its compiled loops
    from pretok.shards.parts import is_complete
    from pretok.shards.seal import DONE

    for folder in folders:
        if folder.name.endswith(DONE) or (planned := read_plan(folder)) is None:
            continue
        partitions = planned.partitions
        found[folder.name] = sum(is_complete(folder, p.name) for p in partitions), len(partitions)
    return found


def refuse_unfinished(shards: Path) -> None:
    """IntegrityError that says how far the work is, when a folder has not got a manifest yet but its state."""
    if not has_manifest(shards) and (found := unfinished(shards)):
        done, planned = (sum(counts) for counts in zip(*found.values(), strict=True))
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


def incomplete(manifest: Manifest) -> list[str]:
    """Sentences on what is missing from sealed shards: sources not sealed, inputs not read to their end."""
    sentences = []
    for name, (done, planned) in unfinished(manifest.folder).items():
        known = (
            " (what it has so far is sealed)" if name in manifest.sources else " (nothing of it is sealed)"
        )
        sentences.append(
            f"source {unit_words(name)} is unfinished: {done} of {planned} partitions are done{known}; its work is "
            f"kept in {manifest.folder / STATE / name}: run pretok tokenize again"
        )
    return sentences + failures(manifest)


def failures(manifest: Manifest, most: int = 5) -> list[str]:
    """A sentence for each of the first `most` inputs that the shards lack, and how many more there are."""
    failed = manifest.failed
    sentences = [f"missing from source {f.source}: {f.file} ({f.error})" for f in failed[:most]]
    if len(failed) > most:
        sentences.append(f"and {len(failed) - most} more inputs, listed under `failed` in the manifest")
    return sentences


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
