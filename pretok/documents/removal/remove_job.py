"""remove: overwrite documents in finished shards at equal length, so that everything else stays in place.

Input: SHARDS, which documents, and why. Output: the same folder, in which

    .bin             EOD replaces each of their tokens, BOS too, so that none is a target (`stream`)
    .docs.parquet    their rows keep file, start, record, tokens, bytes and hash, and say when and why; the rest is null
    .nodes           has the new tree; only the MiBs of the `.bin` that change are read
    annotations      joined columns of these documents are null; all annotations are bound to the new ledgers
    manifest         counts what was removed, and its history says what the folder was before
    removed.parquet  has the hashes of their texts, which `tokenize` rejects

`.idx`, spans, packing indexes and classes stay, as no length changes.

All or nothing: new files are first written into SHARDS/.removal, then a log of everything that is to be done. Once the
log is there, readers refuse the folder (`load_manifest`), and the next removal does what the log says: overwrite
tokens, move files into place, the manifest last, then delete the log. Each of these steps may be repeated. Tokens are
overwritten by whole aligned ids, so an open stream reads old ids or EOD.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from msgspec import Meta

from pretok.base.console import Console, Gauge
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.lock import hold, refuse_readers
from pretok.base.records import Checksum, Count, Digest, Inside, Record, read_record, replace, to_json
from pretok.base.storage import (
    checksum,
    compare_checksum,
    damaged,
    fingerprint,
    output_error,
    read_json,
    reading,
    write_bytes,
    write_json,
    writing,
)
from pretok.base.tokens import Ints
from pretok.base.tree import NODE, fold, node_hash, prove_nodes
from pretok.base.units import listed, plural
from pretok.documents.removal.reach import NOTHING, Reach, reach_of, show_reach
from pretok.documents.removal.select import Selection, refuse_missing, refuse_whole, select
from pretok.screen.removed import COLUMNS, read_removed, removed_path, rows_of, write_removed
from pretok.screen.removed import FILE_NAME as TOMBSTONES
from pretok.shards.annotations import (
    FOLDER as ANNOTATIONS,
)
from pretok.shards.annotations import (
    RECORD,
    Annotations,
    annotations_data,
    find_annotations,
    matched_column,
    open_annotations,
)
from pretok.shards.ledger import ledger_column, rewrite_without
from pretok.shards.manifest import (
    FILE_NAME,
    UNFINISHED_REMOVAL,
    Manifest,
    Removal,
    RemovedCounts,
    Shard,
    SideFile,
    add_counts,
    load_manifest,
)
from pretok.shards.names import SHOWN, read_names
from pretok.shards.unfinished import refuse_unfinished, unfinished

BLOCK = 1 << 22
"""Ids that are overwritten at a time."""


@dataclass(frozen=True, slots=True)
class RemoveRequest:
    """What to remove: the documents for which `where` is true, or those that the file `ids` names."""

    shards: Path
    reason: str
    where: str | None = None
    ids: Path | None = None
    missing_ok: bool = False
    """Skip names of no document."""
    all: bool = False
    """The condition may take a whole source."""

    @property
    def identity(self) -> str:
        """Equal for the same command."""
        names = None if self.ids is None else read_names(self.ids)
        return fingerprint([self.where, names, self.reason])


Staged = Annotated[str, Meta(pattern=r"\A[0-9]+\Z")]
"""A file in the folder of the log."""


class RemovalLog(Record, frozen=True):
    """The log of a removal: its steps."""

    request: Digest
    """`RemoveRequest.identity`."""
    removal: Removal
    eod_id: Count
    dtype: str
    shards: dict[Inside, tuple[tuple[Count, Count], ...]]
    """Path of each `.bin` -> ranges of tokens, (first, end), that become EOD."""
    files: tuple[tuple[Staged, Inside, Checksum], ...]
    """(file in the folder of the log, where it goes, its checksum), in this order."""


@dataclass(frozen=True, slots=True)
class RemoveReport:
    """The result of a removal, or of a dry run."""

    reach: Reach
    removal: Removal | None
    """None if nothing was removed."""
    fingerprint: str
    """The manifest's."""
    already: int = 0
    """Documents that had been removed before."""
    missing: tuple[str, ...] = field(default=())
    """Names of no document."""


