"""Many small files: what planning, recognising and naming each of them costs.

Input: documents of the corpus, or pieces of them as long as a short page, three a file. Output: from the list of files
to sealed shards with two workers, start-up aside, and the same again with nothing to do. Of fewer files also the whole
command, where opening each takes some ms longer, as on a parallel file system or a server.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.end_to_end import run_job, tiny_files
from benchmarks.inputs import SLICE, Inputs
from benchmarks.measure import Row, Table, fresh, in_turns, timed

DOCUMENTS, FOLDER = 3, 1000
"""Documents in a file, files in a folder."""
SHORT = 800
"""Characters of a short document."""

SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    if (strstr(path, getenv("SLOW_UNDER"))) usleep(atoi(getenv("SLOW_US")));
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64"))(path, flags, va_arg(rest, int));
}
"""
"""A library in C under which opening a file of a folder takes some microseconds longer."""


def write_files(slice_: Path, folder: Path, files: int, short: bool) -> None:
    """The lines of the slice, or short pieces of their texts, over and over."""
    lines = [line for path in slice_.iterdir() for line in path.read_bytes().splitlines(keepends=True)]
    if short:
        texts = [json.loads(line)["text"] for line in lines]
        pieces = [text[at : at + SHORT] for text in texts for at in range(0, len(text), SHORT)]
        lines = [json.dumps({"text": piece}, ensure_ascii=False).encode() + b"\n" for piece in pieces]
    endless = itertools.cycle(lines)
    for number in range(files):
        inside = folder / f"{number // FOLDER:03d}"
        inside.mkdir(parents=True, exist_ok=True)
        (inside / f"{number:06d}.jsonl").write_bytes(b"".join(itertools.islice(endless, DOCUMENTS)))


def measure(inputs: Inputs) -> Table:
    """Files of whole documents, and more files of short ones."""
    tiny, cases = tiny_files(inputs.folder, 2), {}
    for files, short in ((inputs.scaled(20_000), False), (inputs.scaled(100_000), True)):
        folder = inputs.folder / f"files-{files}"
        write_files(inputs.slice(SLICE), folder, files, short)
        size = sum(path.stat().st_size for path in folder.rglob("*.jsonl")) / files

        def case(folder: Path = folder, files: int = files) -> Row:
            sources = {"files": [str(folder / "*" / "*.jsonl")]}
            row = fresh(run_job, sources, tiny, inputs.vocab, inputs.folder)
            return {"files/s": files / row["s"], **{key: row[key] for key in list(row)[1:4]}}

        cases[f"{files:,} of {size / 1e3:.1f} KB"] = case
    files, folder = inputs.scaled(4000), inputs.folder / "files-slow"
    write_files(inputs.slice(SLICE), folder, files, short=True)
    for milliseconds in (0, 1, 5):
        whole = partial(run_slowly, folder, milliseconds, inputs)
        cases[f"{files:,}, the whole command, {milliseconds} ms an open"] = whole
    table = in_turns(cases, inputs.runs)
    for folder in inputs.folder.glob("files-*"):
        shutil.rmtree(folder)
    return table


def run_slowly(folder: Path, milliseconds: int, inputs: Inputs) -> Row:
    """Tokenize the files of a folder by the command, with a delay under each open."""
    library, out = inputs.folder / "slow.so", inputs.folder / "out"
    if not library.exists():
        compiler = ["cc", "-x", "c", "-shared", "-fPIC", "-o", str(library), "-", "-ldl"]
        subprocess.run(compiler, input=SLOW.encode(), check=True)
    slow = {"LD_PRELOAD": str(library), "SLOW_UNDER": str(folder), "SLOW_US": str(1000 * milliseconds)}
    command = [
        sys.executable,
        "-m",
        "pretok",
        "--quiet",
        "tokenize",
        f"files={folder}/*/*.jsonl",
        "--workers",
        "2",
    ]
    command += ["--vocab", str(inputs.vocab), "--out", str(out)]
    spent, _ = timed(
        partial(subprocess.run, command, check=True, env=os.environ | slow, stdout=subprocess.DEVNULL)
    )
    shutil.rmtree(out)
    return {"s": spent["s"]}
