"""What a removal costs, by how many documents go and where they are.

Input: shards of random tokens with ledgers, made on the disk to be measured (--work). Output: seconds and CPU seconds
of removing 10,000 documents scattered over all shards, 100 such, and 10,000 in a row.
"""

from __future__ import annotations

import numpy as np

from benchmarks.inputs import Inputs
from benchmarks.measure import Table, timed
from benchmarks.train_shards import write_documents
from pretok.base.console import NO_CONSOLE
from pretok.documents.removal.remove_job import RemoveRequest, run_remove
from pretok.shards.ledger import ledger_column
from pretok.shards.manifest import load_manifest

SHARDS = 100


def measure(inputs: Inputs) -> Table:
    """One removal after the other, each of documents that are still there."""
    shards = write_documents(inputs.folder / "removed", inputs.scaled(10_000_000), 100, SHARDS)
    manifest = load_manifest(shards)
    total, many = manifest.totals.documents, inputs.scaled(10_000)
    each, random = total // SHARDS, np.random.default_rng(1)
    table: Table = {}
    for name, numbers in {
        f"{many:,} scattered": random.choice(total, many, replace=False),
        f"{-(-many // 100):,} scattered": random.choice(total, -(-many // 100), replace=False),
        f"{many:,} in a row": np.arange(total // 2, total // 2 + many),
    }.items():
        hashes = []
        for number, shard in enumerate(manifest.shards):
            rows = numbers[numbers // each == number] % each
            if len(rows):
                hashes += [
                    row.hex() for row in ledger_column(shard.ledger_path, "hash").take(rows).to_pylist()
                ]
        ids = inputs.folder / "ids"
        ids.write_text("\n".join(hashes))
        spent, report = timed(
            lambda ids=ids: run_remove(RemoveRequest(shards, "benchmark", ids=ids), NO_CONSOLE)
        )
        table[name] = spent | {"removed": report.reach.documents}
    return table
