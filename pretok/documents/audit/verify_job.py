"""verify: check a shards folder against its manifest.

Input: SHARDS, or WORK. Output: a list of problems, empty if everything is as it was sealed: files missing or left over,
sizes, roots, index consistency, ids, EOD and BOS per document, totals, documents that decode and encode to themselves,
and side files of the mixes next to the folder; in WORK also counts and mix.json. `notes` are not problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pretok.base.console import Console
from pretok.base.errors import PretokError, UsageError
from pretok.base.execute import Engine, Report
from pretok.base.lock import is_lock, share
from pretok.base.records import to_json
from pretok.base.storage import TEMPORARY_SUFFIX
from pretok.base.tasks import Step, open_step
from pretok.base.tree import compare_root
from pretok.documents.audit.find import draw_documents
from pretok.documents.audit.verify_task import ShardCheck, check_shard, collect
from pretok.shards.annotations import FOLDER as ANNOTATIONS
from pretok.shards.annotations import RECORD, Annotations, outdated_parts, read_annotations, unknown_sources
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import FILE_NAME, STATE, Manifest, load_manifest, shards_of
from pretok.shards.unfinished import incomplete, unfinished
from pretok.stream.mix_file import check_sources, load_mix, parse_mix
from pretok.stream.tapes import FOLDER, SUFFIX, verify_side_file
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, load_vocab
from pretok.vocab.counts.counts_file import FILE_NAME as COUNTS
from pretok.vocab.counts.counts_file import load_counts

SEED = 0
VerifyTask = tuple[Path, ShardCheck | Callable[[], Iterable[str] | None]]
"""A file or shard, and what returns its problems or raises one."""


def run_verify(
    shards: Path, sample: int | None, engine: Engine, console: Console, *, removed: bool = False
) -> tuple[Manifest, list[str]]:
    """Check everything and return (manifest, problems).

    sample: documents that are decoded and encoded again, None: all; removed: decode all of them and compare them with
    the texts that were removed.
    """
    with share(shards_of(shards), "verify"), open_step("verify", engine, console) as step:
        return _verify(shards, sample, step, removed)


def _verify(shards: Path, sample: int | None, step: Step, removed: bool) -> tuple[Manifest, list[str]]:
    manifest = load_manifest(shards)
    if removed and manifest.materialized is not None:
        raise UsageError(
            f"{shards} holds a materialized mix without documents: look for removed texts in the shards it was made "
            "of; pretok mix --materialize refuses the folder if they changed since"
        )
    problems = collect(_check_tokenizer(manifest))
    if problems:  # nothing can be decoded
        sample = 0
    annotations, more = _read_annotations(manifest)
    problems += more
    problems += collect(_check_unknown(manifest, annotations))
    # Each collects its own problems: an error in one must not hide those of the next.
    for look in (_check_totals, _check_inputs):
        problems += collect(look(manifest))
    checks = [*_shard_checks(manifest, sample, removed), *_file_checks(manifest, annotations)]
    if manifest.folder != shards.absolute():  # it is WORK, which may hold more
        counts, mix = (manifest.folder.parent / name for name in ("counts", "mix.json"))
        if (counts / COUNTS).exists():
            checks.append((counts, partial(_check_counts, counts)))
        if mix.exists():
            checks.append((mix, partial(_check_mix, mix, manifest.folder)))
    # The reference engine takes fifty times as long for a byte, and a token is four bytes.
    step.progress.expect(manifest.totals.tokens, unit="tokens")
    step.engine.choose(sum(shard.tokens for shard in manifest.shards) * (200 if sample is None else 1))
    step.engine.prepare(hold_manifest, manifest.folder)
    for _, more in step.map(run_check, checks, "file", lambda check: str(check[0]), kept=False):
        problems += more
    return manifest, sorted(set(problems))


def hold_manifest(folder: Path, _: Report) -> None:
    """Load the manifest that `check_shard` asks for: for 100,000 shards that takes half a second and 85 MB."""
    load_manifest(folder)


def run_check(check: VerifyTask, report: Report) -> list[str]:
    """Do one of the checks, in a worker."""
    _, look = check

    def problems() -> Iterator[str]:
        yield from (check_shard(look, report) if isinstance(look, ShardCheck) else look()) or ()

    return collect(problems())


def _shard_checks(manifest: Manifest, sample: int | None, removed: bool) -> Iterator[VerifyTask]:
    """Yield the checks of all shards, the largest first.

    The documents to encode again are `sample` of all, evenly at random with a fixed seed.
    """
    counts = [shard.documents for shard in manifest.shards]
    rows = draw_documents(counts, min(sample or 0, sum(counts)), SEED)
    chosen = [
        (shard, None if sample is None else tuple(drawn))
        for shard, drawn in zip(manifest.shards, rows, strict=True)
    ]
    for shard, numbers in sorted(chosen, key=lambda entry: -entry[0].tokens):
        yield shard.prefix, ShardCheck(manifest.folder, shard, numbers, removed and bool(manifest.removals))


def _file_checks(manifest: Manifest, annotations: Sequence[Annotations]) -> Iterator[VerifyTask]:
    """Yield the checks of every other sealed file: side files of shards, joined columns, and side files of mixes."""
    ledgers = {shard.ledger_path for shard in manifest.shards}
    for beside in manifest.side_files:
        if (path := manifest.folder / beside.path) not in ledgers:
            yield path, partial(compare_root, path, beside.root)
    for joined in annotations:
        for path, root in joined.roots.items():
            yield path, partial(compare_root, path, root)
    for path in sorted((manifest.folder.parent / FOLDER).glob(f"*{SUFFIX}")):
        yield path, partial(verify_side_file, path)


def _check_counts(counts: Path) -> None:
    load_counts(counts).check()


def _check_mix(mix: Path, shards: Path) -> None:
    check_sources(load_mix(mix), load_manifest(shards), mix)


def _read_annotations(manifest: Manifest) -> tuple[list[Annotations], list[str]]:
    """Return all annotations that can be read, and what is wrong with records."""
    annotations, problems = [], list[str]()
    for record in sorted((manifest.folder / ANNOTATIONS).glob(f"*/{RECORD}")):
        try:
            annotations.append(joined := read_annotations(record.parent))
            problems += outdated_parts(manifest, joined)
        except PretokError as error:
            problems.append(str(error))
    return annotations, problems


def _check_tokenizer(manifest: Manifest) -> Iterator[str]:
    path, stated = manifest.folder / TOKENIZER_FILE, manifest.tokenizer
    if not path.exists():
        yield f"{path} is missing"
        return
    vocab = load_vocab(path, eod=stated.eod_id)
    if (vocab.fingerprint, vocab.size) != (stated.fingerprint, stated.vocab_size):
        yield (
            f"{path}: fingerprint {vocab.fingerprint}, {vocab.size} entries; the manifest says {stated.fingerprint}, "
            f"{stated.vocab_size}"
        )


def _check_totals(manifest: Manifest) -> Iterator[str]:
    """Compare the counts of sources and totals with the shards, and check the history and the mix of the manifest."""
    true = manifest.counted()
    compared = [(name, counts, true.sources[name]) for name, counts in manifest.sources.items()]
    for name, stated, summed in [("totals", manifest.totals, true.totals), *compared]:
        if stated != summed:
            yield f"manifest: {name} is {to_json(stated)}, its shards add up to {to_json(summed)}"
    list(manifest.versions())
    if manifest.materialized is not None:
        parse_mix(manifest.materialized, manifest.folder / FILE_NAME)


def _check_inputs(manifest: Manifest) -> Iterator[str]:
    """Check that read = written + rejected for each source, and that its inputs add up to the same."""
    for name in manifest.tokenized:  # others are made of shards, not of input files
        files, counts = load_inputs(manifest, name).files(), manifest.sources[name]
        read, gone = sum(file[2] for file in files), sum(file[3] for file in files)
        rejected = sum(counts.rejected.values())
        if not (read == counts.read == counts.documents + rejected and gone == rejected):
            yield (
                f"manifest: {name} read {counts.read}, wrote {counts.documents}, rejected {rejected}; its inputs gave "
                f"{read}, of which {gone} were rejected"
            )


def _check_unknown(manifest: Manifest, annotations: Sequence[Annotations]) -> Iterator[str]:
    """Yield the files in our folders that nothing names."""
    for path in _unknown(manifest, annotations)[0]:
        why = "left over, or put there by hand"
        if path.suffix == TEMPORARY_SUFFIX:
            why = "left by a killed process"
        yield f"{path} is not in the manifest: {why}; delete it when no job is running"


def _unknown(manifest: Manifest, annotations: Sequence[Annotations]) -> tuple[list[Path], list[Path]]:
    """Return the files below the folder that no record names: those in our folders, and those of others.

    The files of an unfinished source are in neither, see `incomplete`. The top of the folder may hold what people put
    there, such as a mix.
    """
    folder = manifest.folder
    known = {folder / FILE_NAME, *manifest.roots, *(shard.nodes_path for shard in manifest.shards)}
    known |= {path for joined in annotations for path in (joined.folder / RECORD, *joined.roots)}
    written = (unit.partition(".")[0] for unit in unfinished(folder))
    open_folders = {folder / name for name in (STATE, *written)}
    # If a record cannot be read, nobody knows which files of its folder belong there.
    records = {path.parent for path in (folder / ANNOTATIONS).glob(f"*/{RECORD}")}
    open_folders |= records - {joined.folder for joined in annotations}
    ours: list[Path] = []
    others: list[Path] = []
    for path in sorted(folder.rglob("*")):
        # Locks come and go while jobs run, and an open folder belongs to the job that fills it.
        if path in known or path.is_dir() or is_lock(path) or open_folders & set(path.parents):
            continue
        (ours if path.parent != folder or path.suffix == TEMPORARY_SUFFIX else others).append(path)
    return ours, others


def notes(manifest: Manifest) -> list[str]:
    """Return the notes: unfinished sources, failed inputs, files of other people."""
    annotations, _ = _read_annotations(manifest)
    return [
        *incomplete(manifest),
        *(
            f"the annotations {joined.name} do not cover {', '.join(unknown)}: run pretok annotate again"
            for joined in annotations
            if (unknown := unknown_sources(manifest, joined))
        ),
        *(f"{path} is not in the manifest: not ours" for path in _unknown(manifest, annotations)[1]),
    ]


def verify_report(manifest: Manifest, problems: Sequence[str]) -> dict[str, Any]:
    """Return what `pretok verify --json` prints. ok: there is no problem."""
    return {
        "ok": not problems,
        "problems": problems,
        "notes": notes(manifest),
        "shards": len(manifest.shards),
        "fingerprint": manifest.fingerprint,
        "root": manifest.root,
    }