def dry_run(request: RemoveRequest) -> RemoveReport:
    """Return what `run_remove` would do. Nothing is written. Raises the same."""
    return _plan(request)[2]


def _plan(request: RemoveRequest) -> tuple[Manifest, Selection, RemoveReport]:
    """Choose what would be removed. Raises UsageError, MismatchError, IntegrityError."""
    _check_request(request)
    refuse_unfinished(request.shards)
    manifest = load_manifest(request.shards)
    if unfinished(manifest.folder):
        raise UsageError(
            f"{manifest.folder} holds unfinished shards, whose documents cannot be searched yet: finish them with "
            "pretok tokenize, or delete them, then remove"
        )
    selection = select(manifest, request.where, read_names(request.ids) if request.ids else ())
    same = next((removal for removal in manifest.removals if removal.request == request.identity), None)
    if request.ids and not request.missing_ok and same is None:
        refuse_missing(selection.missing, request.ids, manifest.folder)
    if request.where and not request.all:
        refuse_whole(manifest, selection)
    reach = reach_of(manifest, selection)
    report = RemoveReport(reach, same, manifest.fingerprint, selection.already, selection.missing)
    return manifest, selection, report


def _check_request(request: RemoveRequest) -> None:
    if (request.where is None) == (request.ids is None):
        raise UsageError("no documents named: give one of --where and --ids")
    if not request.reason.strip():
        raise UsageError("--reason is empty: say why, for the ledger and the manifest")


def run_remove(request: RemoveRequest, console: Console) -> RemoveReport:
    """Remove documents, as the only job that writes to the folder; first finish a removal that was stopped.

    Raises UsageError, MismatchError, IntegrityError, OutputError; FolderInUse while another job reads or writes there.
    """
    _check_request(request)
    folder = request.shards.absolute()
    if not folder.is_dir():
        load_manifest(folder)  # raises the error
    # Both: a removal rewrites joined columns and their records, too.
    with hold(folder, "remove"), hold(folder / ANNOTATIONS, "annotate", beside=True):
        # First, as `_plan` needs a manifest that is true, and a log keeps `load_manifest` from reading it.
        log = _finish(folder)
        if log is not None:
            console.notice(f"{folder}: finished the removal of {log.removal.at} that had been stopped")
            if log.request == request.identity:
                return RemoveReport(NOTHING, log.removal, load_manifest(folder).fingerprint)
        manifest, selection, report = _plan(request)
        if not selection.chosen:
            return report
        refuse_readers(folder)
        # Before there is a log, which would shut the folder to readers until every file can be written.
        _refuse_read_only(selection)
        try:
            with console.progress("remove") as progress:
                log = _stage(manifest, selection, request, progress)
            # A reader registers and then looks for a log; this job writes the log and then looks for readers.
            # So if both come at once, at least one of them sees the other.
            refuse_readers(folder)  # one that came meanwhile has not seen the log
        except Exception:
            # The log first: without its files it would look like that of a removal that is nearly done.
            (folder / UNFINISHED_REMOVAL).unlink(missing_ok=True)
            shutil.rmtree((folder / UNFINISHED_REMOVAL).parent, ignore_errors=True)
            raise
        _apply(folder, log)
        return replace(report, removal=log.removal, fingerprint=load_manifest(folder).fingerprint)


