"""Seal: the sealed parts of all partitions -> few files and one manifest.

Input: the plans and part records in SHARDS/.state. Output, per source: one validation shard with its ledger, one file
of rejects, one table of inputs; then manifest.json; then the state of finished sources is dropped.
Sources already in the manifest and not in the plans are kept as they are. What is appended to a source has files of its
own of each kind, and is sealed when all of it is done.

A manifest that stands is true at every moment. So before a file that it lists is touched, which happens when inputs
were fixed and partitions are done again, `unpublish` takes it back: into .state, without the sources concerned, where
`standing` still finds it. Adding a source or appending to one touches nothing that is listed; the manifest is then
replaced at once.
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

from pretok.base.errors import FolderInUse, MismatchError
from pretok.base.failures import Failure
from pretok.base.lock import refuse_readers
from pretok.base.records import replace
from pretok.base.storage import atomic_open, read_json_lines
from pretok.base.tokens import token_dtype
from pretok.base.tree import root_of
from pretok.screen.removed import removed_path
from pretok.shards.contamination import benchmark_path, kept_benchmark, write_found
from pretok.shards.format import SHARD_SUFFIXES, SPANS_SUFFIX
from pretok.shards.inputs import Place, SourcePlan, write_plan
from pretok.shards.ledger import ledger_path, ledger_schema
from pretok.shards.manifest import (
    FILE_NAME,
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
    software,
)
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary

DONE = ".done"
"""Ends the name of the state of a source that is sealed, until it is removed."""


def sealed_manifest(shards: Path, state: Path) -> Manifest | None:
    """What is sealed in `shards`, by its manifest or the one unpublished into `state`; None where nothing is.

    Raises IntegrityError; MismatchError for shards that something else than tokenize made.
    """
    for folder in (shards, state):
        if has_manifest(folder):
            manifest = load_manifest(folder)
            if manifest.tokenized != tuple(manifest.sources):
                raise MismatchError(f"{folder} was not made by pretok tokenize: choose another folder")
            return manifest.at(shards.absolute())
    return None


def unpublish(shards: Path, state: Path, names: set[str]) -> None:
    """Take the manifest back if it lists any source of `names`, whose files are about to change.

    What it says of the other sources goes to `state` first; the next `seal` takes it from there. FolderInUse while
    another job reads them (`unfinished.reading`), who looks for the manifest when it has said so.
    """
    old = sealed_manifest(shards, state)
    if old and has_manifest(shards) and names & old.sources.keys():
        write_manifest(state, _without(old, names))
        (shards / FILE_NAME).unlink()
        try:
            refuse_readers(shards)
        except FolderInUse:
            write_manifest(shards, old)
            (state / FILE_NAME).unlink()
            raise


def drop_finished(state: Path, manifest: Manifest | None) -> None:
    """Remove what an interrupted `seal` left of the state of sources that are sealed, and an empty state folder."""
    for folder in state.glob("*.*/"):
        source, _, append = folder.name.partition(".")
        if manifest and append.isdecimal() and int(append) <= manifest.appends(source):
            folder.rename(folder.with_name(f"{folder.name}{DONE}"))
    for folder in state.glob(f"*{DONE}"):
        shutil.rmtree(folder)
    if state.exists() and not any(state.iterdir()):
        state.rmdir()


def seal(
    shards: Path,
    state: Path,
    plans: list[SourcePlan],
    config: dict[str, object],
    vocab: Vocabulary,
    crashed: Sequence[Failure],
) -> Manifest:
    """Merge, check and describe. Returns the manifest.

    Raises AssertionError if read = written + rejected fails for any source.
    """
    old = sealed_manifest(shards, state)
    parts = {
        plan.unit: [
            (p.number, part) for p in plan.partitions for part in load_parts(state / plan.unit, p.name)
        ]
        for plan in plans
    }
    used = [part.software for held in parts.values() for _, part in held]
    before = [old.software] if old and old.totals.documents else []
    nothing = Manifest(
        tokenizer=TokenizerEntry(
            vocab.fingerprint, vocab.size, vocab.eod_id, token_dtype(vocab.size).name, vocab.bos_id
        ),
        totals=UNCOUNTED,
        sources={},
        failed=(),
        shards=(),
        side_files=(),
        config=config,
        software=all_software([*before, *used]) or software(),
    )
    common = [shards / TOKENIZER_FILE, benchmark_path(shards), removed_path(shards)]
    manifest = _together(
        replace(nothing, side_files=side_files(shards, None, common)),
        _without(old, {plan.name for plan in plans if not plan.append}) if old else nothing,
        *(_seal_source(shards, state / plan.unit, plan, parts[plan.unit], nothing) for plan in plans),
        replace(nothing, failed=tuple(crashed)),
    )
    if old:
        # An unpublished one was a state of the folder no more, or not yet.
        grown = has_manifest(shards) and old.shards and old.fingerprint != manifest.fingerprint
        manifest = manifest.remembering([*old.history, *([old.event] if grown else [])])
    manifest = manifest.at(shards.absolute())
    write_manifest(shards, manifest)
    kept_benchmark(state).unlink(missing_ok=True)
    (state / FILE_NAME).unlink(missing_ok=True)  # a unpublished one; from here on the new one stands
    for plan in plans:
        if all(failure.source != plan.name for failure in manifest.failed):
            (state / plan.unit).rename(state / f"{plan.unit}{DONE}")  # at once: half a state is no state
    drop_finished(state, None)
    return manifest


def _without(manifest: Manifest, names: set[str]) -> Manifest:
    """What a manifest says of all sources but these, and not of the files that all share."""
    left = replace(
        manifest,
        sources={name: counts for name, counts in manifest.sources.items() if name not in names},
        failed=tuple(failure for failure in manifest.failed if failure.source not in names),
        shards=tuple(shard for shard in manifest.shards if shard.source not in names),
        side_files=tuple(file for file in manifest.side_files if file.source not in (None, *names)),
    )
    return left.counted().remembering(manifest.history)


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
        failed=tuple(sorted(chain(*(one.failed for one in every)), key=lambda failure: failure.source)),
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
                    compared=compared,
                    mismatches=part.mismatches,
                )
            },
            failed=tuple(part.errors),
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
        for suffix in SHARD_SUFFIXES:
            prefix.with_suffix(suffix).unlink(missing_ok=True)  # of inputs that were fixed since
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
        path.unlink(missing_ok=True)
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
