"""Seal: the sealed parts of all partitions -> few files and one manifest.

Enters: the plans and part records in SHARDS/.state. Leaves, per source: one validation shard, one rejects ledger, one
table of where the validation documents came from; then manifest.json; then the state of finished sources is dropped.
Sources already in the manifest and not in the plans are kept as they are.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pretok import __version__
from pretok.jobs.source_plan import SourcePlan
from pretok.manifest import FILE_NAME, FORMAT, VERSION, load_manifest, manifest_fingerprint
from pretok.shard import ShardReader, ShardWriter, token_dtype
from pretok.storage import atomic_open, write_json
from pretok.tokenize import PartRecord, load_parts
from pretok.vocab import Vocabulary

COPY_TOKENS = 1 << 24
PACKAGES = ("gigatoken", "tokenizers", "pyarrow", "numpy", "numba")
"""Whose versions the manifest records: what could change a byte of the shards."""


def seal(
    shards: Path,
    state: Path,
    plans: list[SourcePlan],
    config: dict[str, Any],
    vocab: Vocabulary,
    crashed: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Merge, check and describe. Returns the failures, which the manifest lists too.

    Raises AssertionError if read = written + rejected fails for any source.
    """
    old = load_manifest(shards).data if (shards / FILE_NAME).exists() else {"plans": {}}
    names = {plan.name for plan in plans}
    kept = [name for name in old["plans"] if name not in names]
    sealed = {plan.name: _seal_source(shards, state / plan.name, plan, vocab) for plan in plans}
    by_name: dict[str, dict[str, Any]] = {
        **{name: _from_manifest(old, name) for name in kept}, **sealed
    }  # fmt: skip
    for failure in crashed:
        by_name[failure["partition"].rsplit("-", 1)[0]]["failed"].append(failure)
    sources = {name: by_name[name]["counts"] for name in sorted(by_name)}
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": "",
        "tokenizer": {
            "fingerprint": vocab.fingerprint,
            "vocab_size": vocab.size,
            "eod_id": vocab.eod_id,
            "dtype": "uint16" if token_dtype(vocab.size).itemsize == 2 else "int32",
        },
        "totals": _add_counts(list(sources.values())),
        "sources": sources,
        "failed": [failure for name in sources for failure in by_name[name]["failed"]],
        "shards": [shard for name in sources for shard in by_name[name]["shards"]],
        "files": [file for name in sources for file in by_name[name]["files"]],
        "plans": {name: by_name[name]["plan"] for name in sources},
        "parts": {name: by_name[name]["parts"] for name in sources},
        "config": config,
        "software": {
            "pretok": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
    }
    data["fingerprint"] = manifest_fingerprint(data)
    write_json(shards / FILE_NAME, data)
    for name in sealed:
        if not by_name[name]["failed"]:
            shutil.rmtree(state / name)
    if state.exists() and not any(state.iterdir()):
        state.rmdir()
    return list(data["failed"])


def _from_manifest(old: dict[str, Any], name: str) -> dict[str, Any]:
    """What the previous manifest says about a source that this run did not touch."""
    return {
        "counts": old["sources"][name],
        "failed": [f for f in old["failed"] if f["partition"].rsplit("-", 1)[0] == name],
        "shards": [s for s in old["shards"] if s["source"] == name],
        "files": [f for f in old["files"] if f["source"] == name],
        "plan": old["plans"][name],
        "parts": old["parts"][name],
    }


def _seal_source(shards: Path, state: Path, plan: SourcePlan, vocab: Vocabulary) -> dict[str, Any]:
    """Merge the small files of a source and describe it for the manifest."""
    parts = [(p.number, part) for p in plan.partitions for part in load_parts(state, p.name)]
    entries = [
        _shard_entry(f"{plan.name}/{part.name}.bin", plan.name, "train", part.train)
        for _, part in parts
        if part.train is not None
    ]
    entries += _merge_validation(shards, state, plan.name, parts, vocab)
    files = _file_counts(plan, parts)
    rejected = _merge_rejects(shards, state, plan, parts, files)
    counts = {
        split: {
            "tokens": sum(e["tokens"] for e in entries if e["split"] == split),
            "documents": sum(e["documents"] for e in entries if e["split"] == split),
            "bytes": sum(e["text_bytes"] for e in entries if e["split"] == split),
        }
        for split in ("train", "val")
    }
    total = {key: counts["train"][key] + counts["val"][key] for key in ("tokens", "documents", "bytes")}
    read = sum(file["read"] for file in files)
    if read != total["documents"] + sum(rejected.values()):
        raise AssertionError(
            f"source {plan.name}: read {read}, wrote {total['documents']}, rejected {rejected}"
        )
    return {
        "counts": {**total, "read": read, "rejected": rejected, **counts},
        "failed": [error for _, part in parts for error in part.errors],
        "shards": entries,
        "files": files,
        "plan": plan.to_json(),
        "parts": [
            {"name": part.name, "partition": number, "records": part.records} for number, part in parts
        ],
    }  # fmt: skip


