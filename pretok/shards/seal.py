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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretok.base.errors import FolderInUse, MismatchError
from pretok.base.failures import Failure
from pretok.base.lock import refuse_readers
from pretok.base.records import replace
from pretok.base.storage import atomic_open, read_json_lines
from pretok.base.tokens import token_dtype
from pretok.base.tree import root_of
from pretok.screen.removed import removed_path
from pretok.shards.contamination import benchmark_path, kept_benchmark, write_found
from pretok.shards.inputs import SourcePlan, inputs_path, piece_starts, sum_pieces, write_inputs
from pretok.shards.ledger import ledger_path, ledger_schema
from pretok.shards.manifest import (
    FILE_NAME,
    SHARD_SUFFIXES,
    SPANS_SUFFIX,
    SPLITS,
    Compared,
    EncodedAgain,
    Manifest,
    MismatchEntry,
    Shard,
    SideFile,
    SourceCounts,
    TokenizerEntry,
    count_source,
    has_manifest,
    load_manifest,
    sum_sources,
    write_manifest,
)
from pretok.shards.parts import (
    PartRecord,
    SealedSplit,
    SplitWriter,
    all_software,
    load_parts,
    software,
)
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary

DONE = ".done"
"""Ends the name of the state of a source that is sealed, until it is removed."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What a manifest says of one source."""

    counts: SourceCounts
    failed: tuple[Failure, ...]
    shards: tuple[Shard, ...]
    side_files: tuple[SideFile, ...]
    mismatches: tuple[MismatchEntry, ...]


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
        kept = {name: _of_source(old, name) for name in old.sources if name not in names}
        write_manifest(state, _assemble(old, kept, ()))
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
    sources = {name: _of_source(old, name) for name in old.sources} if old else {}
    for plan in plans:
        part = _seal_source(shards, state / plan.unit, plan, vocab)
        sources[plan.name] = _appended(sources[plan.name], part) if plan.append else part
    for failure in crashed:
        source = sources[failure.source]
        sources[failure.source] = replace(source, failed=(*source.failed, failure))
    dtype = token_dtype(vocab.size).name
    tokenizer = TokenizerEntry(vocab.fingerprint, vocab.size, vocab.eod_id, dtype, vocab.bos_id)
    parts = (
        part for plan in plans for p in plan.partitions for part in load_parts(state / plan.unit, p.name)
    )
    before = [old.software] if old and old.totals.documents else []
    used = all_software([*before, *(part.software for part in parts)]) or software()
    nothing = Manifest(tokenizer, sum_sources(()), {}, (), (), (), config, used)
    common = side_files(shards, None, [shards / TOKENIZER_FILE, benchmark_path(shards), removed_path(shards)])
    manifest = _assemble(nothing, sources, common)
    if old:
        # An unpublished one was a state of the folder no more, or not yet.
        grown = has_manifest(shards) and old.shards and old.fingerprint != manifest.fingerprint
        manifest = manifest.remembering([*old.history, *([old.event] if grown else [])])
    manifest = manifest.at(shards.absolute())
    write_manifest(shards, manifest)
    kept_benchmark(state).unlink(missing_ok=True)
    removed_path(state).unlink(missing_ok=True)
    (state / FILE_NAME).unlink(missing_ok=True)  # a unpublished one; from here on the new one stands
    for plan in plans:
        if not sources[plan.name].failed:
            (state / plan.unit).rename(state / f"{plan.unit}{DONE}")  # at once: half a state is no state
    drop_finished(state, None)
    return manifest


def _of_source(manifest: Manifest, name: str) -> _Source:
    """What a manifest says of one source."""
    return _Source(
        counts=manifest.sources[name],
        failed=tuple(failure for failure in manifest.failed if failure.source == name),
        shards=tuple(shard for shard in manifest.shards if shard.source == name),
        side_files=tuple(file for file in manifest.side_files if file.source == name),
        mismatches=(manifest.mismatches or {}).get(name, ()),
    )


