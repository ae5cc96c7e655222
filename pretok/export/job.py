"""export: shards -> a folder of token files in the format of another trainer.

Input: a sealed shards folder. Output: OUT/SOURCE/SPLIT/NAME with the tokens of one shard, or of several in a row up to
a size, in the order of the manifest; what the format wants beside them; last OUT/export.json, which says of each file
which shards it holds, its counts, sizes and checksums, and of all what a reader must be told. Text and ledgers stay
where they are.

Each file is one task, which compares what it copies with the roots of the manifest. OUT/.state holds the records of
finished ones until the end, so a killed run goes on where it stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from pretok.base.console import Console
from pretok.base.errors import MismatchError
from pretok.base.execute import Engine, Report
from pretok.base.lock import hold
from pretok.base.records import Count, Record, read_record, replace, to_json
from pretok.base.storage import (
    NewFile,
    copy_file,
    damaged,
    read_json,
    write_bytes,
    write_json,
)
from pretok.base.tasks import Step, open_step
from pretok.base.tree import Tree, compare_root
from pretok.export.formats import FORMATS, ExportedFile
from pretok.export.text import blend
from pretok.shards.manifest import STATE, Manifest, Shard
from pretok.shards.spans import ShardSpans
from pretok.shards.unfinished import keep_plan, reading
from pretok.tokenizer.vocabulary import TOKENIZER_FILE

EXPORT_FILE = "export.json"
BLEND_FILE = "blend.json"
"""For Megatron-LM's --per-split-data-args-path."""
BLOCK = 1 << 22


