"""verify: a shards folder against its manifest.

Input: SHARDS, or WORK. Output: a list of problems, empty if all is as sealed: files missing or left over, sizes, roots,
index consistency, ids, EOD and BOS per document, totals, documents that decode and encode to themselves, and packing
indexes of the mixes beside the folder; of WORK also counts and mix.json. What is no problem but worth telling are the
`notes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from pretok.audit.verify_annotations import JoinedFile, annotation_notes, check_records, verify_joined
from pretok.audit.verify_removed import verify_removed
from pretok.audit.verify_task import VerifyTask, verify_shard
from pretok.base.console import Console
from pretok.base.errors import IntegrityError, PretokError, UsageError
from pretok.base.execute import Engine, Report
from pretok.base.failures import Failure
from pretok.base.lock import is_lock, share
from pretok.base.records import to_json
from pretok.base.storage import TEMPORARY_SUFFIX, compare_checksum, reading
from pretok.base.tasks import Step, open_step
from pretok.base.tree import root_of
from pretok.counts.counts_file import FILE_NAME as COUNTS
from pretok.counts.counts_file import load_counts
from pretok.shards.annotations import FOLDER as ANNOTATIONS
from pretok.shards.annotations import matched_column
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import (
    APPENDED,
    FILE_NAME,
    LEDGER_SUFFIX,
    REMOVED,
    STATE,
    Manifest,
    load_manifest,
    shards_of,
)
from pretok.shards.unfinished import incomplete, unfinished
from pretok.stream.mix_file import check_sources, load_mix, parse_mix
from pretok.stream.tapes import FOLDER, SUFFIX, verify_side_file
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, load_vocab

SEED = 0


def run_verify(
    shards: Path, sample: int | None, engine: Engine, console: Console, *, removed: bool = False
) -> tuple[Manifest, list[str]]:
    """Check everything; `sample` documents are decoded and encoded again (None: all). removed: whether all are decoded
    and compared with the texts that were removed. (manifest, problems)."""
    with share(shards_of(shards), "verify"), open_step("verify", engine, console) as step:
        return _verify(shards, sample, step, removed)


def _verify(shards: Path, sample: int | None, step: Step, removed: bool) -> tuple[Manifest, list[str]]:
    manifest = load_manifest(shards)
    if removed and manifest.materialized is not None:
        raise UsageError(
            f"{shards} holds a mix in its order, in which no document is told from another: look for removed texts in "
            "the shards it was made of; pretok mix --materialize refuses the folder if they changed since"
        )
    tokenizer = _check_tokenizer(manifest)
    problems = tokenizer + _check_files(manifest) + _check_totals(manifest) + _check_plans(manifest)
    if tokenizer:  # nothing can be decoded
        sample = 0
    numbers = _sample(manifest, sample)
    ledgers = {
        manifest.folder / file.path: file.root
        for file in manifest.side_files
        if file.path.endswith(LEDGER_SUFFIX)
    }
    markers = _markers(manifest)
    tasks = [
        VerifyTask(
            shard=shard,
            ledger_root=ledgers.get(shard.ledger_path),
            tokenizer_json=manifest.folder / TOKENIZER_FILE,
            tokenizer=manifest.tokenizer,
            sample=chosen,
            documents_end=manifest.materialized is None,
            markers=markers.get(shard.source, {}),
        )
        for shard, chosen in zip(manifest.shards, numbers, strict=True)
    ]
    listed = {shard.ledger_path for shard in manifest.shards}
    problems += [f"{path} is the ledger of no shard" for path in ledgers.keys() - listed]
    tasks.sort(key=lambda task: -task.shard.tokens)
    # By the reference engine a byte takes fifty times as long, and a token is four of them.
    step.engine.choose(sum(task.shard.tokens for task in tasks) * (200 if sample is None else 1))
    for _, found in step.map(verify_shard, tasks, "shard", lambda task: str(task.shard.prefix), kept=False):
        problems += found
    annotations, found = check_records(manifest)
    joined = [
        JoinedFile(path, file, matched_column(one.name))
        for one in annotations
        for path, file in one.files.items()
    ]
    problems += found
    for _, found in step.map(verify_joined, joined, "file", lambda file: str(file.path), kept=False):
        problems += found
    if removed and manifest.removals:
        every = [(manifest.folder, shard.path) for shard in manifest.shards]
        for _, found in step.map(verify_removed, every, "shard", lambda task: task[1], kept=False):
            problems += found
    # Of the mixes beside the shards: the stream looks at a block when it reads it.
    sides = sorted((manifest.folder.parent / FOLDER).glob(f"*{SUFFIX}"))
    for _, found in step.map(verify_beside, sides, "file", str, kept=False):
        problems += found
    if manifest.folder != shards.absolute():  # it is WORK, which may hold more
        words, found = _check_work(manifest)
        problems += found
        for _, found in step.map(verify_words, words, "file", lambda file: str(file[0]), kept=False):
            problems += found
    return manifest, sorted(problems)


def _check_work(manifest: Manifest) -> tuple[list[tuple[Path, str]], list[str]]:
    """The files of the counts beside the shards, with their checksums, and what is wrong with counts and mix.json."""
    work, problems = manifest.folder.parent, list[str]()
    words: list[tuple[Path, str]] = []
    try:
        if (work / "counts" / COUNTS).exists():
            words = list(load_counts(work / "counts").checksums.items())
    except PretokError as error:
        problems.append(str(error))
    try:
        if (mix := work / "mix.json").exists():
            check_sources(load_mix(mix), manifest, mix)
    except PretokError as error:
        problems.append(str(error))
    return words, problems


def verify_words(file: tuple[Path, str], report: Report) -> list[str]:  # noqa: ARG001
    """Problems of a file of counts."""
    try:
        compare_checksum(*file)
    except IntegrityError as error:
        return [str(error)]
    return []


def verify_beside(path: Path, report: Report) -> list[str]:  # noqa: ARG001
    """Problems of a side file."""
    return verify_side_file(path)


def _sample(manifest: Manifest, sample: int | None) -> list[tuple[int, ...] | None]:
    """Which documents of each shard to look into: `sample` of all, evenly at random from a fixed seed."""
    if sample is None:
        return [None] * len(manifest.shards)
    borders = np.cumsum([0, *(shard.documents for shard in manifest.shards)])
    total = int(borders[-1])
    chosen = np.sort(np.random.default_rng(SEED).choice(total, min(sample, total), replace=False))
    return [
        tuple(int(n - a) for n in chosen[np.searchsorted(chosen, a) : np.searchsorted(chosen, b)])
        for a, b in pairwise(borders)
    ]


def _markers(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Of each source of conversations the markers that its template put."""
    found: dict[str, dict[str, int]] = {}
    for name in manifest.tokenized:
        try:
            settings = load_inputs(manifest, name).settings
        except PretokError:  # told by `_check_plans`
            continue
        found[name] = settings.get("conversation", {}).get("markers", {})
    return found