def _appended(old: _Source, more: _Source) -> _Source:
    """A source with what was appended to it; each split goes on behind its own shards."""
    both = sum_sources([old.counts, more.counts])
    shards = sorted((*old.shards, *more.shards), key=lambda shard: SPLITS.index(shard.split))
    mismatches: dict[str, MismatchEntry] = {}
    for entry in (*old.mismatches, *more.mismatches):
        first = mismatches.get(entry.column, replace(entry, count=0))
        mismatches[entry.column] = replace(first, count=first.count + entry.count)
    return _Source(
        counts=replace(
            count_source(shards, both.read, dict(sorted(both.rejected.items()))), renamed=old.counts.renamed
        ),
        failed=(*old.failed, *more.failed),
        shards=tuple(shards),
        side_files=(*old.side_files, *more.side_files),
        mismatches=tuple(mismatches[name] for name in sorted(mismatches)),
    )


def _assemble(common: Manifest, sources: dict[str, _Source], side_files: Iterable[SideFile]) -> Manifest:
    """A manifest of `sources`, in the order of their names; the rest is that of `common`. side_files: of no source."""
    ordered = {name: sources[name] for name in sorted(sources)}
    made = replace(
        common,
        totals=sum_sources(source.counts for source in ordered.values()),
        sources={name: source.counts for name, source in ordered.items()},
        failed=tuple(failure for source in ordered.values() for failure in source.failed),
        shards=tuple(shard for source in ordered.values() for shard in source.shards),
        side_files=(*side_files, *(file for source in ordered.values() for file in source.side_files)),
        mismatches={name: source.mismatches for name, source in ordered.items() if source.mismatches} or None,
    )
    return made.remembering(common.history)


def side_files(shards: Path, source: str | None, paths: Iterable[Path]) -> tuple[SideFile, ...]:
    """What the manifest says of those of `paths` that are there; they belong to `source` or to none."""
    return tuple(
        SideFile(str(path.relative_to(shards)), source, path.stat().st_size, root_of(path))
        for path in paths
        if path.exists()
    )


def _seal_source(shards: Path, state: Path, plan: SourcePlan, vocab: Vocabulary) -> _Source:
    """Merge the small files of a source and describe it for the manifest."""
    parts = [(p.number, part) for p in plan.partitions for part in load_parts(state, p.name)]
    sealed = [part.train for _, part in parts if part.train is not None]
    sealed += _merge_validation(shards, state, plan, [part for _, part in parts], vocab)
    entries = tuple(one.shard for one in sealed)
    files = [file for one in sealed for file in one.side_files]
    read = sum_pieces((number, part.records) for number, part in parts)
    told = any(part.rejected or part.mismatches or part.differed for _, part in parts)
    # The last part of a piece says how many lines it has.
    lines = {(number, int(piece)): end for number, part in parts for piece, end in part.lines.items()}
    starts = piece_starts(plan, lines) if told else {}
    rejects = shards / "rejects" / f"{_numbered(plan.name, plan)}.jsonl"
    reasons, rejected = _merge_rejects(rejects, state, parts, starts)
    table = inputs_path(shards, plan.name, plan.append)
    write_inputs(table, plan, read, rejected, lines)
    found = write_found(shards, plan.unit, (part.contaminated for _, part in parts))
    counts = replace(
        count_source(entries, read.total(), reasons),
        compared=_compared(parts, starts),
        renamed={column.field: column.name for column in plan.kept if column.renamed} or None,
    )
    if counts.read != counts.documents + sum(reasons.values()):
        raise AssertionError(
            f"source {plan.name}: read {counts.read}, wrote {counts.documents}, rejected {reasons}"
        )
    return _Source(
        counts=counts,
        failed=tuple(error for _, part in parts for error in part.errors),
        shards=entries,
        side_files=(
            *sorted(files, key=lambda file: file.path.endswith(SPANS_SUFFIX)),  # all ledgers, then all spans
            *side_files(shards, plan.name, [table, rejects, found]),
        ),
        mismatches=_sum_mismatches(parts, starts),
    )


