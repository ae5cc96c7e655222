"""Many small files: what planning, recognising and naming each of them costs.

Enters: documents of the corpus, three a file. Leaves: seconds from the list of files to sealed shards with two workers,
start-up aside, the driver's CPU seconds in it, the seconds of the same command again with nothing to do, and the size
of manifest and table of inputs.
"""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import recipe_of, tiny_files, warm_up
from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians

FILES = 20_000
DOCUMENTS = 3
FOLDER = 1000
"""Files in a folder."""


def write_files(slices: list[Path], folder: Path, files: int) -> None:
    """The lines of the slices, over and over, so many a file."""
    lines = itertools.cycle([line for path in slices for line in path.read_bytes().splitlines(keepends=True)])
    for number in range(files):
        inside = folder / f"{number // FOLDER:03d}"
        inside.mkdir(parents=True, exist_ok=True)
        (inside / f"{number:06d}.jsonl").write_bytes(b"".join(itertools.islice(lines, DOCUMENTS)))


def run_files(folder: Path, vocab: Path, out: Path, workers: int) -> dict[str, float]:
    """Tokenize all files of `folder`, then the same again."""
    from pretok.base.execute import Engine
    from pretok.base.stop import StopFlag
    from pretok.base.tell import SILENT
    from pretok.shards.inputs import count_files, inputs_path
    from pretok.shards.job import run_tokenize
    from pretok.shards.manifest import FILE_NAME, load_manifest

    with StopFlag() as stop, Engine(workers, None, stop) as engine:
        warm_up(engine, tiny_files(out.parent, workers), vocab, out.parent)
        recipe = recipe_of({"files": [str(folder / "*" / "*.jsonl")]}, vocab, out)
        seconds, cpu = [], []
        for _ in range(2):
            began, used = time.perf_counter(), time.process_time()
            run_tokenize(recipe, engine, SILENT)
            seconds.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
    files = count_files(recipe.shards_dir, load_manifest(recipe.shards_dir).contents, "files")
    listed = (recipe.shards_dir / FILE_NAME, inputs_path(recipe.shards_dir, "files"))
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
    """FILES files, medians."""
    folder = inputs.folder / "small-files"
    if not folder.exists():
        write_files(inputs.slices, folder, FILES)
    return medians(
        [fresh(run_files, folder, inputs.vocab, inputs.folder / "files-out", 2) for _ in range(runs)]
    )
