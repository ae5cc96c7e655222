"""An older checkout against this one: the same commands on the same files, in turns.

    git worktree add OLD COMMIT
    python -m benchmarks.versus OLD [--runs 3]

Enters: a folder with an older checkout that runs with the same packages, and the corpus. Leaves: the section `versus`
of results.json, medians in seconds. Of work in one process the CPU time counts, which a busy machine stretches less;
of work on two workers the clock, Ray's start included. A first run of each, which compiles, is not counted.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.files import DOCUMENTS, FILES, write_files
from benchmarks.inputs import Inputs, prepare
from benchmarks.measure import save
from benchmarks.report import write_report


@dataclass(frozen=True, slots=True)
class Case:
    """One command. again: it finds its work done; clock: seconds by the clock, else of the CPU."""

    name: str
    arguments: tuple[str, ...]
    clock: bool = False
    again: bool = False


def cases(inputs: Inputs, superwords: Path, folder: Path) -> list[Case]:
    """What is measured, on files that are made in `folder`."""
    corpus = tuple(f"{name}={inputs.corpus / name}/*.jsonl.zst" for name in inputs.zst)
    line = inputs.slices[0].open(encoding="utf-8").readline()
    (folder / "one.jsonl").write_text(line, encoding="utf-8")
    write_files(inputs.slices, folder / "small", FILES)
    plain, merged = ("--vocab", str(inputs.vocab)), ("--vocab", str(superwords))
    one = ("tokenize", "--workers", "0")
    two = ("tokenize", "--workers", "2")
    files = f"s={folder}/small/*/*.jsonl"
    return [
        Case("tokenize one document, one process, CPU s", (*one, *plain, f"s={folder}/one.jsonl")),
        Case("tokenize the corpus, one process, CPU s", (*one, *plain, *corpus)),
        Case("with superwords, one process, CPU s", (*one, *merged, *corpus)),
        Case("tokenize the corpus, 2 workers, s", (*two, *plain, *corpus), clock=True),
        Case("count words, one process, CPU s", ("count", "--workers", "0", *corpus)),
        Case("build-vocab, 50,000 entries, 2 workers, s", ("build-vocab", "--workers", "2", *corpus), clock=True),
        Case(f"{FILES:,} files of {DOCUMENTS} documents, 2 workers, s", (*two, *plain, files), clock=True),
        Case("the same again, with nothing to do, s", (*two, *plain, files), clock=True, again=True),
    ]  # fmt: skip


def run(case: Case, checkout: Path, out: Path) -> float:
    """Seconds of the command, run by a checkout's code."""
    if not case.again:
        shutil.rmtree(out, ignore_errors=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "NUMBA_CACHE_DIR": str(out.parent / "compiled"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, "-m", "pretok", *case.arguments, "--out", str(out)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, cwd=checkout, env=environment, capture_output=True)
    passed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return passed if case.clock else used


def superword_vocabulary(inputs: Inputs) -> Path:
    """One of 40,000 entries and 10,000 superwords, made by this checkout if need be."""
    out = inputs.folder / "superwords"
    if not (out / "vocab").exists():
        sources = [f"{name}={inputs.corpus / name}/*.jsonl.zst" for name in inputs.zst]
        command = [sys.executable, "-m", "pretok", "build-vocab", *sources, "--superwords", "10000"]
        subprocess.run([*command, "--out", str(out), "--workers", "0"], check=True)
    return out / "vocab"


def compare(inputs: Inputs, old: Path, folder: Path, runs: int) -> dict[str, dict[str, float]]:
    """Name of a case -> seconds `before` and `now`."""
    checkouts = {"before": old.resolve(), "now": Path(__file__).resolve().parents[1]}
    chosen = cases(inputs, superword_vocabulary(inputs), folder)
    seconds: dict[str, dict[str, list[float]]] = {case.name: {"before": [], "now": []} for case in chosen}
    for turn in range(runs + 1):
        for which, checkout in sorted(checkouts.items(), reverse=turn % 2 == 1):
            (folder / which).mkdir(exist_ok=True)
            for case in chosen:
                passed = run(case, checkout, folder / which / "out")
                print(f"{turn}/{runs} {which:6} {case.name}: {passed:.2f}", flush=True)
                if turn:
                    seconds[case.name][which].append(passed)
    return {
        name: {which: statistics.median(values) for which, values in both.items()}
        for name, both in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--vocab", type=Path, help="folder with a tokenizer.json; default: train one")
    parser.add_argument("--work", type=Path, help="keep the derived files here; default: a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pretok-versus-") as temporary:
        inputs = prepare(arguments.work or Path(temporary) / "inputs", arguments.vocab)
        commit = subprocess.run(
            ["git", "-C", str(arguments.old), "rev-parse", "--short", "HEAD"],
            check=True,
            capture_output=True,
            text=True,
        )
        measured = compare(inputs, arguments.old, Path(temporary), arguments.runs)
        save("versus", {"commit": commit.stdout.strip(), "seconds": measured})
    write_report()


if __name__ == "__main__":
    main()
