"""Manifests without files, requests for a mix as a user writes them, and best-fit packing in plain Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.train_shards import bare_manifest
from pretok.base.records import replace, to_json
from pretok.config import make_mix
from pretok.shards.ledger import SCHEMA
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.stream import View, audit
from pretok.stream.mix_file import Mix, mix_json
from pretok.stream.mix_job import MixRequest
from pretok.stream.quota import stage_table
from pretok.stream.segments import SEGMENTS, RunSegment


def manifest_of(tokens: dict[str, int]) -> Manifest:
    """Return a manifest of sources with so many tokens, one shard each. It has no files."""
    shards = [
        Shard(f"{name}/{name}-00000.bin", name, "train", n, 1, 2 * n, 0, "", "") for name, n in tokens.items()
    ]
    return bare_manifest(50_000, shards).at(Path("/x"))


def write_ledgers(shards: Path, quality: dict[str, list[int | None]] | None = None) -> None:
    """Write the ledger of each shard. quality: a kept column, its values for the documents of each source."""
    manifest = load_manifest(shards)
    for shard, before in manifest.numbered:
        count, tokens = shard.documents, np.diff(shard.open().offsets)
        columns = ["f"] * count, [0] * count, range(count), tokens, tokens * 4, [b"0" * 16] * count
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        table = pa.table(arrays, schema=SCHEMA)
        if quality is not None:
            rows = quality[shard.source][before : before + count]
            table = table.append_column("quality", pa.array(rows, pa.int64()))
        pq.write_table(table, shard.ledger_path)


def write_segment(run: Path, shards: Path, view: View, batch: int, **changes: Any) -> None:
    """Write RUN/segments.jsonl of a run that read one stream from its first position."""
    segment = RunSegment(
        step=0, tokens=0, position=0, global_batch=batch, seq_len=view.seq_len, seed=view.mix.seed,
        stream=view.fingerprint, shards=str(shards), order=mix_json(view.mix),
    )  # fmt: skip
    (run / SEGMENTS).write_text(json.dumps(to_json(replace(segment, **changes))) + "\n")


def stretches(view: View, position: int) -> list[tuple[int, int, int]]:
    """Return (column, first token in the source, tokens) of each piece of the sequence at a position."""
    found, column = [], 0
    for path, first, tokens in audit.pieces(view, position):
        shards = load_manifest(path.parents[1]).of(path.parent.name, view.mix.split)
        number = [shard.bin_path for shard in shards].index(path)
        found.append((column, sum(shard.tokens for shard in shards[:number]) + first, tokens))
        column += tokens
    return found


def cut_of(view: View, name: str, epoch: int) -> int:
    """Return the token of its tape at which an epoch of an entry begins."""
    return 0 if view.mix.packs else view.order.cut(view.order.names.index(name), epoch)


def request(*stages: str, split: str = "train", after: Mix | None = None, **table: object) -> MixRequest:
    """Return a request for stages, written as for `pretok mix --stage`. table: other keys of [mix]."""
    return MixRequest(
        make_mix({"stages": [stage_table(stage) for stage in stages], **table}, "test"), split, after
    )


def best_fit(lengths: list[int], capacity: int) -> list[list[tuple[int, int, int]]]:
    """Return (document, first token, tokens) of the pieces in each bin, by the rules of best-fit packing."""
    bins, rests = [], []
    for document, length in enumerate(lengths):
        while length > capacity or length == capacity:
            first = lengths[document] - length
            bins.append([(document, first, capacity)])
            length -= capacity
        if length:
            rests.append((length, document))
    open_bins: list[list[tuple[int, int, int]]] = []
    touched: list[int] = []  # when each was filled last: of bins with the same room the newest is taken
    for time, (length, document) in enumerate(sorted(rests, key=lambda rest: (-rest[0], rest[1]))):
        rooms = [capacity - sum(tokens for *_, tokens in one) for one in open_bins]
        fits = [number for number, room in enumerate(rooms) if room >= length]
        if fits:
            chosen = min(fits, key=lambda number: (rooms[number], -touched[number]))
        else:
            chosen = len(open_bins)
            open_bins.append([])
            touched.append(0)
        open_bins[chosen].append((document, lengths[document] - length, length))
        touched[chosen] = time
    return bins + [sorted(one) for one in open_bins]
