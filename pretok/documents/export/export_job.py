"""export: shards -> a folder of token files for OLMo-core.

Input: a sealed shards folder. Output: for each shard, in OUT/SOURCE/SPLIT,

    NAME.npy     the ids as in the shard, uint16 or int32, without a header
    NAME.csv.gz  start,end of each document in tokens (olmo_core/data/utils.py)
    NAME.mask    only with conversations: a byte for each token, 1 if it is learned. It is for the token itself, not for
                 the one before (`label_mask_paths`, one for each path, olmo_core/data/numpy_dataset.py)

and last OUT/export.json, with the counts, sizes and checksums of each file, and what a reader must know of all. Texts
and ledgers are not exported.

Each file is one task, which compares what it copies with the roots of the manifest. OUT/.state holds the records of
finished files until the end, so a killed run continues where it stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from msgspec import Meta
from pyarrow import csv

from pretok.base.console import Console
from pretok.base.errors import MismatchError
from pretok.base.execute import Engine, Report
from pretok.base.lock import hold
from pretok.base.records import Checksum, Count, Inside, Name, Record, Split, read_record, replace, to_json
from pretok.base.storage import NewFile, copy_file, damaged, read_json, write_bytes, write_json
from pretok.base.tasks import Step, open_step
from pretok.base.tree import Tree, compare_root
from pretok.documents.export import EXPORT_FILE
from pretok.shards.manifest import STATE, Manifest, Shard
from pretok.shards.spans import ShardSpans
from pretok.shards.unfinished import keep_plan, reading
from pretok.tokenizer.vocabulary import TOKENIZER_FILE

BLOCK = 1 << 22
Learn = Mapping[str, tuple[str, ...]]
"""The kinds of tokens that are learned in each source of conversations."""


Suffix = Annotated[str, Meta(pattern=r"\A(?:\.[a-z]+)+\Z")]
"""What a file's name ends with, such as `.csv.gz`."""


class ExportedFile(Record, frozen=True):
    """The tokens of one shard."""

    path: Inside
    """Relative to the folder."""
    source: Name
    split: Split
    tokens: Count
    documents: Count
    sizes: dict[Suffix, Count]
    """By suffix, of this file and those next to it."""
    checksums: dict[Suffix, Checksum]
    """By suffix, as `sizes`."""


class Export(Record, frozen=True, omit_defaults=True):
    """The content of OUT/export.json."""

    to: str
    """The format."""
    shards: str
    """Their fingerprint."""
    tokenizer: str
    """Its fingerprint."""
    vocab_size: Count
    eod_id: Count
    dtype: str
    """Of the ids."""
    tokens: Count
    documents: Count
    weights: dict[str, float]
    """Share of each source in training."""
    files: tuple[ExportedFile, ...]
    """One for each shard."""
    bos_id: Count | None = None
    """The token that begins each document, None if there is none."""
    learn: dict[str, tuple[str, ...]] | None = None
    """The kinds that the masks mark, None if there are no masks."""


def run_export(
    manifest: Manifest, out: Path, wanted: Mapping[str, int], engine: Engine, console: Console, learn: Learn
) -> Export:
    """Write the tokens of all sources into `out`, or finish an earlier run.

    wanted: tokens of each source in training. Raises MismatchError if `out` holds another export, IntegrityError for
    damaged shards, FolderInUse while another job writes there, PartitionsFailed, Stopped.
    """
    with reading(manifest, "export"), hold(out, "export"), open_step("export", engine, console) as step:
        path = out / EXPORT_FILE
        if path.exists():
            export = read_record(Export, read_json(path), path)
            plan = export.to, export.shards, export.learn or {}
            if plan != ("olmo", manifest.fingerprint, learn):
                raise MismatchError(
                    f"{out} holds another export, to {plan[0]} of the shards {plan[1]} with masks for {plan[2]}, and "
                    f"this is one of {manifest.fingerprint} with masks for {learn}: choose another folder"
                )
        else:
            export = _export(manifest, out, learn, step)
        total = sum(wanted.values()) or 1
        export = replace(export, weights={name: tokens / total for name, tokens in wanted.items()})
        write_json(path, to_json(export))
        # Only now: until export.json exists, the records are all that says what is done.
        shutil.rmtree(out / STATE, ignore_errors=True)
        return export


