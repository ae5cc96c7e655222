"""verify: a shards folder against its manifest.

Enters: SHARDS. Leaves: a list of problems, empty if all is as sealed: files missing or left over, sizes, checksums,
index consistency, ids, EOD per document, totals, and documents that decode and encode to themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pretok.engine import Engine
from pretok.failures import TaskError, raise_failures
from pretok.jobs.partitions import LOGS
from pretok.manifest import Manifest, load_manifest
from pretok.mix import MATERIALIZED
from pretok.progress import Counts
from pretok.verify import VerifyTask, verify_shard
from pretok.vocab import TOKENIZER_FILE, load_vocab

SEED = 0


def run_verify(
    shards: Path, sample: int | None, engine: Engine, on_report: Callable[[Counts], None]
) -> tuple[Manifest, list[str]]:
    """Check everything; `sample` documents are decoded and encoded again (None: all). (manifest, problems)."""
    manifest = load_manifest(shards)
    problems = _check_tokenizer(manifest) + _check_files(manifest) + _check_totals(manifest)
    numbers = _sample(manifest, sample)
    tasks = [
        VerifyTask(
            prefix=shard.prefix,
            tokens=shard.tokens,
            documents=shard.documents,
            checksum=shard.checksum,
            index_checksum=shard.index_checksum,
            tokenizer_json=manifest.folder / TOKENIZER_FILE,
            vocab_size=manifest.vocab_size,
            eod_id=manifest.eod_id,
            sample=chosen,
            documents_end=MATERIALIZED not in manifest.data,
        )
        for shard, chosen in zip(manifest.shards, numbers, strict=True)
    ]
    tasks.sort(key=lambda task: -task.tokens)
    # By the reference engine a byte takes fifty times as long, and a token is four of them.
    engine.choose(sum(task.tokens for task in tasks) * (200 if sample is None else 1))
    failures = []
    for outcome in engine.map(verify_shard, tasks, on_report):
        if isinstance(outcome.result, TaskError):
            failures.append((str(tasks[outcome.index].prefix), outcome.result))
        else:
            problems += outcome.result
    raise_failures(failures, shards.parent / LOGS, "shards")
    return manifest, sorted(problems)


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


def _check_tokenizer(manifest: Manifest) -> list[str]:
    path = manifest.folder / TOKENIZER_FILE
    if not path.exists():
        return [f"{path} is missing"]
    found = load_vocab(path, eod=manifest.eod_id).fingerprint
    expected = manifest.data["tokenizer"]["fingerprint"]
    return [] if found == expected else [f"{path}: fingerprint {found}, the manifest says {expected}"]


def _check_files(manifest: Manifest) -> list[str]:
    """Shard files on disk that the manifest does not know: leftovers, or a stale manifest."""
    known = {
        shard.prefix.with_name(shard.prefix.name + s) for shard in manifest.shards for s in (".bin", ".idx")
    }
    found = {
        path for source in manifest.sources for path in (manifest.folder / source).glob("*.[bi][id][nx]")
    }
    return [f"{path} is not in the manifest" for path in sorted(found - known)]


def _check_totals(manifest: Manifest) -> list[str]:
    """Counts of the sources and totals against the shards, and read = written + rejected for each file and source."""
    data = manifest.data
    problems = []
    for name, counts in data["sources"].items():
        for split in ("train", "val"):
            shards = [s for s in data["shards"] if s["source"] == name and s["split"] == split]
            found = {
                "tokens": sum(s["tokens"] for s in shards),
                "documents": sum(s["documents"] for s in shards),
                "bytes": sum(s["text_bytes"] for s in shards),
            }
            if counts[split] != found:
                problems.append(
                    f"manifest: {name} {split} says {counts[split]}, its shards add up to {found}"
                )
        if MATERIALIZED in data:  # made of shards, not of input files
            continue
        files = [file for file in data["files"] if file["source"] == name]
        read, rejected = sum(f["read"] for f in files), sum(counts["rejected"].values())
        if not read == counts["read"] == counts["documents"] + rejected:
            problems.append(f"manifest: {name} read {read}, wrote {counts['documents']}, rejected {rejected}")
    for key in ("tokens", "documents", "bytes"):
        if data["totals"][key] != sum(c[key] for c in data["sources"].values()):
            problems.append(f"manifest: the total of {key} is not the sum over the sources")
    problems += [
        f"manifest: {f['path']}: read {f['read']}, written {f['written']}, rejected {f['rejected']}"
        for f in data["files"]
        if f["read"] != f["written"] + f["rejected"]
    ]
    return problems


def report_json(manifest: Manifest, problems: list[str]) -> dict[str, Any]:
    """What `pretok verify --json` prints."""
    return {
        "ok": not problems,
        "problems": problems,
        "shards": len(manifest.shards),
        "failed": manifest.data["failed"],
        "fingerprint": manifest.fingerprint,
    }