class Export(Record, frozen=True, omit_defaults=True):
    """What OUT/export.json says. to: whose format; shards, tokenizer: fingerprints; dtype: of the ids; merged: most
    bytes of ids in a file, 0 for one file a shard; weights: share of each source in training; bos_id: of the token that
    begins each document, None where none does; learn: kinds of tokens that masks say are learned of sources of
    conversations, None where there are no masks."""

    to: str
    shards: str
    tokenizer: str
    vocab_size: Count
    eod_id: Count
    dtype: str
    merged: Count
    tokens: Count
    documents: Count
    weights: dict[str, float]
    files: tuple[ExportedFile, ...]
    bos_id: Count | None = None
    learn: dict[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class ExportTask:
    """One file: `shards` in a row, written as `prefix` and the suffixes of the format. spans: roots of theirs,
    "" where all is learned; learn: of these the kinds that are; masks: whether any file of the export has a mask;
    eod: the id of EOD."""

    to: str
    shards: tuple[Shard, ...]
    out: Path
    name: str
    spans: tuple[str, ...]
    learn: tuple[str, ...]
    masks: bool
    eod: int

    @property
    def prefix(self) -> Path:
        """Path without suffix."""
        first = self.shards[0]
        return self.out / first.source / first.split / self.name

    @property
    def record(self) -> Path:
        """Where the finished file is described until all are."""
        return self.out / STATE / f"{self.name}.json"


def run_export(
    manifest: Manifest,
    to: str,
    out: Path,
    merge: int,
    wanted: Mapping[str, int],
    engine: Engine,
    console: Console,
    learn: dict[str, tuple[str, ...]] | None = None,
) -> Export:
    """Write the tokens of all sources into `out`, or finish what an earlier run began.

    merge: most bytes of ids in a file, 0 for one file a shard; wanted: tokens of each source in training; learn: kinds
    that are learned of each source of conversations, for which the format has masks (`text.learned_kinds`). Raises
    MismatchError when `out` holds another export, IntegrityError for damaged shards, FolderInUse while another job
    writes there, PartitionsFailed, Stopped.
    """
    learn = learn or {}
    with reading(manifest, "export"), hold(out, "export"), open_step("export", engine, console) as step:
        path = out / EXPORT_FILE
        if path.exists():
            export = read_record(Export, read_json(path), path)
            _same_plan(export, out, to, manifest.fingerprint, merge, learn)
        else:
            export = _export(manifest, to, out, merge, learn, step)
        total = sum(wanted.values()) or 1
        export = replace(export, weights={name: tokens / total for name, tokens in wanted.items()})
        if to == "megatron":
            paths = [(out.absolute() / file.path).with_suffix("") for file in export.files]
            write_json(out / BLEND_FILE, blend(paths, export.files, wanted))
        write_json(path, to_json(export))
        shutil.rmtree(out / STATE, ignore_errors=True)
        return export


def _same_plan(
    export: Export, out: Path, to: str, shards: str, merge: int, learn: dict[str, tuple[str, ...]]
) -> None:
    if (export.to, export.shards, export.merged) != (to, shards, merge):
        raise MismatchError(
            f"{out} holds an export of the shards {export.shards} to {export.to} in files of {export.merged} bytes; "
            f"this one is of {shards} to {to} in files of {merge}: choose another folder"
        )
    if (export.learn or {}) != learn:
        raise MismatchError(
            f"{out} has masks for {export.learn}, these are for {learn}: choose another folder"
        )


def _export(
    manifest: Manifest, to: str, out: Path, merge: int, learn: dict[str, tuple[str, ...]], step: Step
) -> Export:
    tasks = list(_plan(manifest, to, out.absolute(), merge, learn))
    named = {name: list(kinds) for name, kinds in learn.items()}
    keep_plan(out, {"to": to, "shards": manifest.fingerprint, "merged": merge, "learn": named})
    todo = [task for task in tasks if not task.record.exists()]
    step.engine.choose(sum(_id_bytes(task.shards, manifest) for task in todo))
    done = len(tasks) - len(todo)
    for _ in step.map(write_tokens, todo, "file", lambda task: task.name, done=done, folder=out):
        pass
    return replace(_finish(manifest, to, out, merge, tasks), learn=learn or None)


def _id_bytes(shards: Sequence[Shard], manifest: Manifest) -> int:
    return sum(shard.tokens for shard in shards) * np.dtype(manifest.tokenizer.dtype).itemsize


def _plan(
    manifest: Manifest, to: str, out: Path, merge: int, learn: Mapping[str, tuple[str, ...]]
) -> Iterator[ExportTask]:
    """The files to write: shards of one source and split in a row, as many as fit."""
    for (_, split), ours in groupby(manifest.shards, lambda shard: (shard.source, shard.split)):
        groups: list[list[Shard]] = []
        for shard in ours:
            if groups and _id_bytes([*groups[-1], shard], manifest) <= merge:
                groups[-1].append(shard)
            else:
                groups.append([shard])
        for number, group in enumerate(groups):
            mark = "-val" if split == "val" else ""
            name = f"{group[0].source}{mark}-{number:05d}"
            kinds = learn.get(group[0].source, ())
            spans = tuple(
                manifest.roots[one.spans_path] if kinds and one.kinds is not None else "" for one in group
            )
            yield ExportTask(
                to,
                tuple(group),
                out,
                name,
                spans,
                kinds,
                bool(learn),
                manifest.tokenizer.eod_id,
            )


def write_tokens(task: ExportTask, report: Report) -> None:
    """Write one file, what goes beside it, and, last, its record."""
    kind = FORMATS[task.to]
    readers = [shard.open() for shard in task.shards]
    lengths = np.concatenate([reader.lengths for reader in readers])
    width = readers[0].dtype.itemsize
    tokens = sum(shard.tokens for shard in task.shards)
    with NewFile(_with(task.prefix, kind.suffix)) as file:
        for shard in task.shards:
            _copy(shard, file)
            report({"documents": shard.documents, "tokens": shard.tokens})
        file.seal()
    sizes, checksums = {kind.suffix: file.size}, {kind.suffix: file.checksum}
    for suffix, data in kind.beside(lengths, width).items():
        sizes[suffix], checksums[suffix] = len(data), write_bytes(_with(task.prefix, suffix), data)
    if task.masks:
        sizes[kind.mask], checksums[kind.mask] = _write_mask(task, _with(task.prefix, kind.mask))
    exported = ExportedFile(
        path=_with(task.prefix, kind.suffix).relative_to(task.out).as_posix(),
        source=task.shards[0].source,
        split=task.shards[0].split,
        tokens=tokens,
        documents=len(lengths),
        shards=tuple(shard.prefix.name for shard in task.shards),
        sizes=sizes,
        checksums=checksums,
    )
    write_json(task.record, to_json(exported))


def _write_mask(task: ExportTask, path: Path) -> tuple[int, str]:
    """A byte for each token of the file, 1 where it is learned, which an EOD behind an EOD is not; its size and
    checksum. Raises IntegrityError where the spans are not as they were sealed."""
    with NewFile(path) as file:
        for number, shard in enumerate(task.shards):
            spans, tokens = None, shard.open().tokens
            if task.spans[number]:
                compare_root(shard.spans_path, task.spans[number])
                spans = ShardSpans(shard.spans_path)
            for first in range(0, shard.tokens, BLOCK):
                end = min(first + BLOCK, shard.tokens)
                ended = np.ones(
                    end - first + 1, np.bool_
                )  # whether the token before each is EOD, as before a shard
                ended[int(first == 0) :] = tokens[max(first - 1, 0) : end] == task.eod
                learned = ~(ended[1:] & ended[:-1])
                file.write(
                    (learned if spans is None else learned & spans.learned(first, end, task.learn)).tobytes()
                )
        file.seal()
    return file.size, file.checksum


def _with(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)


def _copy(shard: Shard, target: NewFile) -> None:
    """Append the ids of a shard. Raises IntegrityError where they are not what the manifest says."""
    own = Tree()
    with shard.bin_path.open("rb", buffering=0) as source:
        while block := source.read(BLOCK):
            own.update(block)
            target.write(block)
    if own.hexdigest() != shard.root:
        raise damaged(shard.bin_path)


def _finish(manifest: Manifest, to: str, out: Path, merge: int, tasks: Sequence[ExportTask]) -> Export:
    """What export.json will say; the tokenizer beside it."""
    files = [read_record(ExportedFile, read_json(task.record), task.record) for task in tasks]
    if manifest.check(tokenizer := manifest.folder / TOKENIZER_FILE):
        copy_file(tokenizer, out / TOKENIZER_FILE)
    return Export(
        to=to,
        shards=manifest.fingerprint,
        tokenizer=manifest.tokenizer.fingerprint,
        vocab_size=manifest.tokenizer.vocab_size,
        eod_id=manifest.tokenizer.eod_id,
        dtype=manifest.tokenizer.dtype,
        merged=merge,
        tokens=sum(file.tokens for file in files),
        documents=sum(file.documents for file in files),
        weights={},
        files=tuple(files),
        bos_id=manifest.tokenizer.bos_id,
    )
