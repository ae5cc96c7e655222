"""Memory and time of the commands that look at documents, each in a process of its own.

    python -m benchmarks.documents FOLDER [--documents 100M]

Input: an empty folder, where shards of random tokens (10 a document, id and url kept), a mix and a run of it are made
once. Output: a line for each command: its seconds, and the peak memory of it and its children. Memory should not grow
with the number of documents.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

TOKENS = 10
SHARD_DOCUMENTS = 1_000_000


def peak_of(command: list[str]) -> tuple[float, float]:
    """(seconds, GB at most in memory at once) of a command."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - began, usage.ru_maxrss * 1024 / 1e9


def write_work(folder: Path, documents: int) -> None:
    """Shards, a run over all of them, and rows for every tenth document."""
    from benchmarks.certificate import write_run
    from benchmarks.removal import write_shards
    from pretok.shards.ledger import ledger_column
    from pretok.shards.manifest import load_manifest

    shards = folder / "shards"
    write_shards(shards, documents, TOKENS, max(1, documents // SHARD_DOCUMENTS))
    write_run(folder, shards, batch=4, pack=False)
    with (folder / "scores.jsonl").open("w", encoding="utf-8") as file:
        for number in range(0, documents, 10):
            file.write(json.dumps({"id": f"document-{number}", "score": number / 7, "topic": "news"}) + "\n")
    last = load_manifest(shards).shards[-1]
    (folder / "hash").write_text(ledger_column(last.ledger_path, "hash")[-1].as_py().hex())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=100_000_000)
    parser.add_argument("--only", nargs="*", help="Names of commands. Default: all.")
    arguments = parser.parse_args()
    folder, shards = arguments.folder, str(arguments.folder / "shards")
    if not (folder / "hash").exists():
        write_work(folder, arguments.documents)
    hash_, run, rows = (folder / "hash").read_text(), str(folder), str(folder / "scores.jsonl")
    counted = "SELECT count(*), count(DISTINCT tokens), sum(bytes) FROM documents"
    commands = {
        "query": ["query", shards, counted],
        "annotate": ["annotate", shards, rows, "--by", "id"],
        "trace": ["trace", run, "--doc", hash_],
        "certify": ["certify", run, "--step", "1", "--out", str(folder / "a.certificate")],
        "disclose": ["disclose", shards, "--format", "json"],
        "remove": ["remove", shards, "--where", "id LIKE '%77'", "--reason", "none", "--dry-run"],
        "inspect": ["inspect", shards, "--doc", hash_],
    }
    for name in arguments.only or commands:
        seconds, memory = peak_of([sys.executable, "-m", "pretok", *commands[name]])
        print(f"{name}: {seconds:.1f} s, {memory:.2f} GB", flush=True)


if __name__ == "__main__":
    main()
