"""verify: a shards folder against its manifest.

Input: SHARDS, or WORK. Output: a list of problems, empty if all is as sealed: files missing or left over, sizes, roots,
index consistency, ids, EOD and BOS per document, totals, documents that decode and encode to themselves, and packing
indexes of the mixes beside the folder; of WORK also counts and mix.json. What is no problem but worth telling are the
`notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pretok.audit.verify_task import ShardCheck, check_shard, told
from pretok.base.console import Console
from pretok.base.errors import PretokError, UsageError
from pretok.base.execute import Engine, Report
from pretok.base.lock import is_lock, share
from pretok.base.records import to_json
from pretok.base.storage import TEMPORARY_SUFFIX, compare_checksum
from pretok.base.tasks import Step, open_step
from pretok.base.tree import compare_root
from pretok.counts.counts_file import FILE_NAME as COUNTS
from pretok.counts.counts_file import load_counts
from pretok.shards.annotations import FOLDER as ANNOTATIONS
from pretok.shards.annotations import RECORD, Annotations, outdated_parts, read_annotations, unknown_sources
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import FILE_NAME, STATE, Manifest, load_manifest, shards_of
from pretok.shards.unfinished import incomplete, unfinished
from pretok.stream.mix_file import check_sources, load_mix, parse_mix
from pretok.stream.tapes import FOLDER, SUFFIX, verify_side_file
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, load_vocab

SEED = 0
Check = tuple[Path, Callable[[Report], Iterable[str]]]
"""A file, and what finds its problems."""


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
    problems = told(_check_tokenizer(manifest))
    if problems:  # nothing can be decoded
        sample = 0
    for look in (_check_unknown, _check_totals, _check_inputs, _check_history):
        problems += told(look(manifest))
    annotations, found = _read_annotations(manifest)
    problems += found
    checks = [*_shard_checks(manifest, sample, removed), *_file_checks(manifest, annotations)]
    if manifest.folder != shards.absolute():  # it is WORK, which may hold more
        counts, mix = (manifest.folder.parent / name for name in ("counts", "mix.json"))
        checks += [(counts, partial(_check_counts, counts)), (mix, partial(_check_mix, mix, manifest.folder))]
    # By the reference engine a byte takes fifty times as long, and a token is four of them.
    step.engine.choose(sum(shard.tokens for shard in manifest.shards) * (200 if sample is None else 1))
    for _, found in step.map(run_check, checks, "file", lambda check: str(check[0]), kept=False):
        problems += found
    return manifest, sorted(set(problems))


def run_check(check: Check, report: Report) -> list[str]:
    """What a worker does with one of them."""

    def problems() -> Iterator[str]:
        yield from check[1](report)

    return told(problems())


def _shard_checks(manifest: Manifest, sample: int | None, removed: bool) -> Iterator[Check]:
    """The largest first."""
    chosen = zip(manifest.shards, _sample(manifest, sample), strict=True)
    for shard, numbers in sorted(chosen, key=lambda one: -one[0].tokens):
        task = ShardCheck(manifest.folder, shard, numbers, removed and bool(manifest.removals))
        yield shard.prefix, partial(check_shard, task)


def _file_checks(manifest: Manifest, annotations: Sequence[Annotations]) -> Iterator[Check]:
    """Every other file that has a seal: what lies beside shards, what was joined to their documents, and the side files
    of mixes."""
    ledgers = {shard.ledger_path for shard in manifest.shards}
    for beside in manifest.side_files:
        if (path := manifest.folder / beside.path) not in ledgers:
            yield path, partial(_compare, compare_root, path, beside.root)
    for one in annotations:
        for path, sealed in one.files.items():
            yield path, partial(_compare, compare_checksum, path, sealed.checksum)
    for path in sorted((manifest.folder.parent / FOLDER).glob(f"*{SUFFIX}")):
        yield path, partial(_check_side_file, path)


def _compare(
    compare: Callable[[Path, str], None],
    path: Path,
    sealed: str,
    report: Report,  # noqa: ARG001
) -> Iterable[str]:
    compare(path, sealed)
    return ()


def _check_side_file(path: Path, report: Report) -> Iterable[str]:  # noqa: ARG001
    return verify_side_file(path)


def _check_counts(counts: Path, report: Report) -> Iterable[str]:  # noqa: ARG001
    if (counts / COUNTS).exists():
        load_counts(counts).check()
    return ()


def _check_mix(mix: Path, shards: Path, report: Report) -> Iterable[str]:  # noqa: ARG001
    if mix.exists():
        check_sources(load_mix(mix), load_manifest(shards), mix)
    return ()


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


def _read_annotations(manifest: Manifest) -> tuple[list[Annotations], list[str]]:
    """All annotations that can be read; what is wrong with records, and files that are in none."""
    found, problems = [], list[str]()
    for folder in sorted((manifest.folder / ANNOTATIONS).glob("*/")):
        known: set[Path] = set()
        if (folder / RECORD).exists():
            try:
                found.append(one := read_annotations(folder))
            except PretokError as error:
                problems.append(str(error))
                continue
            problems += outdated_parts(manifest, one)
            known = {folder / RECORD, *one.files}
        problems += [
            f"{path} is not in the record of {folder}: left by a killed pretok annotate, which removes it when it runs "
            "again, or put there by hand"
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path not in known
        ]
    return found, problems


def _check_tokenizer(manifest: Manifest) -> Iterator[str]:
    path, stated = manifest.folder / TOKENIZER_FILE, manifest.tokenizer
    if not path.exists():
        yield f"{path} is missing"
        return
    found = load_vocab(path, eod=stated.eod_id)
    for name, here, there in (
        ("fingerprint", found.fingerprint, stated.fingerprint),
        ("vocabulary size", found.size, stated.vocab_size),
    ):
        if here != there:
            yield f"{path}: {name} {here}, the manifest says {there}"


def _check_history(manifest: Manifest) -> Iterator[str]:
    """What is wrong is raised."""
    for event in manifest.history:
        manifest.was(event.fingerprint)
    if manifest.materialized is not None:
        parse_mix(manifest.materialized, manifest.folder / FILE_NAME)
    yield from ()


def _check_totals(manifest: Manifest) -> Iterator[str]:
    """Counts of the sources and totals against the shards."""
    true = manifest.counted()
    for key in ("sources", "totals"):
        yield from _differences(to_json(getattr(manifest, key)), to_json(getattr(true, key)), key)


def _differences(stated: Any, true: Any, key: str) -> Iterator[str]:
    if isinstance(stated, dict) and isinstance(true, dict):
        for name in stated | true:
            yield from _differences(stated.get(name), true.get(name), f"{key}.{name}")
    elif stated != true:
        yield f"manifest: {key} is {stated}, its shards add up to {true}"


def _check_inputs(manifest: Manifest) -> Iterator[str]:
    """Read = written + rejected, of each source and as its inputs tell it."""
    for name in manifest.tokenized:  # others are made of shards, not of input files
        inputs, counts = load_inputs(manifest, name), manifest.sources[name]
        read = sum(row.read or 0 for row in inputs.rows)
        gone = sum(row.rejected or 0 for row in inputs.rows)
        rejected = sum(counts.rejected.values())
        if not (read == counts.read == counts.documents + rejected and gone == rejected):
            yield (
                f"manifest: {name} read {counts.read}, wrote {counts.documents}, rejected {rejected}; its inputs gave "
                f"{read}, of which {gone} were rejected"
            )


def _check_unknown(manifest: Manifest) -> Iterator[str]:
    """Files where only ours belong that the manifest does not know."""
    for path in _unknown(manifest)[0]:
        killed = path.suffix == TEMPORARY_SUFFIX
        why = "left by a killed process" if killed else "left over, or put there by hand"
        yield f"{path} is not in the manifest: {why}; delete it when no job is running"


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


def notes(manifest: Manifest) -> list[str]:
    """What is worth telling and no problem: unfinished sources, failed inputs, other people's files."""
    unknown = {one.name: unknown_sources(manifest, one) for one in _read_annotations(manifest)[0]}
    return [
        *incomplete(manifest),
        *(
            f"the annotations {name} know nothing of {', '.join(sources)}: run pretok annotate again"
            for name, sources in unknown.items()
            if sources
        ),
        *(f"{path} is not in the manifest: not ours" for path in _unknown(manifest)[1]),
    ]


def verify_report(manifest: Manifest, problems: Sequence[str]) -> dict[str, Any]:
    """What `pretok verify --json` prints. ok: there is no problem; notes: what is worth telling and no problem."""
    return {
        "ok": not problems,
        "problems": problems,
        "notes": notes(manifest),
        "shards": len(manifest.shards),
        "fingerprint": manifest.fingerprint,
        "root": manifest.root,
    }