def _compared(
    parts: Sequence[tuple[int, PartRecord]], starts: dict[tuple[int, int], tuple[str, int]]
) -> Compared:
    """What `tokenizers` encoded again of all parts."""
    again = []
    for number, part in parts:
        if part.differed is not None:
            file, start = starts[number, part.differed.piece]
            again.append(EncodedAgain(part.name, file, start + part.differed.record + 1))
    documents = sum(part.compared for _, part in parts)
    return Compared(documents, sum(part.compared_bytes for _, part in parts), tuple(again))


def _sum_mismatches(
    parts: Sequence[tuple[int, PartRecord]], starts: dict[tuple[int, int], tuple[str, int]]
) -> tuple[MismatchEntry, ...]:
    """One entry a column, of all parts, with the first of the source."""
    entries: dict[str, MismatchEntry] = {}
    for number, part in parts:
        for piece, found in part.mismatches:
            file, start = starts[number, piece]
            entry = MismatchEntry(found.column, 0, file, start + found.record + 1, found.value)
            entry = entries.get(found.column, entry)
            entries[found.column] = replace(entry, count=entry.count + found.count)
    return tuple(entries[name] for name in sorted(entries))


def _numbered(name: str, plan: SourcePlan) -> str:
    """Name of the one file of a kind that a source has, and each append of its own."""
    return f"{name}-{plan.append:05d}"


def _merge_validation(
    shards: Path, state: Path, plan: SourcePlan, parts: Sequence[PartRecord], vocab: Vocabulary
) -> list[SealedSplit]:
    """The small validation shards and ledgers of all parts as one; none where no document went there."""
    prefix = shards / plan.name / _numbered(f"{plan.name}-val", plan)
    small = [state / f"{part.name}.val" for part in parts if part.val is not None]
    if not small:
        for suffix in SHARD_SUFFIXES:
            prefix.with_suffix(suffix).unlink(missing_ok=True)  # of inputs that were fixed since
        return []
    with ExitStack() as stack:
        schema = ledger_schema(ledger_path(small[0]))
        writer = SplitWriter(prefix, token_dtype(vocab.size), schema, stack)
        for part in small:
            writer.copy(part)
        return [writer.seal(plan.name, "val")]


def _merge_rejects(
    path: Path,
    state: Path,
    parts: Sequence[tuple[int, PartRecord]],
    starts: dict[tuple[int, int], tuple[str, int]],
) -> tuple[dict[str, int], Counter[tuple[int, int]]]:
    """All rejects of a source as one file with positions in the inputs; counts by reason and by piece. No file if there
    are none."""
    reasons: Counter[str] = Counter()
    pieces: Counter[tuple[int, int]] = Counter()
    if not any(part.rejected for _, part in parts):
        path.unlink(missing_ok=True)
        return {}, pieces
    with atomic_open(path, "w") as file:
        for piece, line in _located_rejects(state, parts, starts):
            reasons[line["reason"]] += 1
            pieces[piece] += 1
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return dict(sorted(reasons.items())), pieces


def _located_rejects(
    state: Path, parts: Sequence[tuple[int, PartRecord]], starts: dict[tuple[int, int], tuple[str, int]]
) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """The piece of each reject, and the reject with its file and position: the line or row of the file, from 1."""
    for number, part in parts:
        if not part.rejected:
            continue
        for line in read_json_lines(state / f"{part.name}.rejects.jsonl"):
            piece = (number, line["piece"])
            path, start = starts[piece]
            position = start + line["record"] + 1
            yield (
                piece,
                {"file": path, "position": position, "reason": line["reason"], "detail": line["detail"]},
            )
