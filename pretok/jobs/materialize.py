"""materialize: a mix -> shards that hold its sequences in its order, for trainers that must read sequentially.

Enters: a shards folder and its mix.json. Leaves: another shards folder with one source, `mix`, whose documents are the
sequences of the mix, seq_len + 1 tokens each (the last one is the next sequence's first only by chance, so it is
stored), and a manifest that carries the mix under `materialized`. `pretok.stream.open` on it gives the same view as on
the plan, position by position, without a permutation. Text bytes are not known here and stand as 0.

Each shard is one task and is the same whoever writes it; OUT/.state holds the records of finished ones until the
manifest is written, so a killed run goes on where it stopped.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pretok.stream
from pretok.engine import Engine, Report
from pretok.errors import MismatchError
from pretok.failures import TaskError, raise_failures
from pretok.jobs.partitions import LOGS
from pretok.lock import hold
from pretok.manifest import FILE_NAME, FORMAT, VERSION, load_manifest, manifest_fingerprint
from pretok.mix import MATERIALIZED, mix_json
from pretok.progress import Counts
from pretok.shard import ShardWriter
from pretok.storage import copy_file, read_json, remove_leftovers, write_json
from pretok.stream import View
from pretok.vocab import TOKENIZER_FILE

STATE = ".state"
SHARD_BYTES = 1 << 30
READ_SEQUENCES = 512


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
        """Where the finished shard is described until the manifest is."""
        return self.out / STATE / f"{self.name}.json"


def run_materialize(
    shards: Path,
    mix: Path,
    out: Path,
    engine: Engine,
    on_report: Callable[[Counts], None] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write the sequences of `mix` into `out` in order, or finish what an earlier run began.

    Raises MismatchError when `out` holds another mix, FolderInUse while another job writes there, PartitionsFailed when
    shards could not be written, Stopped.
    """
    with hold(out, "materialize"):
        _materialize(shards, mix, out, engine, on_report, shard_bytes)


def _materialize(
    shards: Path,
    mix: Path,
    out: Path,
    engine: Engine,
    on_report: Callable[[Counts], None] | None,
    shard_bytes: int,
) -> None:
    view = pretok.stream.open(shards, mix)
    if (out / FILE_NAME).exists():
        found = load_manifest(out).data.get(MATERIALIZED, {}).get("fingerprint")
        if found != view.fingerprint:
            raise MismatchError(
                f"{out} holds {'other shards' if found is None else f'the mix {found}'}, {mix} is "
                f"{view.fingerprint}; choose another folder"
            )
        shutil.rmtree(out / STATE, ignore_errors=True)
        return
    sequences = max(1, shard_bytes // ((view.seq_len + 1) * view.dtype.itemsize))
    _keep_plan(out, {"mix": view.fingerprint, "shard_sequences": sequences})
    tasks = [
        MaterializeTask(
            shards.absolute(),
            mix.absolute(),
            out.absolute(),
            f"mix-{number:05d}",
            first,
            min(first + sequences, len(view)),
        )
        for number, first in enumerate(range(0, len(view), sequences))
    ]
    todo = [task for task in tasks if not task.record.exists()]
    engine.choose(sum(task.last - task.first for task in todo) * (view.seq_len + 1) * view.dtype.itemsize)
    failures = [
        (todo[outcome.index].name, outcome.result)
        for outcome in engine.map(write_shard, todo, on_report)
        if isinstance(outcome.result, TaskError)
    ]
    remove_leftovers(out)
    raise_failures(failures, out.parent / LOGS, "shards")
    if (shards / TOKENIZER_FILE).exists():  # what turns the tokens into text again goes with them
        copy_file(shards / TOKENIZER_FILE, out / TOKENIZER_FILE)
    _seal(view, out, [read_json(task.record) for task in tasks])


def write_shard(task: MaterializeTask, report: Report) -> None:
    """Write one shard and, last, its record."""
    view = pretok.stream.open(task.shards, task.mix)
    length = view.seq_len + 1
    with ShardWriter(task.out / "mix" / task.name, view.dtype) as writer:
        for first in range(task.first, task.last, READ_SEQUENCES):
            batch = view.batch(range(first, min(first + READ_SEQUENCES, task.last)), view.dtype)
            writer.append(batch.reshape(-1), np.full(len(batch), length, np.int32))
            report({"documents": len(batch), "tokens": batch.size})
        sealed = writer.seal()
    entry = {
        "path": f"mix/{task.name}.bin",
        "source": "mix",
        "split": "train",
        "tokens": sealed.tokens,
        "documents": sealed.documents,
        "bytes": sealed.bin_bytes,
        "text_bytes": 0,
        "checksum": sealed.bin_checksum,
        "index_checksum": sealed.idx_checksum,
    }
    write_json(task.record, entry)


def _keep_plan(out: Path, plan: dict[str, Any]) -> None:
    """What the finished shards in `out` belong to; another plan is refused."""
    path = out / STATE / "plan.json"
    if not path.exists():
        write_json(path, plan)
    elif (old := read_json(path)) != plan:
        raise MismatchError(
            f"{out} holds unfinished shards of another plan ({old}; this one is {plan}): delete the folder or choose "
            "another"
        )


def _seal(view: View, out: Path, entries: list[dict[str, Any]]) -> None:
    counts = {
        "tokens": sum(entry["tokens"] for entry in entries),
        "documents": sum(entry["documents"] for entry in entries),
        "bytes": 0,
    }
    total = {
        **counts,
        "read": counts["documents"],
        "rejected": {},
        "train": counts,
        "val": dict.fromkeys(counts, 0),
    }
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": "",
        "tokenizer": view.tokenizer,
        "totals": total,
        "sources": {"mix": total},
        "failed": [],
        "shards": entries,
        "files": [],
        "plans": {},
        "parts": {},
        "config": {},
        "software": {
            "python": platform.python_version(),
            "pretok": pretok.__version__,
            "numpy": np.__version__,
        },
        MATERIALIZED: mix_json(view.mix),
    }
    data["fingerprint"] = manifest_fingerprint(data)
    write_json(out / FILE_NAME, data)
    shutil.rmtree(out / STATE)