def show_removed(report: RemoveReport, request: RemoveRequest, console: Console, *, done: bool) -> None:
    """Show the result of a removal, or of a dry run."""
    if report.missing:
        console.notice(
            f"{plural(len(report.missing), 'name')} of no document: {listed(report.missing, SHOWN)}"
        )
    if report.already:
        console.notice(f"{plural(report.already, 'document')} had been removed before")
    if not report.reach.documents:
        removed = report.removal
        what = "no document matches; nothing was removed"
        if removed is not None:
            what = f"{plural(removed.documents, 'document')} of {plural(removed.tokens, 'token')} are removed"
        console.notice(f"{request.shards}: {what} (manifest {report.fingerprint})")
        return
    show_reach(report.reach, console, done=done)
    if done:
        console.notice(
            f"{request.shards}: pretok trace RUN --doc HASH shows which steps of a run had read a document, which "
            f"the model does not unlearn (manifest {report.fingerprint})"
        )


def _finish(folder: Path) -> RemovalLog | None:
    """Finish a removal that was stopped and return its log; None if there is no log.

    Delete files that were only prepared.
    """
    path = folder / UNFINISHED_REMOVAL
    if path.parent.is_symlink():
        raise IntegrityError(
            f"{path.parent} is a link, which pretok does not make; look where it leads, and delete it"
        )
    if not path.exists():
        # Nothing outside of this folder was changed.
        shutil.rmtree(path.parent, ignore_errors=True)
        return None
    log = read_record(RemovalLog, read_json(path), path)
    _refuse_foreign(folder, log)
    for name, _, sealed in log.files:
        staged = path.parent / name
        if staged.is_symlink():
            raise IntegrityError(f"{staged} is a link, which pretok does not make; look where it leads")
        if staged.exists():  # else it is in its place
            compare_checksum(staged, sealed)
    refuse_readers(folder)  # one that came before the log, whose job died before it looked for readers
    _apply(folder, log)
    return log


def _refuse_foreign(folder: Path, log: RemovalLog) -> None:
    """Raise IntegrityError for a log that would write anything but the tokens and the files of this folder.

    The manifest may be the old or the new one: their paths are the same but for the list of what was removed.
    """
    path, manifest = folder / UNFINISHED_REMOVAL, load_manifest(folder, unfinished=False)
    shards = {shard.path: shard for shard in manifest.shards}
    files = {FILE_NAME, TOMBSTONES, *(file.path for file in manifest.side_files)}
    files |= {str(shard.nodes_path.relative_to(manifest.folder)) for shard in manifest.shards}
    for joined in find_annotations(folder):
        files |= {str(file.relative_to(folder)) for file in (*joined.roots, joined.folder / RECORD)}
    if (log.eod_id, log.dtype) != (manifest.tokenizer.eod_id, manifest.tokenizer.dtype):
        raise IntegrityError(f"{path}: its tokenizer is not the one of the manifest; the file was edited")
    for name, stretches in log.shards.items():
        if name not in shards or any(not first < end <= shards[name].tokens for first, end in stretches):
            raise IntegrityError(f"{path}: the manifest has no such tokens of {name}; the file was edited")
    targets = [target for _, target, _ in log.files]
    for name in targets:
        if name not in files:
            raise IntegrityError(f"{path}: {name} is no file of the manifest; the file was edited")
    inside = folder.resolve()
    for name in (*log.shards, *targets):
        if not (folder / name).resolve().is_relative_to(inside):
            raise IntegrityError(
                f"{folder / name} leads out of the folder, where no removal writes: replace the link by what it names"
            )


def _refuse_read_only(selection: Selection) -> None:
    """Raise OutputError for a file that cannot be changed, before any change."""
    for chosen in selection.chosen:
        try:
            os.close(os.open(chosen.shard.bin_path, os.O_WRONLY))
        except OSError as error:
            raise output_error(error, chosen.shard.bin_path) from error


class _Staging:
    """The folder of new files, before they move to the places in the log."""

    def __init__(self, folder: Path) -> None:
        self.shards = folder
        self.folder = (folder / UNFINISHED_REMOVAL).parent
        self.files: list[tuple[str, str]] = []
        with writing(self.folder):
            self.folder.mkdir()

    def new(self, target: Path) -> Path:
        """Return the temporary path of a file that will move to `target`."""
        name = str(len(self.files))
        self.files.append((name, str(target.relative_to(self.shards))))
        return self.folder / name


