"""Seal: the sealed parts of all partitions -> few files and one manifest.

Input: the plans of sources of which every partition is done, and their part records in SHARDS/.state. Output, for each
source: one validation shard, one file of rejects, one table of inputs; then manifest.json; then the state of these
sources is removed. An append to a source is sealed in the same way, with files of its own.

A manifest is true at every moment: sealing a source changes no file that a manifest lists, and replaces the manifest in
one step. If a job is killed after that, the next one removes the state of what is listed.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pretok.base.errors import MismatchError
from pretok.base.records import replace
from pretok.base.storage import atomic_open, read_json_lines
from pretok.base.tokens import token_dtype
from pretok.base.tree import root_of
from pretok.screen.removed import removed_path
from pretok.shards.contamination import benchmark_path, kept_benchmark, write_found
from pretok.shards.format import SPANS_SUFFIX, Shard
from pretok.shards.inputs import Place, SourcePlan, write_plan
from pretok.shards.ledger import ledger_path, ledger_schema
from pretok.shards.manifest import (
    SPLITS,
    UNCOUNTED,
    Compared,
    EncodedAgain,
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
from pretok.shards.parts import PartRecord, all_software, load_parts
from pretok.shards.writer import ShardWriter
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary

Parts = Sequence[tuple[int, PartRecord]]
"""Each with the number of its partition."""


class Sealed(NamedTuple):
    """A source, or an append to it, whose files are complete but not in the manifest yet."""

    counts: SourceCounts
    shards: list[Shard]
    files: list[SideFile]
    software: list[dict[str, str]]


def sealed_manifest(shards: Path) -> Manifest | None:
    """The manifest in `shards`; None if there is none or it holds no document, which binds nothing.

    Raises IntegrityError; MismatchError if something else than `pretok tokenize` made the shards.
    """
    if not has_manifest(shards) or not (manifest := load_manifest(shards)).totals.documents:
        return None
    if manifest.tokenized != tuple(manifest.sources):
        raise MismatchError(f"{shards} was not made by pretok tokenize: choose another folder")
    return manifest


def drop_finished(state: Path, manifest: Manifest) -> None:
    """Remove the state of sealed sources, and an empty state folder."""
    for folder in state.glob("*/"):
        if manifest.holds(folder.name):
            shutil.rmtree(folder)
    if state.exists() and not any(state.iterdir()):
        state.rmdir()


def seal(
    shards: Path, state: Path, plans: list[SourcePlan], config: dict[str, object], vocab: Vocabulary
) -> Manifest:
    """Seal all `plans`, of which every partition is done. Returns the new manifest.

    Raises AssertionError if records read = documents written + records rejected fails for any source.
    """
    dtype = token_dtype(vocab.size)
    manifest = sealed_manifest(shards) or Manifest(
        tokenizer=TokenizerEntry(vocab.fingerprint, vocab.size, vocab.eod_id, dtype.name, vocab.bos_id),
        totals=UNCOUNTED,
        sources={},
        shards=(),
        side_files=(),
        config=config,
        software={},
    )
    old = manifest if manifest.shards else None
    # A source without documents is sealed anew. It leaves the manifest before its files are replaced, so that a reader
    # who compares them meanwhile finds no wrong one.
    anew = {plan.name for plan in plans if not plan.append}
    if has_manifest(shards) and anew & load_manifest(shards).sources.keys():
        manifest = replace(
            manifest,
            sources={name: counts for name, counts in manifest.sources.items() if name not in anew},
            side_files=tuple(file for file in manifest.side_files if file.source not in anew),
        ).counted()
        write_manifest(shards, manifest)
    done = {plan.unit: _seal_source(shards, state / plan.unit, plan, dtype) for plan in plans}
    manifest = _joined(shards, manifest, [(plan.name, done[plan.unit]) for plan in plans])
    if old and old.fingerprint != manifest.fingerprint:
        manifest = replace(manifest, history=(*old.history, old.event))
    manifest = manifest.at(shards.absolute())
    write_manifest(shards, manifest)
    kept_benchmark(state).unlink(missing_ok=True)
    for plan in plans:
        shutil.rmtree(state / plan.unit)
    drop_finished(state, manifest)
    return manifest


def _joined(shards: Path, old: Manifest, added: list[tuple[str, Sealed]]) -> Manifest:
    """The manifest with more sources, and more of sources: new shards follow those of the same source and split."""
    counts: defaultdict[str, list[SourceCounts]] = defaultdict(list)
    for name, one in [*old.sources.items(), *((name, sealed.counts) for name, sealed in added)]:
        counts[name].append(one)
    sources = {}
    for name in sorted(counts):
        found = add_counts(counts[name])
        rejected, mismatches = (dict(sorted(table.items())) for table in (found.rejected, found.mismatches))
        sources[name] = replace(found, rejected=rejected, mismatches=mismatches)
    common = side_files(shards, None, [shards / TOKENIZER_FILE, benchmark_path(shards), removed_path(shards)])
    files = [*(file for file in old.side_files if file.source), *chain(*(one.files for _, one in added))]
    entries = [*old.shards, *chain(*(one.shards for _, one in added))]
    return replace(
        old,
        sources=sources,
        shards=tuple(sorted(entries, key=lambda shard: (shard.source, SPLITS.index(shard.split)))),
        side_files=(*common, *sorted(files, key=lambda file: file.source or "")),
        software=all_software([old.software, *chain(*(one.software for _, one in added))]),
    ).counted()


def side_files(shards: Path, source: str | None, paths: Iterable[Path]) -> tuple[SideFile, ...]:
    """Manifest entries of those of `paths` that exist, as files of `source` or of none."""
    return tuple(
        SideFile(str(path.relative_to(shards)), source, path.stat().st_size, root_of(path))
        for path in paths
        if path.exists()
    )


def _seal_source(shards: Path, state: Path, plan: SourcePlan, dtype: np.dtype[np.generic]) -> Sealed:
    """Add up the parts of a source or an append, and merge their small files."""
    parts = [(one.number, part) for one in plan.partitions for part in load_parts(state, one.name)]
    read: Counter[Place] = Counter()
    for number, part in parts:
        read.update({(number, int(piece)): count for piece, count in part.records.items()})
    # The last part of a piece says how many lines it has.
    lines = {(number, int(piece)): end for number, part in parts for piece, end in part.lines.items()}
    starts = {at: (row.file.path, before) for at, row, before in plan.sealed(read, {}, lines).placed()}

    def place(number: int, piece: int, record: int) -> tuple[str, int]:
        """The file of a record of a piece, and its line or row there, from 1."""
        file, start = starts[number, piece]
        return file, start + record + 1

    again = tuple(
        EncodedAgain(part.name, *place(number, *part.differed)) for number, part in parts if part.differed
    )
    nothing = replace(UNCOUNTED, compared=Compared(0, 0, again))
    counts = add_counts([nothing, *(part.found for _, part in parts)])
    train = [shard for _, part in parts for shard in part.shards if shard.split == "train"]
    suffix = f"{plan.append:05d}"
    val, beside = _merge_validation(
        shards / plan.name / f"{plan.name}-val-{suffix}", state, [part for _, part in parts], dtype
    )
    rejects = shards / "rejects" / f"{plan.name}-{suffix}.jsonl"
    rejected = _merge_rejects(rejects, state, parts, place)
    documents = sum(shard.documents for shard in (*train, *val))
    if counts.read != documents + rejected.total() or rejected.total() != sum(counts.rejected.values()):
        raise AssertionError(
            f"source {plan.name}: read {counts.read}, wrote {documents}, rejected {counts.rejected}, of which "
            f"{rejected.total()} are listed"
        )
    table = shards / inputs_name(plan.name, plan.append)
    write_plan(table, plan.sealed(read, rejected, lines))
    found = write_found(shards, plan.unit, (part.contaminated for _, part in parts))
    # All ledgers, then all spans, then the files that a source has one of.
    files = [*chain(*(part.side_files for _, part in parts)), *beside]
    files.sort(key=lambda file: file.path.endswith(SPANS_SUFFIX))
    files += side_files(shards, plan.name, [table, rejects, found])
    return Sealed(counts, [*train, *val], files, [part.software for _, part in parts])


def _merge_validation(
    prefix: Path, state: Path, parts: Sequence[PartRecord], dtype: np.dtype[np.generic]
) -> tuple[list[Shard], Iterable[SideFile]]:
    """The small validation shards of all parts as one, and the files beside it."""
    small = [
        state / f"{part.name}.val" for part in parts if any(shard.split == "val" for shard in part.shards)
    ]
    if not small:
        return [], ()
    with ShardWriter(prefix, dtype, ledger_schema(ledger_path(small[0]))) as writer:
        for one in small:
            writer.copy(one)
        shard, files = writer.seal(prefix.parent.name, "val")
        return [shard], files


def _merge_rejects(
    path: Path, state: Path, parts: Parts, place: Callable[[int, int, int], tuple[str, int]]
) -> Counter[Place]:
    """All rejects of a source as one file with positions in the inputs; counts by piece. No file if there are none."""
    pieces: Counter[Place] = Counter()
    if not any(part.found.rejected for _, part in parts):
        path.unlink(missing_ok=True)  # left by other settings, with which no record became a document
        return pieces
    with atomic_open(path, "w") as out:
        for number, part in parts:
            for line in read_json_lines(state / f"{part.name}.rejects.jsonl") if part.found.rejected else ():
                piece = line.pop("piece")
                pieces[number, piece] += 1
                file, position = place(number, piece, line.pop("record"))
                out.write(json.dumps({"file": file, "position": position, **line}, ensure_ascii=False) + "\n")
    return pieces
