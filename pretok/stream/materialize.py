"""Materialize: a mix -> shards that hold its sequences in its order, for trainers that must read sequentially.

Input: a shards folder and its mix.json. Output: another shards folder with a single source, `mix`, and a manifest that
carries the mix under `materialized`. Its documents are the sequences of the mix, seq_len + 1 tokens each (the last
token is stored, as it need not be the first of the next sequence). `pretok.stream.open` on it gives the same view as on
the planned mix, position by position, without a permutation. If the mix has conversations, `.spans` give the kind of
all tokens, also of plain text, so the view has the same masks. Text bytes are not known here and are recorded as 0.
There are no ledgers, because sequences are not documents.

First, the shards to be read are compared with their roots. Each shard is one task and the same whoever writes it.
OUT/.state holds the records of finished ones until the manifest is written, so a killed run resumes there.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

import pretok.stream
from pretok.base.console import Console
from pretok.base.errors import MismatchError
from pretok.base.execute import Engine, Report
from pretok.base.lock import hold
from pretok.base.records import read_record, replace, to_json
from pretok.base.storage import copy_file, fingerprint, read_json, write_json
from pretok.base.tasks import open_step
from pretok.base.tree import compare_root
from pretok.shards.manifest import (
    STATE,
    UNCOUNTED,
    Manifest,
    Shard,
    has_manifest,
    load_manifest,
    write_manifest,
)
from pretok.shards.partition_record import software
from pretok.shards.seal import side_files
from pretok.shards.unfinished import keep_plan, reading
from pretok.shards.writer import ShardWriter
from pretok.stream.mix_file import mix_json, mixed_shards
from pretok.stream.view import View
from pretok.tokenizer.vocabulary import TOKENIZER_FILE

SHARD_BYTES = 1 << 30
READ_SEQUENCES = 512
"""Sequences that are read and written at once: 8 MiB of int32 at 4,096 tokens."""
MADE_OF = "made_of"
"""The key of the manifest, and of an unfinished plan, for the digest of the roots of everything that is read."""


@dataclass(frozen=True, slots=True)
class MaterializeTask:
    """One shard: positions first to last - 1 of the mix, written as OUT/mix/NAME.bin."""

    shards: Path
    mix: Path
    out: Path
    name: str
    first: int
    last: int

    @property
    def record(self) -> Path:
        """File that describes the finished shard until the manifest does."""
        return self.out / STATE / f"{self.name}.json"


def run_materialize(
    shards: Path,
    mix: Path,
    out: Path,
    engine: Engine,
    console: Console,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write the sequences of `mix` into `out` in order, or finish an earlier run.

    Raises MismatchError if `out` holds another mix, FolderInUse if another job writes there, PartitionsFailed if shards
    could not be written, Stopped.
    """
    manifest = load_manifest(shards)
    with (
        reading(manifest, "materialize"),
        hold(out, "materialize"),
        open_step("materialize", engine, console) as step,
    ):
        view = pretok.stream.open(shards, mix)
        read = [
            (path, manifest.roots[path])
            for shard in chain(*mixed_shards(view.mix, manifest).values())
            for path in (shard.bin_path, *([shard.spans_path] if view.masked and shard.kinds else []))
        ]
        made_of = fingerprint([root for _, root in read])  # differs after a removal
        if has_manifest(out):
            finished = load_manifest(out)
            holds = (finished.materialized or {}).get("fingerprint")
            if (holds, finished.config.get(MADE_OF)) != (view.fingerprint, made_of):
                why = f"the mix {holds or '(none)'}, and {mix} is {view.fingerprint}"
                if holds == view.fingerprint:
                    why = f"this mix with tokens of documents that were since removed from {shards}"
                raise MismatchError(
                    f"{out} holds {why}: choose another folder, or delete it and run the same command again"
                )
            shutil.rmtree(out / STATE, ignore_errors=True)
            return
        sequences = max(1, shard_bytes // ((view.seq_len + 1) * view.dtype.itemsize))
        keep_plan(out, {"mix": view.fingerprint, MADE_OF: made_of, "shard_sequences": sequences})
        paths = (shards.absolute(), mix.absolute(), out.absolute())
        tasks = [
            MaterializeTask(*paths, f"mix-{first // sequences:05d}", first, min(first + sequences, len(view)))
            for first in range(0, len(view), sequences)
        ]
        todo = [task for task in tasks if not task.record.exists()]
        left = sum(task.last - task.first for task in todo) * (view.seq_len + 1)
        whole = len(view) * (view.seq_len + 1)
        step.progress.expect(whole, {"tokens": whole - left} if left < whole else {}, "tokens")
        step.engine.choose(left * view.dtype.itemsize)
        files = read if todo else []
        for _ in step.map(check_file, files, "file", lambda sealed: sealed[0].name, kept=False):
            pass
        done = len(tasks) - len(todo)
        for _ in step.map(write_shard, todo, "shard", lambda task: task.name, done=done, folder=out):
            pass
        # Copy the tokenizer too, which turns the tokens back into text.
        if manifest.check(tokenizer := manifest.folder / TOKENIZER_FILE):
            copy_file(tokenizer, out / TOKENIZER_FILE)
        entries = [read_record(Shard, read_json(task.record), task.record) for task in tasks]
        _seal(view, manifest, out, entries, made_of)


def check_file(sealed: tuple[Path, str], report: Report) -> None:  # noqa: ARG001
    """Raise IntegrityError unless a file has its recorded root: the copy gets a new one, which would hide damage."""
    compare_root(*sealed)


def write_shard(task: MaterializeTask, report: Report) -> None:
    """Write one shard and, last, its record."""
    view = pretok.stream.open(task.shards, task.mix)
    length = view.seq_len + 1
    with ShardWriter(task.out / "mix" / task.name, view.dtype) as writer:
        for first in range(task.first, task.last, READ_SEQUENCES):
            positions = range(first, min(first + READ_SEQUENCES, task.last))
            batch, lengths = view.batch(positions, view.dtype), np.full(len(positions), length, np.int32)
            kinds = None
            if view.learned is not None:  # padding gets the kind of the token before it
                kinds = view.learned.kinds(view.reads(np.array(positions))[0], batch.size)
            writer.append(batch.reshape(-1), lengths, kinds)
            report({"documents": len(batch), "tokens": batch.size})
        entry, _ = writer.seal("mix", "train")
    write_json(task.record, to_json(entry))


def _seal(view: View, manifest: Manifest, out: Path, entries: list[Shard], made_of: str) -> None:
    counts = replace(UNCOUNTED, read=sum(entry.documents for entry in entries))
    spans = [replace(entry, folder=out).spans_path for entry in entries if entry.kinds is not None]
    mixed = Manifest(
        tokenizer=manifest.tokenizer,
        totals=counts,
        sources={"mix": counts},
        shards=tuple(entries),
        side_files=(*side_files(out, None, [out / TOKENIZER_FILE]), *side_files(out, "mix", spans)),
        config={MADE_OF: made_of},
        software=software(),
        materialized=mix_json(view.mix),
    )
    write_manifest(out, mixed.counted())
    shutil.rmtree(out / STATE)