def _stage(manifest: Manifest, selection: Selection, request: RemoveRequest, progress: Gauge) -> RemovalLog:
    """Write all new files next to the old ones, and last the log, which makes them valid."""
    progress.expect(len(selection.chosen), unit="shards")
    staging, at = _Staging(manifest.folder), _now(manifest)
    eod, dtype = manifest.tokenizer.eod_id, manifest.tokenizer.dtype
    shards, sealed = dict[str, Shard](), dict[str, SideFile]()
    stretches = dict[str, tuple[tuple[int, int], ...]]()
    for chosen in selection.chosen:
        shard, offsets = chosen.shard, chosen.shard.open().offsets
        found = stretches[shard.path] = tuple(_joined(offsets[chosen.rows], offsets[chosen.rows + 1]))
        nodes = reseal(shard, found, eod, dtype)
        write_bytes(staging.new(shard.nodes_path), b"".join(nodes))
        counts = RemovedCounts(
            len(chosen.rows), sum(end - first for first, end in found), int(chosen.sizes.sum())
        )
        before = [] if shard.removed is None else [shard.removed]
        shards[shard.path] = replace(shard, root=fold(nodes).hex(), removed=add_counts([*before, counts]))
        ledger = staging.new(shard.ledger_path)
        name = str(shard.ledger_path.relative_to(manifest.folder))
        why = dict(zip(COLUMNS, (at, request.reason), strict=True))
        made = rewrite_without(shard.ledger_path, ledger, shard.source, chosen.mask, why)
        sealed[name] = replace(made, path=name)
        progress({"shards": 1})
    removal = Removal(
        at,
        request.reason,
        sum(len(chosen.rows) for chosen in selection.chosen),
        sum(end - first for found in stretches.values() for first, end in found),
        {chosen.shard.path: chosen.shard.root for chosen in selection.chosen},
        request.identity,
    )
    known = removed_path(manifest.folder)
    tombstones = read_removed([known] if manifest.check(known) else [])
    tombstones = pa.concat_tables([tombstones, rows_of(selection.hashes, removal.at, removal.reason)])
    size, seal = write_removed(staging.new(known), tombstones)
    sealed[TOMBSTONES] = SideFile(TOMBSTONES, None, size, seal)
    files = [sealed.pop(file.path, file) for file in manifest.side_files]
    now = replace(
        manifest,
        shards=tuple(shards.get(shard.path, shard) for shard in manifest.shards),
        side_files=(*sealed.values(), *files),
        history=(*manifest.history, manifest.event(removal)),
    ).counted()
    for joined in open_annotations(manifest):
        _bind_anew(staging, joined, now, selection)
    # The last of the files: when it is in place, so are all that it names.
    write_json(staging.new(manifest.folder / FILE_NAME), now.data)
    renamed = tuple((name, target, checksum(staging.folder / name)) for name, target in staging.files)
    log = RemovalLog(request.identity, removal, eod, dtype, stretches, renamed)
    # Before it is written: once it is there, nothing but carrying it out opens the folder again.
    _refuse_foreign(manifest.folder, log)
    # All new files are on disk. A kill before this line has removed nothing, one after it only delays.
    write_json(manifest.folder / UNFINISHED_REMOVAL, to_json(log))
    return log


def _now(manifest: Manifest) -> str:
    """Return the time, or a millisecond after the last removal of the folder if that is later: clocks differ."""
    now = datetime.now(UTC)
    for removal in manifest.removals:
        now = max(now, datetime.fromisoformat(removal.at) + timedelta(milliseconds=1))
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _joined(starts: Ints, ends: Ints) -> list[tuple[int, int]]:
    """Return (first, end) of stretches, with adjacent ones joined."""
    begins = np.append(True, starts[1:] != ends[:-1])
    finish = np.append(begins[1:], True)
    return list(zip(starts[begins].tolist(), ends[finish].tolist(), strict=True))


