"""Seal: the shards and records of all partitions -> few files and one manifest.

Input: the plans of sources of which every partition is done, and their records in SHARDS/.state. Output, for each
source: one validation shard, one file of rejects, one table of inputs; then manifest.json; then the state of these
sources is removed. An append to a source is sealed in the same way, with files of its own.

The manifest is true at every moment: sealing a source changes no file that it lists, and replaces it in one step. If a
job is killed after that, the next one removes the state of the sources that are listed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import numpy as np

from pretok.base.errors import MismatchError
from pretok.base.records import replace
from pretok.base.tree import root_of
from pretok.read.rejects import DAMAGED_FILE
from pretok.read.rejects_file import merge_rejects
from pretok.read.source_plan import SourcePlan, write_plan
from pretok.screen.removed import removed_path
from pretok.shards.contamination import benchmark_path, kept_benchmark, write_found
from pretok.shards.ledger import ledger_path, ledger_schema
from pretok.shards.manifest import (
    SPLITS,
    UNCOUNTED,
    Manifest,
    SideFile,
    SourceCounts,
    TokenizerEntry,
    add_counts,
    has_manifest,
    inputs_name,
    load_manifest,
    write_manifest,
)
from pretok.shards.partition_record import PartitionRecord, all_software, software
from pretok.shards.shard_file import SPANS_SUFFIX, Shard
from pretok.shards.writer import ShardWriter
from pretok.tokenizer.vocabulary import TOKENIZER_FILE

DonePlan = tuple[SourcePlan, Mapping[int, PartitionRecord]]
"""A plan, and the records of all its partitions, each of which is done."""


def sealed_manifest(shards: Path) -> Manifest | None:
    """Return the manifest in `shards`, or None.

    Raises IntegrityError; MismatchError if something else than `pretok tokenize` made the shards.
    """
    if not has_manifest(shards):
        return None
    manifest = load_manifest(shards)
    if manifest.tokenized != tuple(manifest.sources):
        raise MismatchError(f"{shards} was not made by pretok tokenize: choose another folder")
    return manifest


def drop_finished(state: Path, manifest: Manifest) -> None:
    """Remove the state of sealed sources, and an empty state folder."""
    for folder in state.glob("*/"):
        if folder.name in manifest.units:
            shutil.rmtree(folder)
    if state.exists() and not any(state.iterdir()):
        state.rmdir()


def seal(
    shards: Path, state: Path, plans: list[DonePlan], config: dict[str, object], tokenizer: TokenizerEntry
) -> Manifest:
    """Seal all `plans`. Returns the new manifest.

    Raises AssertionError if records read = documents written + records rejected fails for any source.
    """
    dtype = np.dtype(tokenizer.dtype)
    old = sealed_manifest(shards)
    manifest = old or Manifest(
        tokenizer=tokenizer,
        totals=UNCOUNTED,
        sources={},
        shards=(),
        side_files=(),
        config=config,
        software={},
    )
    sources, entries = dict(manifest.sources), [*manifest.shards]
    files = [file for file in manifest.side_files if file.source]
    for plan, records in plans:
        # No file that the manifest lists is written here, as an append has files of its own. A kill before
        # `write_manifest` leaves files that count for nothing, and the next run makes them again from the
        # state, which is still there.
        new, new_shards, new_files = _seal_source(shards, state / plan.unit, plan, records, dtype)
        counts = add_counts([sources.get(plan.name, UNCOUNTED), new])
        tables = {
            name: dict(sorted(getattr(counts, name).items()))
            for name in ("rejected", "mismatches", "remarks")
        }
        sources[plan.name] = replace(counts, **tables)
        entries += new_shards
        files += new_files
    common = side_files(shards, None, [shards / TOKENIZER_FILE, benchmark_path(shards), removed_path(shards)])
    manifest = replace(
        manifest,
        sources=dict(sorted(sources.items())),
        # Sorting keeps the order of equal ones: new shards follow those of the same source and split.
        shards=tuple(sorted(entries, key=lambda shard: (shard.source, SPLITS.index(shard.split)))),
        side_files=(*common, *sorted(files, key=lambda file: file.source or "")),
        software=all_software([manifest.software, software()]),
    )
    manifest = manifest.counted().at(shards.absolute())
    if old and old.fingerprint != manifest.fingerprint:  # an append without documents changes nothing
        manifest = replace(manifest, history=(*old.history, old.event()))
    # What goes is in neither manifest, as the new one lists all that the old one did.
    _remove_unlisted(manifest, {plan.name for plan, _ in plans})
    write_manifest(shards, manifest)
    # The sources are sealed. A kill from here on leaves state of theirs, which the next run removes
    # (`drop_finished`). Where other sources are not done, the next run writes the benchmark again.
    kept_benchmark(state).unlink(missing_ok=True)
    for plan, _ in plans:
        shutil.rmtree(state / plan.unit)
    drop_finished(state, manifest)
    return manifest


def _remove_unlisted(manifest: Manifest, names: Iterable[str]) -> None:
    """Remove shards of sources that were begun with other inputs or settings and that no partition wrote again."""
    # The manifest has no roots of `.nodes`, which follow from the tokens.
    listed = {*manifest.roots, *(shard.nodes_path for shard in manifest.shards)}
    for name in names:
        for path in (manifest.folder / name).glob(f"{name}-*"):
            if path not in listed:
                path.unlink()


def side_files(shards: Path, source: str | None, paths: Iterable[Path]) -> tuple[SideFile, ...]:
    """Manifest entries of those of `paths` that exist, as files of `source` or of none."""
    return tuple(
        SideFile(str(path.relative_to(shards)), source, path.stat().st_size, root_of(path))
        for path in paths
        if path.exists()
    )


def found_in(plan: SourcePlan, records: Mapping[int, PartitionRecord]) -> SourceCounts:
    """Return what was read and rejected of a plan; a damaged file that was left out counts as a record."""
    left_out = plan.left_out
    rejected = {DAMAGED_FILE: len(left_out)} if left_out else {}
    whole = replace(UNCOUNTED, read=len(left_out), rejected=rejected, left_out=left_out)
    return add_counts([whole, *(record.found for record in records.values())])


def _seal_source(
    shards: Path,
    state: Path,
    plan: SourcePlan,
    records: Mapping[int, PartitionRecord],
    dtype: np.dtype[np.generic],
) -> tuple[SourceCounts, list[Shard], list[SideFile]]:
    """Add up the records of a source or an append, and merge the small files of its partitions.

    Returns what the manifest lists.
    """
    sealed = plan.sealed({number: record.pieces for number, record in records.items()})
    counts = found_in(plan, records)
    suffix = f"{plan.append:05d}"
    val_prefix = shards / plan.name / f"{plan.name}-val-{suffix}"
    val, val_files = _merge_validation(val_prefix, state, plan, records, dtype)
    rejects = shards / "rejects" / f"{plan.name}-{suffix}.jsonl"
    rejected = merge_rejects(rejects, state, sealed)
    entries = [
        *(shard for record in records.values() for shard in record.shards if shard.split == "train"),
        *val,
    ]
    documents = sum(shard.documents for shard in entries)
    # The promise that nothing is lost, checked where the counts of readers, writers and rejects meet.
    if counts.read != documents + rejected or rejected != sum(counts.rejected.values()):
        raise AssertionError(
            f"source {plan.name}: read {counts.read}, wrote {documents}, rejected {counts.rejected}, of which "
            f"{rejected} are listed"
        )
    table = shards / inputs_name(plan.name, plan.append)
    write_plan(table, sealed)
    found = write_found(shards, plan.unit, (record.contaminated for record in records.values()))
    # All ledgers, then all spans, then the files that a source has one of.
    files = [*chain(*(record.side_files for record in records.values())), *val_files]
    files.sort(key=lambda file: file.path.endswith(SPANS_SUFFIX))
    files += side_files(shards, plan.name, [table, rejects, found])
    return counts, entries, files


def _merge_validation(
    prefix: Path,
    state: Path,
    plan: SourcePlan,
    records: Mapping[int, PartitionRecord],
    dtype: np.dtype[np.generic],
) -> tuple[list[Shard], Iterable[SideFile]]:
    """Join the small validation shards of all partitions, and the files next to them."""
    small = [
        state / f"{partition.name}.val"
        for partition in plan.partitions
        if any(shard.split == "val" for shard in records[partition.number].shards)
    ]
    if not small:
        return [], ()
    with ShardWriter(prefix, dtype, ledger_schema(ledger_path(small[0]))) as writer:
        for part in small:
            # In the order of the partitions, which is that of the token stream.
            writer.copy(part)
        shard, files = writer.seal(plan.name, "val")
        return [shard], files
