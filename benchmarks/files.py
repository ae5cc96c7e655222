"""Many small files: what planning, recognising and naming each of them costs.

Input: documents of the corpus, or pieces of them as long as a short page, three a file. Output: seconds from the list
of files to sealed shards with two workers, start-up aside, the driver's CPU seconds in it, the seconds of the same
again with nothing to do, and the size of manifest and table of inputs.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import recipe_of, tiny_files, warm_up
from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians

FILES, SHORT_FILES = 20_000, 100_000
DOCUMENTS = 3
SHORT = 800
"""Characters of a short document."""
FOLDER = 1000
"""Files in a folder."""


def write_files(slices: list[Path], folder: Path, files: int, *, short: bool = False) -> None:
    """The lines of the slices, or short pieces of their texts, over and over, so many a file."""
    whole = [line for path in slices for line in path.read_bytes().splitlines(keepends=True)]
    lines = itertools.cycle([piece for line in whole for piece in _pieces(line)] if short else whole)
    for number in range(files):
        inside = folder / f"{number // FOLDER:03d}"
        inside.mkdir(parents=True, exist_ok=True)
        (inside / f"{number:06d}.jsonl").write_bytes(b"".join(itertools.islice(lines, DOCUMENTS)))


def _pieces(line: bytes) -> Iterator[bytes]:
    text = json.loads(line)["text"]
    for at in range(0, len(text), SHORT):
        yield json.dumps({"text": text[at : at + SHORT]}, ensure_ascii=False).encode() + b"\n"


def run_files(folder: Path, vocab: Path, out: Path, workers: int) -> dict[str, float]:
    """Tokenize all files of `folder`, then the same again."""
    from pretok.base.console import SILENT
    from pretok.base.execute import Engine
    from pretok.base.stop import StopFlag
    from pretok.shards.inputs import load_inputs
    from pretok.shards.job import run_tokenize
    from pretok.shards.manifest import FILE_NAME, inputs_name, load_manifest

    with StopFlag() as stop, Engine(workers, None, stop) as engine:
        warm_up(engine, tiny_files(out.parent, workers), vocab, out.parent)
        recipe = recipe_of({"files": [str(folder / "*" / "*.jsonl")]}, vocab, out)
        seconds, cpu = [], []
        for _ in range(2):
            began, used = time.perf_counter(), time.process_time()
            run_tokenize(recipe, engine, SILENT)
            seconds.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
    files = len(load_inputs(load_manifest(recipe.shards_dir), "files").inputs)
    listed = (recipe.shards_dir / FILE_NAME, recipe.shards_dir / inputs_name("files"))
    found = {
        "files a second": files / seconds[0],
        "s": seconds[0],
        "s of the driver's CPU time": cpu[0],
        "s again, with nothing to do": seconds[1],
        "manifest and table of inputs, bytes a file": sum(path.stat().st_size for path in listed) / files,
    }
    shutil.rmtree(out)
    return found


def measure_files(inputs: Inputs, runs: int) -> dict[str, Any]:
    """Files of whole documents, and more files of short ones, medians."""
    found = {}
    for name, files in (("small-files", FILES), ("short-files", SHORT_FILES)):
        folder = inputs.folder / name
        if not folder.exists():
            write_files(inputs.slices, folder, files, short=files == SHORT_FILES)
        size = sum(path.stat().st_size for path in folder.rglob("*.jsonl")) / files
        took = [fresh(run_files, folder, inputs.vocab, inputs.folder / "files-out", 2) for _ in range(runs)]
        found |= {f"{files:,} of {size / 1e3:.1f} KB: {what}": value for what, value in medians(took).items()}
    return found
