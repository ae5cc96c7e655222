"""Memory and time of the commands that look at documents, each in a process of its own.

Input: shards of 10 and of 100 million documents (10 random tokens each, id and url kept), a mix and a run of them.
Output: for each command and number of documents its seconds, and the peak memory of the largest of its processes.
Memory must not grow with the number of documents.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.certificate import write_run
from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, fresh
from benchmarks.train_shards import write_documents
from pretok.base.records import replace
from pretok.base.tree import root_of
from pretok.read.files import InputFile
from pretok.read.source_plan import PieceCounts, PlannedPiece, SourcePlan, write_plan
from pretok.shards.ledger import ledger_column
from pretok.shards.manifest import SideFile, inputs_name, load_manifest, write_manifest

SIZES, TOKENS, SHARD_DOCUMENTS = (10_000_000, 100_000_000), 10, 1_000_000
NO_TOKENIZER = 2
"""Exit code of verify here: the ids are random, so there is no tokenizer, and no document can be encoded again."""


def make_work(work: Path, documents: int) -> str:
    """Write WORK with shards, a run, and scores of a tenth of the documents. Returns the hash of the last document."""
    shards = write_documents(work / "shards", documents, TOKENS, -(-documents // SHARD_DOCUMENTS))
    manifest, name = load_manifest(shards), inputs_name("web")
    made = manifest.totals.documents
    file = PlannedPiece(InputFile("web.jsonl", "jsonl", "", 0, ""), 0, counts=PieceCounts(made, 0, made))
    write_plan(shards / name, SourcePlan("web", {}, (file,)))
    table = SideFile(name, "web", (shards / name).stat().st_size, root_of(shards / name))
    write_manifest(shards, replace(manifest, side_files=(*manifest.side_files, table)))
    write_run(work, shards, batch=4)
    with (work / "scores.jsonl").open("w", encoding="utf-8") as rows:
        for number in range(0, documents, 10):
            rows.write(json.dumps({"id": f"document-{number}", "score": number / 7, "topic": "news"}) + "\n")
    return str(ledger_column(manifest.shards[-1].ledger_path, "hash")[-1].as_py().hex())


def spent_by(arguments: list[str], code: int = 0) -> tuple[float, float]:
    """Run a command, which must exit with `code`. Returns (seconds, peak GB)."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "pretok", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != code:
        sys.exit(f"pretok {' '.join(arguments)} failed")
    return time.perf_counter() - began, usage.ru_maxrss * 1024 / 1e9


def measure(inputs: Inputs) -> Table:
    """Each command once for each number of documents."""
    table: Table = {}
    for documents in map(inputs.scaled, SIZES):
        work = inputs.folder / f"run-{documents}"
        # In a process of its own, because the peak of a child begins at that of its parent.
        last, shards = fresh(make_work, work, documents), str(work / "shards")
        counted = "SELECT count(*), count(DISTINCT tokens), sum(bytes) FROM documents"
        commands = {
            "query": ["query", shards, counted],
            "annotate": ["annotate", shards, str(work / "scores.jsonl"), "--by", "id"],
            "query, joined": ["query", shards, f"{counted} WHERE score > 1000"],
            "mix --class": ["mix", shards, "--class", "short=web where tokens < 8", "--seq-len", "4096"],
            "trace": ["trace", str(work), "--doc", last],
            "certify": ["certify", str(work), "--step", "1", "--out", str(work / "a.certificate")],
            "disclose": ["disclose", shards, "--format", "json"],
            "report": ["report", str(work)],
            "verify": ["verify", shards],
            "remove --dry-run": ["remove", shards, "--where", "id LIKE '%77'", "--reason", "x", "--dry-run"],
            "remove": ["remove", shards, "--where", "id LIKE '%777777'", "--reason", "x", "--all"],
        }
        for name, arguments in commands.items():
            seconds, peak = spent_by(arguments, NO_TOKENIZER if name == "verify" else 0)
            size: Row = {f"s, {documents:,}": seconds, f"peak GB, {documents:,}": peak}
            table[name] = table.get(name, {}) | size
    return table
