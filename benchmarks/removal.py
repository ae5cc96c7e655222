"""What a removal costs: seconds and CPU seconds, by how many documents go and where they stand.

    python -m benchmarks.removal FOLDER [--documents 10M] [--tokens 100] [--shards 100]

Input: an empty folder on the disk to be measured, where shards of random tokens with ledgers (id and url kept) are made
once. Output: a line for each removal: of 10,000 documents scattered over all shards, of 100 such, and of 10,000 in a
row; the MiBs of `.bin` that it touches, and the ledgers that it writes again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np


def write_shards(folder: Path, documents: int, tokens: int, shards: int) -> None:
    """Shards of one source with ledgers, of so many documents of so many tokens in all."""
    import pyarrow as pa

    from benchmarks.train_shards import bare_manifest
    from pretok.base.records import replace
    from pretok.read.kept import KeptColumn
    from pretok.shards.ledger import ledger_rows, schema_with
    from pretok.shards.manifest import write_manifest
    from pretok.shards.writer import ShardWriter

    random, each = np.random.default_rng(0), documents // shards
    schema = schema_with([KeptColumn("id", "id", "text"), KeptColumn("url", "url", "text")])
    entries, files = [], []
    for shard in range(shards):
        prefix, first = folder / "web" / f"web-{shard:05d}", shard * each
        ids = random.integers(1, 50_000, (each, tokens), dtype=np.uint16)
        ids[:, -1] = 0
        lengths = np.full(each, tokens, np.int32)
        with ShardWriter(prefix, np.dtype("<u2"), schema) as writer:
            numbers = range(first, first + each)
            kept = [
                pa.array([f"{text}{number}" for number in numbers], pa.large_string())
                for text in ("document-", "https://example.org/a/page/")
            ]
            chance = np.frombuffer(random.bytes(8 * each), np.uint64)
            hashes = np.stack([np.arange(first, first + each, dtype=np.uint64), chance], axis=1)
            rows = ledger_rows(
                pa.array(["web.jsonl"] * each),
                np.zeros(each, np.int64),
                np.arange(first, first + each),
                lengths,
                np.full(each, 4 * tokens),
                hashes,
                kept,
                schema,
            )
            writer.append(ids.reshape(-1), lengths, rows=rows)
            entry, beside = writer.seal("web", "train")
            entries.append(entry)
            files += beside
    write_manifest(folder, replace(bare_manifest(50_000, entries), side_files=tuple(files)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--shards", type=int, default=100)
    arguments = parser.parse_args()
    from pretok.base.console import SILENT
    from pretok.base.tree import NODE
    from pretok.removal.job import Request, run_remove
    from pretok.shards.ledger import ledger_column
    from pretok.shards.manifest import has_manifest, load_manifest

    shards = arguments.folder / "shards"
    if not has_manifest(shards):
        write_shards(shards, arguments.documents, arguments.tokens, arguments.shards)
    manifest = load_manifest(shards)
    held = manifest.totals.documents
    size = 2 * manifest.totals.tokens // manifest.totals.documents
    many = min(10_000, held // 10)
    random, each = np.random.default_rng(len(manifest.removals) + 1), manifest.shards[0].documents
    for what, numbers in (
        (f"{many} scattered", random.choice(held, many, replace=False)),
        (f"{many // 100} scattered", random.choice(held, many // 100, replace=False)),
        (f"{many} in a row", np.arange(held // 2, held // 2 + many)),
    ):
        numbers.sort()
        names, ledgers = [], 0
        for number, shard in enumerate(manifest.shards):
            rows = numbers[(numbers >= number * each) & (numbers < (number + 1) * each)] - number * each
            ledgers += bool(len(rows))
            if len(rows):
                hashes = ledger_column(shard.ledger_path, "hash")
                names += [hashes[row].as_py().hex() for row in rows.tolist()]
        list_ = arguments.folder / "ids"
        list_.write_text("\n".join(names))
        blocks = len(
            set(zip((numbers // each).tolist(), (numbers % each * size // NODE).tolist(), strict=True))
        )
        began, cpu = time.perf_counter(), time.process_time()
        report = run_remove(Request(shards, "benchmark", ids=list_), SILENT)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        print(
            f"{what} of {held:,} documents: {wall:.1f} s, {cpu:.1f} s of CPU; {report.reach.documents:,} removed, "
            f"{blocks:,} of {len(manifest.shards) * -(-each * size // NODE):,} MiB touched, {ledgers} of "
            f"{len(manifest.shards)} ledgers written again",
            flush=True,
        )


if __name__ == "__main__":
    main()