def _check_plans(manifest: Manifest) -> list[str]:
    """Whether what only other commands read can be read."""
    try:
        for name in manifest.tokenized:
            load_inputs(manifest, name)
        for number, event in enumerate(manifest.history):
            manifest.was(event.fingerprint)
            if event.kind != (REMOVED if event.removal else APPENDED):
                return [f"manifest: history[{number}] says {event.kind}, which it is not"]
        if manifest.materialized is not None:
            parse_mix(manifest.materialized, manifest.folder / FILE_NAME)
    except PretokError as error:
        return [f"manifest: {error}"]
    return []


def notes(manifest: Manifest) -> list[str]:
    """What is worth telling and no problem: unfinished sources, failed inputs, other people's files."""
    sentences = incomplete(manifest)
    sentences += annotation_notes(manifest)
    return sentences + [f"{path} is not in the manifest: not ours" for path in _unknown(manifest)[1]]


def _check_tokenizer(manifest: Manifest) -> list[str]:
    path = manifest.folder / TOKENIZER_FILE
    if not path.exists():
        return [f"{path} is missing"]
    try:
        found = load_vocab(path, eod=manifest.tokenizer.eod_id)
    except PretokError as error:
        return [str(error)]
    stated = manifest.tokenizer
    return [
        f"{path}: {name} {here}, the manifest says {there}"
        for name, here, there in (
            ("fingerprint", found.fingerprint, stated.fingerprint),
            ("vocabulary size", found.size, stated.vocab_size),
        )
        if here != there
    ]