def _shard_entry(path: str, source: str, split: str, sealed: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "source": source,
        "split": split,
        "tokens": sealed["tokens"],
        "documents": sealed["documents"],
        "bytes": sealed["bin_bytes"],
        "text_bytes": sealed["text_bytes"],
        "checksum": sealed["bin_checksum"],
        "index_checksum": sealed["idx_checksum"],
    }


def _merge_validation(
    shards: Path, state: Path, source: str, parts: list[tuple[int, PartRecord]], vocab: Vocabulary
) -> list[dict[str, Any]]:
    """The small validation shards of all parts as one, and `.origins.npy`: (documents, 2) int64, for each document
    the part (its index in the manifest's `parts`) and the record of its partition it was."""
    name = f"{source}-val-00000"
    with_val = [(index, part) for index, (_, part) in enumerate(parts) if part.val is not None]
    if not with_val:
        return []
    with ShardWriter(shards / source / name, token_dtype(vocab.size)) as writer:
        for _, part in with_val:
            reader = ShardReader(state / f"{part.name}.val")
            for at in range(0, len(reader.tokens), COPY_TOKENS):
                writer.append(reader.tokens[at : at + COPY_TOKENS], np.empty(0, np.int32))
            writer.append(reader.tokens[:0], reader.lengths)
        sealed = {
            **asdict(writer.seal()),
            "text_bytes": sum(p.val["text_bytes"] for _, p in with_val if p.val),
        }
    origins = [(index, record) for index, part in with_val for record in part.val_records]
    with atomic_open(shards / source / f"{name}.origins.npy") as file:
        np.save(file, np.array(origins, "<i8"))
    return [_shard_entry(f"{source}/{name}.bin", source, "val", sealed)]


def _file_counts(plan: SourcePlan, parts: list[tuple[int, PartRecord]]) -> list[dict[str, Any]]:
    """One entry an input file: records read; written and rejected are filled in with the rejects."""
    read: Counter[str] = Counter()
    pieces = {partition.number: partition.pieces for partition in plan.partitions}
    for number, part in parts:
        for piece, records in part.records.items():
            read[pieces[number][int(piece)].file.path] += records
    return [
        {
            **asdict(file),
            "source": plan.name,
            "read": read[file.path],
            "written": read[file.path],
            "rejected": 0,
        }
        for file in plan.inputs
    ]


def _merge_rejects(
    shards: Path,
    state: Path,
    plan: SourcePlan,
    parts: list[tuple[int, PartRecord]],
    files: list[dict[str, Any]],
) -> dict[str, int]:
    """All rejects of a source as one ledger with positions in the files; counts by reason. No ledger if none."""
    by_path = {file["path"]: file for file in files}
    reasons: Counter[str] = Counter()
    path = shards / "rejects" / f"{plan.name}-00000.jsonl"
    if not any(part.rejected for _, part in parts):
        path.unlink(missing_ok=True)
        return {}
    with atomic_open(path, "w") as ledger:
        for line in _located_rejects(state, plan, parts):
            reasons[line["reason"]] += 1
            by_path[line["file"]]["written"] -= 1
            by_path[line["file"]]["rejected"] += 1
            ledger.write(json.dumps(line, ensure_ascii=False) + "\n")
    return dict(sorted(reasons.items()))


def _located_rejects(
    state: Path, plan: SourcePlan, parts: list[tuple[int, PartRecord]]
) -> Iterator[dict[str, Any]]:
    """Rejects with their file and position: the line or row of the file, from 1."""
    starts = piece_starts(plan.to_json(), [{"partition": n, "records": p.records} for n, p in parts])
    for number, part in parts:
        if not part.rejected:
            continue
        with (state / f"{part.name}.rejects.jsonl").open(encoding="utf-8") as file:
            for line in file:
                reject = json.loads(line)
                path, start = starts[number, reject["piece"]]
                yield {
                    "file": path,
                    "position": start + reject["record"] + 1,
                    "reason": reject["reason"],
                    "detail": reject["detail"],
                }


def piece_starts(plan: dict[str, Any], parts: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[str, int]]:
    """(partition, piece) -> (file, records of that file before the piece): pieces of a file follow each other."""
    read: Counter[tuple[int, int]] = Counter()
    for part in parts:
        for piece, records in part["records"].items():
            read[part["partition"], int(piece)] += records
    seen: Counter[str] = Counter()
    starts = {}
    for partition in plan["partitions"]:
        for index, piece in enumerate(partition["pieces"]):
            path = piece["file"]["path"]
            starts[partition["number"], index] = (path, seen[path])
            seen[path] += read[partition["number"], index]
    return starts


def _add_counts(sources: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum of nested counts."""
    total: dict[str, Any] = {"tokens": 0, "documents": 0, "bytes": 0, "read": 0, "rejected": {}}
    for counts in [*sources]:
        for key, value in counts.items():
            if isinstance(value, dict):
                inner = total.setdefault(key, {})
                for name, number in value.items():
                    inner[name] = inner.get(name, 0) + number
            else:
                total[key] += value
    return total
