"""Many small files: what planning, recognising and naming each of them costs.

Input: documents of the corpus, or pieces of them as long as a short page, three a file. Output: from the list of files
to sealed shards with two workers, start-up aside, and the same again with nothing to do.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

from benchmarks.end_to_end import run_job, tiny_files
from benchmarks.inputs import SLICE, Inputs
from benchmarks.measure import Row, Table, fresh, in_turns

DOCUMENTS, FOLDER = 3, 1000
"""Documents in a file, files in a folder."""
SHORT = 800
"""Characters of a short document."""


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
    table = in_turns(cases, inputs.runs)
    for folder in inputs.folder.glob("files-*"):
        shutil.rmtree(folder)
    return table