def _check_files(manifest: Manifest) -> list[str]:
    """Side files that are not as sealed, and files where only ours belong that the manifest does not know.

    Ledgers are looked at with their shards, as they may be large.
    """
    problems = []
    for file in manifest.side_files:
        if file.path.endswith(LEDGER_SUFFIX):
            continue
        path = manifest.folder / file.path
        try:
            with reading(path):
                found = root_of(path)
        except IntegrityError as error:
            problems.append(str(error))
            continue
        if found != file.root or path.stat().st_size != file.file_bytes:
            problems.append(f"{path}: root {found}, the manifest says {file.root}")
    for path in _unknown(manifest)[0]:
        why = (
            "left by a killed process"
            if path.suffix == TEMPORARY_SUFFIX
            else "left over, or put there by hand"
        )
        problems.append(f"{path} is not in the manifest: {why}; delete it when no job is running")
    return problems


def _unknown(manifest: Manifest) -> tuple[list[Path], list[Path]]:
    """Files below the folder that the manifest does not know: those in the way, and those of others.

    What a source that is not sealed has written is in neither, see `incomplete`, nor annotations, which have records.
    The top of the folder may hold what people put there, such as a mix.
    """
    folder = manifest.folder
    known = {folder / FILE_NAME, *manifest.roots, *(shard.nodes_path for shard in manifest.shards)}
    written = (unit.partition(".")[0] for unit in unfinished(folder))
    open_folders = {folder / name for name in (STATE, ANNOTATIONS, *written)}
    ours: list[Path] = []
    others: list[Path] = []
    for path in sorted(folder.rglob("*")):
        if path in known or path.is_dir() or is_lock(path) or open_folders & set(path.parents):
            continue
        in_the_way = path.parent != folder or path.suffix == TEMPORARY_SUFFIX
        (ours if in_the_way else others).append(path)
    return ours, others


def _check_totals(manifest: Manifest) -> list[str]:
    """Counts of the sources and totals against the shards, and read = written + rejected for each file and source."""
    problems = []
    true_counts = manifest.counted()
    for name, counts in manifest.sources.items():
        found = true_counts.sources[name]
        for part, stated, true in (
            ("in all", counts, found), ("train", counts.train, found.train), ("val", counts.val, found.val)
        ):  # fmt: skip
            if stated != true:
                problems.append(
                    f"manifest: {name} {part} says {to_json(stated)}, its shards add up to {to_json(true)}"
                )
        if name in manifest.tokenized:  # else made of shards, not of input files
            problems += _check_inputs(manifest, name)
    totals = to_json(true_counts.totals)
    problems += [
        f"manifest: the total of {key} is {stated}, not the sum over the sources, {totals[key]}"
        for key, stated in to_json(manifest.totals).items()
        if stated != totals[key]
    ]
    return problems


def _check_inputs(manifest: Manifest, source: str) -> list[str]:
    """What the inputs of a source gave against what it holds."""
    try:
        inputs = load_inputs(manifest, source)
    except PretokError:  # told by `_check_files`, or by `_check_plans`
        return []
    counts = manifest.sources[source]
    read = sum(row.read or 0 for row in inputs.rows)
    gone = sum(row.rejected or 0 for row in inputs.rows)
    rejected = sum(counts.rejected.values())
    if read == counts.read == counts.documents + rejected and gone == rejected:
        return []
    return [
        f"manifest: {source} read {counts.read}, wrote {counts.documents}, rejected {rejected}; its inputs gave "
        f"{read}, of which {gone} were rejected"
    ]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `pretok verify --json` prints. ok: there is no problem; notes: what is worth telling and no problem."""

    ok: bool
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    shards: int
    failed: tuple[Failure, ...]
    fingerprint: str
    root: str


def verify_report(manifest: Manifest, problems: Sequence[str]) -> VerifyReport:
    """What was found, and what else there is to tell."""
    return VerifyReport(
        ok=not problems,
        problems=tuple(problems),
        notes=tuple(notes(manifest)),
        shards=len(manifest.shards),
        failed=manifest.failed,
        fingerprint=manifest.fingerprint,
        root=manifest.root,
    )
