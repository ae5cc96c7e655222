"""Memory and time of the commands that look at documents, each in a process of its own.

Input: shards of random tokens (10 a document, id and url kept), a mix and a run of it. Output: for each command its
seconds, and the peak memory of it and its children. Memory should not grow with the number of documents.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from benchmarks.certificate import write_run
from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table
from benchmarks.train_shards import write_documents
from pretok.shards.ledger import ledger_column
from pretok.shards.manifest import load_manifest

TOKENS, SHARD_DOCUMENTS = 10, 1_000_000


def spent_by(arguments: list[str]) -> Row:
    """Run a command."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "pretok", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"pretok {' '.join(arguments)} failed")
    return {"s": time.perf_counter() - began, "peak GB": usage.ru_maxrss * 1024 / 1e9}


def measure(inputs: Inputs) -> Table:
    """Each command once, on 100 million documents and rows for a tenth of them."""
    documents, run = inputs.scaled(100_000_000), inputs.folder / "run"
    shards = write_documents(run / "shards", documents, TOKENS, -(-documents // SHARD_DOCUMENTS))
    write_run(run, shards, batch=4)
    with (run / "scores.jsonl").open("w", encoding="utf-8") as file:
        for number in range(0, documents, 10):
            file.write(json.dumps({"id": f"document-{number}", "score": number / 7, "topic": "news"}) + "\n")
    last = ledger_column(load_manifest(shards).shards[-1].ledger_path, "hash")[-1].as_py().hex()
    counted = "SELECT count(*), count(DISTINCT tokens), sum(bytes) FROM documents"
    folder = str(shards)
    commands = {
        "query": ["query", folder, counted],
        "annotate": ["annotate", folder, str(run / "scores.jsonl"), "--by", "id"],
        "trace": ["trace", str(run), "--doc", last],
        "certify": ["certify", str(run), "--step", "1", "--out", str(run / "a.certificate")],
        "disclose": ["disclose", folder, "--format", "json"],
        "remove": ["remove", folder, "--where", "id LIKE '%77'", "--reason", "none", "--dry-run"],
    }
    return {name: spent_by(arguments) for name, arguments in commands.items()}
