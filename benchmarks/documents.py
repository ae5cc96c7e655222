"""Memory and time of the commands that look at documents, each in a process of its own.

    python -m benchmarks.documents FOLDER [--documents 100M]

Input: an empty folder, where inputs, shards with the id kept, and a run are made once. Output: a line for each command:
its seconds, and the peak memory of its largest process. Memory should not grow with the number of documents.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import fresh

FILE_DOCUMENTS = 1_000_000
VOCABULARY = Path(__file__).parents[1] / "tests" / "golden" / "tokenizer.json"


def run_pretok(*words: str) -> tuple[float, float]:
    """Run a command of pretok; (seconds, GB at most in memory at once)."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pretok", *words]
    process = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {process.stderr}")
    # The largest of all children so far, so each command is run by a process of its own, see main.
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9


def write_work(folder: Path, documents: int) -> None:
    """Inputs, shards, a run over the beginning of them, and rows for every tenth document."""
    from benchmarks.certificate import write_run

    for first in range(0, documents, FILE_DOCUMENTS):
        last = min(first + FILE_DOCUMENTS, documents)
        lines = (f'{{"id": "document-{n}", "text": "the document number {n}"}}\n' for n in range(first, last))
        (folder / f"{first:012d}.jsonl").write_text("".join(lines))
    inputs = f"web={folder}/[0-9]*.jsonl"
    run_pretok("tokenize", inputs, "--out", str(folder), "--vocab", str(VOCABULARY), "--keep", "id")
    write_run(folder, folder / "shards", batch=4, pack=False)
    for path in folder.glob("[0-9]*.jsonl"):
        path.unlink()
    with (folder / "scores.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(f'{{"id": "document-{n}", "score": {n / 7}}}\n' for n in range(0, documents, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=100_000_000)
    arguments = parser.parse_args()
    folder, shards = arguments.folder, str(arguments.folder / "shards")
    if not (folder / "scores.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh(write_work, folder, arguments.documents)
    run, rows, doc = str(folder), str(folder / "scores.jsonl"), f"document-{arguments.documents // 2}"
    counted = "SELECT count(*), count(DISTINCT tokens), sum(bytes) FROM documents"
    commands = {
        "query": ["query", shards, counted],
        "annotate": ["annotate", shards, rows, "--by", "id"],
        "trace": ["trace", run, "--doc", doc],
        "certify": ["certify", run, "--step", "1", "--out", str(folder / "a.certificate")],
        "disclose": ["disclose", shards, "--format", "json"],
        "remove": ["remove", shards, "--where", "id LIKE '%77'", "--reason", "none", "--dry-run"],
        "inspect": ["inspect", shards, "--doc", doc],
    }
    for name, words in commands.items():
        seconds, memory = fresh(run_pretok, *words)
        print(f"{name}: {seconds:.1f} s, {memory:.2f} GB", flush=True)


if __name__ == "__main__":
    main()
