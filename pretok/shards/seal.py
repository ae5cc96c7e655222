"""Seal: the sealed parts of all partitions -> few files and one manifest.

Input: the plans of sources of which every partition is done, and their part records in SHARDS/.state. Output, per
source: one validation shard with its ledger, one file of rejects, one table of inputs; then manifest.json; then the
state of these sources is dropped. What is appended to a source is sealed in the same way, with files of its own.

A manifest that stands is true at every moment: to seal a source touches nothing that is listed, and replaces the
manifest at once. State of what is listed is left of a job that was killed, and is removed before the next begins.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import numpy as np

from pretok.base.errors import MismatchError
from pretok.base.records import replace
from pretok.base.storage import atomic_open, read_json_lines
from pretok.base.tokens import token_dtype
from pretok.base.tree import root_of
from pretok.screen.removed import removed_path
from pretok.shards.contamination import benchmark_path, kept_benchmark, write_found
from pretok.shards.format import SPANS_SUFFIX
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
from pretok.shards.parts import (
    PartRecord,
    SplitWriter,
    all_software,
    load_parts,
)
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary


def sealed_manifest(shards: Path) -> Manifest | None:
    """What is sealed in `shards`; None where nothing is, or no document, which binds nothing.

    Raises IntegrityError; MismatchError for shards that something else than tokenize made.
    """
    if not has_manifest(shards) or not (manifest := load_manifest(shards)).totals.documents:
        return None
    if manifest.tokenized != tuple(manifest.sources):
        raise MismatchError(f"{shards} was not made by pretok tokenize: choose another folder")
    return manifest


def drop_finished(state: Path, manifest: Manifest) -> None:
    """Remove the state of what is sealed, and an empty state folder."""
    for folder in state.glob("*/"):
        if manifest.holds(folder.name):
            shutil.rmtree(folder)
    if state.exists() and not any(state.iterdir()):
        state.rmdir()


def seal(
    shards: Path, state: Path, plans: list[SourcePlan], config: dict[str, object], vocab: Vocabulary
) -> Manifest:
    """Merge, check and describe what is done of all `plans`. Returns the manifest.

    Raises AssertionError if read = written + rejected fails for any source.
    """
    old = sealed_manifest(shards)
    parts = {
        plan.unit: [
            (p.number, part) for p in plan.partitions for part in load_parts(state / plan.unit, p.name)
        ]
        for plan in plans
    }
    used = [part.software for held in parts.values() for _, part in held]
    nothing = Manifest(
        tokenizer=TokenizerEntry(
            vocab.fingerprint, vocab.size, vocab.eod_id, token_dtype(vocab.size).name, vocab.bos_id
        ),
        totals=UNCOUNTED,
        sources={},
        shards=(),
        side_files=(),
        config=config,
        software=all_software([*([old.software] if old else []), *used]),
    )
    # A source that had no document is sealed anew: what stands of it goes.
    before, anew = old or nothing, {plan.name for plan in plans if not plan.append}
    before = replace(
        before,
        sources={name: counts for name, counts in before.sources.items() if name not in anew},
        side_files=tuple(file for file in before.side_files if file.source not in (None, *anew)),
    )
    common = [shards / TOKENIZER_FILE, benchmark_path(shards), removed_path(shards)]
    manifest = _together(
        replace(nothing, side_files=side_files(shards, None, common)),
        before,
        *(_seal_source(shards, state / plan.unit, plan, parts[plan.unit], nothing) for plan in plans),
    )
    if old:
        grown = [old.event] if old.fingerprint != manifest.fingerprint else []
        manifest = replace(manifest, history=(*old.history, *grown))
    manifest = manifest.at(shards.absolute())
    write_manifest(shards, manifest)
    kept_benchmark(state).unlink(missing_ok=True)
    for plan in plans:
        shutil.rmtree(state / plan.unit)
    drop_finished(state, manifest)
    return manifest


def _together(common: Manifest, *parts: Manifest) -> Manifest:
    """A manifest of all that the parts hold, in the order of the names of sources. What several have of one source
    follows in their order, each split behind its own shards; the rest is that of `common`."""
    sources: dict[str, SourceCounts] = {}
    for part in parts:
        for name, counts in part.sources.items():
            if name in sources:
                counts = add_counts([sources[name], counts])
            sources[name] = replace(
                counts,
                rejected=dict(sorted(counts.rejected.items())),
                mismatches=dict(sorted(counts.mismatches.items())),
            )
    every = (common, *parts)
    shards = chain(*(one.shards for one in every))
    return replace(
        common,
        sources=dict(sorted(sources.items())),
        shards=tuple(sorted(shards, key=lambda shard: (shard.source, SPLITS.index(shard.split)))),
        side_files=tuple(
            sorted(chain(*(one.side_files for one in every)), key=lambda file: file.source or "")
        ),
    ).counted()


def side_files(shards: Path, source: str | None, paths: Iterable[Path]) -> tuple[SideFile, ...]:
    """What the manifest says of those of `paths` that are there; they belong to `source` or to none."""
    return tuple(
        SideFile(str(path.relative_to(shards)), source, path.stat().st_size, root_of(path))
        for path in paths
        if path.exists()
    )


def _seal_source(
    shards: Path, state: Path, plan: SourcePlan, parts: Sequence[tuple[int, PartRecord]], nothing: Manifest
) -> Manifest:
    """Merge the small files of a source, or of an append; `nothing` with all that it holds. parts: each with the number
    of its partition."""
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

    def part_manifest(number: int, part: PartRecord) -> Manifest:
        again = () if part.differed is None else (EncodedAgain(part.name, *place(number, *part.differed)),)
        compared = Compared(part.compared, part.compared_bytes, again)
        return replace(
            nothing,
            sources={
                plan.name: replace(
                    UNCOUNTED,
                    read=part.read,
                    rejected=part.rejected,
                    mismatches=part.mismatches,
                    compared=compared,
                )
            },
            shards=() if part.train is None else (part.train,),
            side_files=part.side_files,
        )

    empty = replace(UNCOUNTED, compared=Compared(0, 0, ()))
    sealed = _together(
        nothing,
        replace(nothing, sources={plan.name: empty}),
        *(part_manifest(number, part) for number, part in parts),
        _merge_validation(shards, state, plan, [part for _, part in parts], nothing),
    )
    rejects = shards / "rejects" / f"{_numbered(plan.name, plan)}.jsonl"
    rejected = _merge_rejects(rejects, state, parts, place)
    counts = sealed.sources[plan.name]
    if counts.read != counts.documents + rejected.total() or rejected.total() != sum(
        counts.rejected.values()
    ):
        raise AssertionError(
            f"source {plan.name}: read {counts.read}, wrote {counts.documents}, rejected {counts.rejected}, of which "
            f"{rejected.total()} are listed"
        )
    table = shards / inputs_name(plan.name, plan.append)
    write_plan(table, plan.sealed(read, rejected, lines))
    found = write_found(shards, plan.unit, (part.contaminated for _, part in parts))
    # All ledgers, then all spans, then what the source has one of.
    files = sorted(sealed.side_files, key=lambda file: file.path.endswith(SPANS_SUFFIX))
    return replace(sealed, side_files=(*files, *side_files(shards, plan.name, [table, rejects, found])))


def _numbered(name: str, plan: SourcePlan) -> str:
    """Name of the one file of a kind that a source has, and each append of its own."""
    return f"{name}-{plan.append:05d}"


def _merge_validation(
    shards: Path, state: Path, plan: SourcePlan, parts: Sequence[PartRecord], nothing: Manifest
) -> Manifest:
    """The small validation shards of all parts as one; `nothing` with it and what is beside it."""
    prefix = shards / plan.name / _numbered(f"{plan.name}-val", plan)
    small = [state / f"{part.name}.val" for part in parts if part.val is not None]
    if not small:
        return nothing
    with ExitStack() as stack:
        schema = ledger_schema(ledger_path(small[0]))
        writer = SplitWriter(prefix, np.dtype(nothing.tokenizer.dtype), schema, stack)
        for part in small:
            writer.copy(part)
        shard, files = writer.seal(plan.name, "val")
        return replace(nothing, shards=(shard,), side_files=files)


def _merge_rejects(
    path: Path,
    state: Path,
    parts: Sequence[tuple[int, PartRecord]],
    place: Callable[[int, int, int], tuple[str, int]],
) -> Counter[Place]:
    """All rejects of a source as one file with positions in the inputs; counts by piece. No file if there are none."""
    pieces: Counter[Place] = Counter()
    if not any(part.rejected for _, part in parts):
        path.unlink(missing_ok=True)  # of other settings, by which no record became a document
        return pieces
    with atomic_open(path, "w") as out:
        for number, part in parts:
            for line in read_json_lines(state / f"{part.name}.rejects.jsonl") if part.rejected else ():
                pieces[number, line["piece"]] += 1
                file, position = place(number, line["piece"], line["record"])
                told = {
                    "file": file,
                    "position": position,
                    "reason": line["reason"],
                    "detail": line["detail"],
                }
                out.write(json.dumps(told, ensure_ascii=False) + "\n")
    return pieces