def _export(manifest: Manifest, out: Path, learn: Learn, step: Step) -> Export:
    named = {name: list(kinds) for name, kinds in learn.items()}
    keep_plan(out, {"to": "olmo", "shards": manifest.fingerprint, "learn": named})
    tokenizer = manifest.tokenizer
    todo = [shard for shard in manifest.shards if not _record(out, shard).exists()]
    tokens = sum(shard.tokens for shard in todo)
    before = manifest.totals.tokens - tokens
    step.progress.expect(manifest.totals.tokens, {"tokens": before} if before else {}, "tokens")
    step.engine.choose(tokens * np.dtype(tokenizer.dtype).itemsize)
    tasks = [(shard, manifest.roots[shard.spans_path] if _chats(shard, learn) else "") for shard in todo]
    write = partial(write_tokens, out=out.absolute(), eod=tokenizer.eod_id, learn=learn)
    done = len(manifest.shards) - len(todo)
    for _ in step.map(write, tasks, "file", lambda task: task[0].prefix.name, done=done, folder=out):
        pass
    records = [_record(out, shard) for shard in manifest.shards]
    files = tuple(read_record(ExportedFile, read_json(record), record) for record in records)
    if manifest.check(beside := manifest.folder / TOKENIZER_FILE):
        copy_file(beside, out / TOKENIZER_FILE)
    return Export(
        to="olmo",
        shards=manifest.fingerprint,
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        dtype=tokenizer.dtype,
        tokens=sum(file.tokens for file in files),
        documents=sum(file.documents for file in files),
        weights={},
        files=files,
        bos_id=tokenizer.bos_id,
        learn=dict(learn) or None,
    )


def _record(out: Path, shard: Shard) -> Path:
    """Return the record of a finished file, kept until all are finished."""
    return out / STATE / f"{shard.prefix.name}.json"


def _chats(shard: Shard, learn: Learn) -> bool:
    return shard.source in learn and shard.kinds is not None


def write_tokens(task: tuple[Shard, str], report: Report, *, out: Path, eod: int, learn: Learn) -> None:
    """Write the file of a shard, the files next to it and, last, its record.

    So a kill leaves no record of an unfinished file. task: the shard, and the root of its spans, "" if all its tokens
    are learned.
    """
    shard, root = task
    stem = out / shard.source / shard.split / shard.prefix.name
    own = Tree()
    with (
        NewFile(stem.with_name(stem.name + ".npy")) as file,
        shard.bin_path.open("rb", buffering=0) as source,
    ):
        while block := source.read(BLOCK):
            own.update(block)
            file.write(block)
        # Before the file gets its name: damage must not be exported under a new seal.
        if own.hexdigest() != shard.root:
            raise damaged(shard.bin_path)
        file.seal()
    sizes, checksums = {".npy": file.size}, {".npy": file.checksum}
    beside = _documents(shard.open().lengths)
    sizes[".csv.gz"] = len(beside)
    checksums[".csv.gz"] = write_bytes(stem.with_name(stem.name + ".csv.gz"), beside)
    if learn:
        with NewFile(stem.with_name(stem.name + ".mask")) as mask:
            _write_mask(mask, shard, root, learn.get(shard.source, ()), eod)
        sizes[".mask"], checksums[".mask"] = mask.size, mask.checksum
    report({"documents": shard.documents, "tokens": shard.tokens})
    exported = ExportedFile(
        path=f"{shard.source}/{shard.split}/{stem.name}.npy",
        source=shard.source,
        split=shard.split,
        tokens=shard.tokens,
        documents=shard.documents,
        sizes=sizes,
        checksums=checksums,
    )
    # Last, as a restart takes a shard with a record for done.
    write_json(_record(out, shard), to_json(exported))


def _documents(lengths: np.ndarray[tuple[int], np.dtype[np.int32]]) -> bytes:
    """Write start,end of each document as a compressed CSV."""
    ends = np.cumsum(lengths, dtype=np.int64)
    table = pa.table({"start": ends - lengths, "end": ends})
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "gzip") as packed:
        csv.write_csv(table, packed, csv.WriteOptions(include_header=False))
    return bytes(sink.getvalue().to_pybytes())


def _write_mask(file: NewFile, shard: Shard, root: str, learn: tuple[str, ...], eod: int) -> None:
    """Write a byte for each token, 1 if it is learned; an EOD that follows an EOD is padding and is not.

    Raises IntegrityError if the spans are not as they were sealed.
    """
    spans, tokens = None, shard.open().tokens
    if root:
        compare_root(shard.spans_path, root)
        spans = ShardSpans(shard.spans_path)
    before = True  # whether the token before is EOD, as before a shard
    for first in range(0, shard.tokens, BLOCK):
        end = min(first + BLOCK, shard.tokens)
        ended = np.append(before, tokens[first:end] == eod)
        learned, before = ~(ended[1:] & ended[:-1]), ended[-1]
        file.write((learned if spans is None else learned & spans.learned(first, end, learn)).tobytes())
    file.seal()
