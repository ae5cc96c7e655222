"""An older checkout against this one: the same commands on the same files, in turns.

    git worktree add OLD COMMIT
    python -m benchmarks.versus OLD [--runs 3] [--only 'empty tasks']    # of the others, results.json keeps the figures

Input: a folder with an older checkout that runs with the same packages, and the corpus. Output: the section `versus`
of results.json, medians. Of work in one process the CPU time counts, which a busy machine stretches less, or the most
memory; of work on two workers, or that waits for a server, the clock, start included. A first run of each, which
compiles, is not counted. With s3fs, a server as in `benchmarks.remote` has the corpus too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.files import DOCUMENTS, FILES, write_files
from benchmarks.inputs import Inputs, prepare
from benchmarks.measure import fresh, load_results, save
from benchmarks.remote import CREDENTIALS, linked, server
from benchmarks.report import write_report
from benchmarks.words import widen

WORDS = 3_000_000
CORPUS, COUNTED = "corpus", "counted"
"""Where the corpus is tokenized, and counted."""
WIDE, SHARDS = "WIDE", "SHARDS"
"""Stand in the arguments for counts of more words than the corpus has, and for its shards."""


@dataclass(frozen=True, slots=True)
class Case:
    """One command. name: of what it took: `cpu` or `clock`, seconds, or `peak`, MB, of which `also` names another; out:
    its folder; again: it finds its work done; script: a file beside this one that is run instead of pretok."""

    name: str
    arguments: tuple[str, ...]
    what: str = "cpu"
    out: str = "out"
    again: bool = False
    also: tuple[str, str] = ("", "")
    script: str = ""


def cases(inputs: Inputs, folder: Path, endpoint: str | None) -> list[Case]:
    """What is measured, on files that are made in `folder`."""
    corpus = tuple(f"{name}={inputs.corpus / name}/*.jsonl.zst" for name in inputs.zst)
    line = inputs.slices[0].open(encoding="utf-8").readline()
    (folder / "one.jsonl").write_text(line, encoding="utf-8")
    write_files(inputs.slices, folder / "small", FILES)
    plain = ("--vocab", str(inputs.vocab))
    one = ("tokenize", "--workers", "0")
    two = ("tokenize", "--workers", "2")
    files = f"s={folder}/small/*/*.jsonl"
    merging = ("build-vocab", "--workers", "0", "--counts", WIDE, *corpus)
    words = f"build-vocab from counts of {WORDS / 1e6:.0f} million words a source, one process"
    far = [
        f"{name}={linked(path, inputs.folder / 'bucket' / name)}"
        for name, paths in inputs.zst.items()
        for path in paths
    ]
    reading: Any = {"out": CORPUS, "again": True, "script": "reading.py"}
    served = Case("tokenize it from a server 50 ms away, one process, s", (*one, *plain, *far), "clock")
    return [
        Case("tokenize one document, one process, CPU s", (*one, *plain, f"s={folder}/one.jsonl")),
        Case("start: tokenize one document, 2 workers, s", (*two, *plain, f"s={folder}/one.jsonl"), "clock"),
        Case("tokenize the corpus, one process, CPU s", (*one, *plain, *corpus)),
        Case("tokenize the corpus, 2 workers, s", (*two, *plain, *corpus), "clock", CORPUS),
        Case("read its 63 M tokens 5 times, CPU s", (SHARDS, "5", "0"), **reading),
        Case("the same by one loader process of torch, s", (SHARDS, "5", "1"), "clock", **reading),
        *([served] if endpoint else []),
        Case("count words, one process, CPU s", ("count", "--workers", "0", *corpus), out=COUNTED),
        Case(f"{words}, CPU s", merging, also=(f"{words}, most memory, MB", "peak")),
        Case("build-vocab, 50,000 entries, 2 workers, s", ("build-vocab", "--workers", "2", *corpus), "clock"),
        Case(f"{FILES:,} files of {DOCUMENTS} documents, 2 workers, s", (*two, *plain, files), "clock"),
        Case("the same again, with nothing to do, s", (*two, *plain, files), "clock", again=True),
    ]  # fmt: skip


def run(case: Case, checkout: Path, folder: Path, endpoint: str | None) -> dict[str, float]:
    """What the command took, by its names, run by a checkout's code in `folder`."""
    out = folder / case.out
    if not case.again:
        shutil.rmtree(out, ignore_errors=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "NUMBA_CACHE_DIR": str(folder / "compiled"),
        "RAY_USAGE_STATS_ENABLED": "0",
        **({**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint} if endpoint else {}),
    }
    places = {WIDE: str(folder / WIDE), SHARDS: str(out / "shards")}
    arguments = [places.get(argument, argument) for argument in case.arguments]
    command = [sys.executable, "-m", "pretok", *arguments, "--out", str(out)]
    if case.script:
        command = [sys.executable, str(Path(__file__).with_name(case.script)), *arguments]
    began = time.perf_counter()
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, cwd=checkout, env=environment, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(folder / 'said').read_text(errors='replace')[-2000:]}")
    passed = time.perf_counter() - began
    if case.out == COUNTED and not (folder / WIDE).exists():
        # In a process of its own, as a command's peak counts what the process held that started it.
        fresh(widen, out / "counts", folder / WIDE, WORDS)
    took = {"clock": passed, "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1e3}
    return {name: took[what] for name, what in ((case.name, case.what), case.also) if name}


def compare(
    inputs: Inputs, old: Path, folder: Path, runs: int, endpoint: str | None, only: str
) -> dict[str, dict[str, float]]:
    """Name of a case -> what it took `before` and `now`."""
    checkouts = {"before": old.resolve(), "now": Path(__file__).resolve().parents[1]}
    known = cases(inputs, folder, endpoint)
    chosen = [case for case in known if only in case.name]
    if not chosen:
        sys.exit(f"no case has {only!r} in its name")
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(runs + 1):
        for which, checkout in sorted(checkouts.items(), reverse=turn % 2 == 1):
            (folder / which).mkdir(exist_ok=True)
            for case in chosen:
                for name, took in run(case, checkout, folder / which, endpoint).items():
                    print(f"{turn}/{runs} {which:6} {name}: {took:.2f}", flush=True)
                    if turn:
                        found.setdefault(name, {}).setdefault(which, []).append(took)
    return {
        name: {which: statistics.median(values) for which, values in both.items()}
        for name, both in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="measure the cases that have this in their name")
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
        bucket = inputs.folder / "bucket"
        bucket.mkdir(exist_ok=True)
        with server(bucket) if find_spec("s3fs") else nullcontext() as endpoint:
            measured = compare(
                inputs, arguments.old, Path(temporary), arguments.runs, endpoint, arguments.only
            )
        if arguments.only:
            measured = load_results()["versus"]["seconds"] | measured
        save("versus", {"commit": commit.stdout.strip(), "seconds": measured})
    write_report()


if __name__ == "__main__":
    main()