def reseal(shard: Shard, stretches: Sequence[tuple[int, int]], eod: int, dtype: str) -> list[bytes]:
    """Return the nodes of the tree of a `.bin` with EOD in some stretches of tokens.

    Only the MiBs that they touch are read. Raises IntegrityError if one of these is damaged: damage must not get a seal
    of its own.
    """
    nodes = prove_nodes(shard.bin_path, shard.file_bytes, shard.root)
    kind, left = np.dtype(dtype), deque(stretches)
    each = NODE // kind.itemsize
    with reading(shard.bin_path), shard.bin_path.open("rb", buffering=0) as file:
        while left:
            number = left[0][0] // each
            file.seek(number * NODE)
            block = bytearray(file.read(NODE))
            if node_hash(block) != nodes[number]:
                raise damaged(shard.bin_path)
            # A view: what is written to `ids` is in `block`, which is hashed again below.
            ids = np.frombuffer(block, kind)
            while left and left[0][0] < (number + 1) * each:
                first, end = left.popleft()
                ids[first - number * each : end - number * each] = eod
                # The slice above ended with the block, and the rest of the stretch is in the next one.
                if end > (number + 1) * each:
                    left.appendleft(((number + 1) * each, end))
            nodes[number] = node_hash(block)
    return nodes


def _bind_anew(staging: _Staging, annotations: Annotations, now: Manifest, selection: Selection) -> None:
    """Remove joined columns of the documents, and bind the record to the new ledgers."""
    parts, matched = dict(annotations.parts), matched_column(annotations.name)
    for shard, mask in (
        (chosen.shard, chosen.mask) for chosen in selection.chosen if chosen.shard.path in parts
    ):
        part = parts[shard.path]
        out = staging.new(annotations.folder / part.path)
        file = rewrite_without(annotations.folder / part.path, out, shard.source, mask, {matched: False})
        parts[shard.path] = replace(
            part,
            ledger=now.roots[shard.ledger_path],
            matched=ledger_column(out, matched).true_count,
            file_bytes=file.file_bytes,
            root=file.root,
        )
    if parts != annotations.parts:
        data = annotations_data(replace(annotations, parts=parts))
        write_json(staging.new(annotations.folder / RECORD), data)


def _apply(folder: Path, log: RemovalLog) -> None:
    """Carry out the log. A step that was done before is repeated, or its file is already in place."""
    dtype = np.dtype(log.dtype)
    for path, stretches in log.shards.items():
        # EOD over EOD changes nothing, so what a killed try did needs no record.
        _overwrite(folder / path, stretches, dtype, log.eod_id)
    staging = (folder / UNFINISHED_REMOVAL).parent
    for name, target, _ in log.files:
        # A rename takes the file away from here, so what is left here is what is left to do.
        if (staging / name).exists():  # else it is in its place
            with writing(folder / target):
                (staging / name).replace(folder / target)
    with writing(staging):
        (folder / UNFINISHED_REMOVAL).unlink()  # from here on the folder is read again
        # A kill before this line leaves an empty folder, which the next removal deletes.
        staging.rmdir()


def _overwrite(
    path: Path, stretches: Sequence[tuple[int, int]], dtype: np.dtype[np.generic], eod: int
) -> None:
    """Write EOD into stretches of a `.bin`, as whole aligned ids."""
    width = dtype.itemsize
    longest = max((end - first for first, end in stretches), default=0)
    block = np.full(min(longest, BLOCK), eod, dtype).tobytes()
    with writing(path):
        file = os.open(path, os.O_WRONLY)
        try:
            for first, end in stretches:
                at = first * width
                while at < end * width:
                    done = os.pwrite(file, block[: end * width - at], at)
                    at += done - done % width  # an id that was written in part is written again
            # On disk before the log is deleted: after that nobody would repeat these writes.
            os.fsync(file)
        finally:
            os.close(file)
