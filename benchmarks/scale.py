"""A long job: whether speed and memory stay as they are however many words it meets.

Input: the corpus, over and over. In each pass a third of the documents are written in another alphabet, so that new
words never end: 20 million in 15 GB. Output: MB/s by quarter of the job, MB per second of a processor, the memory of
the driver and of a worker; with two workers, start-up aside.
"""

from __future__ import annotations

import os
import random
import shutil
import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from benchmarks.end_to_end import recipe_of, tiny_files
from benchmarks.inputs import LANGUAGES, Inputs
from benchmarks.measure import Row, Table, fresh, timed
from pretok.base.console import NO_CONSOLE, Console
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.shards.manifest import load_manifest
from pretok.shards.tokenize_job import run_tokenize

WORKERS, FILE_BYTES, VARIED = 2, 32_000_000, 3
"""Workers, bytes of text in a file, and the share of documents with new words: one in so many."""


def varied(inputs: Inputs) -> Iterator[str]:
    """Documents without end. Each pass has letters of its own for a third of them, another third each time."""
    texts = [text.encode() for name in LANGUAGES for text in inputs.texts(name)]
    random.Random(0).shuffle(texts)
    number, letters = 0, [*string.ascii_lowercase]
    while True:
        random.Random(number).shuffle(letters)
        alphabet = bytes.maketrans(string.ascii_lowercase.encode(), "".join(letters).encode())
        for at, text in enumerate(texts):
            yield (text if number == 0 or (at + number) % VARIED else text.translate(alphabet)).decode()
        number += 1


def write_inputs(inputs: Inputs, folder: Path, total: int) -> None:
    """Write files of FILE_BYTES of text, compressed."""
    folder.mkdir()
    documents, size = varied(inputs), 0
    for number in range(-(-total // FILE_BYTES)):
        stop = min(total, (number + 1) * FILE_BYTES)
        with zstandard.open(folder / f"{number:05}.jsonl.zst", "wb", zstandard.ZstdCompressor(1)) as file:
            while size < stop:
                line = msgspec.json.encode({"text": next(documents)})
                size += len(line)
                file.write(line + b"\n")


class _Tasks(Console):
    """Keeps when each partition was done."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = dict[str, float]()

    def event(self, name: str, /, **details: Any) -> None:
        if name == "task":
            self.ends[details["item"]] = time.perf_counter()


def processes_below(pid: int) -> Iterator[int]:
    """The processes that a process started, and those that they did."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text(encoding="ascii").split()):
            yield child
            yield from processes_below(child)


def run_scale(folder: Path, tiny: list[str], vocab: Path, out: Path) -> Row:
    """Tokenize the files of a folder."""
    with StopFlag() as stop, Engine(WORKERS, None, stop) as engine:
        warm = recipe_of({f"w{k}": [path] for k, path in enumerate(tiny)}, vocab, out)
        run_tokenize(warm, engine, NO_CONSOLE)
        recipe, console = recipe_of({"scale": [str(folder)]}, vocab, out), _Tasks()
        began = time.perf_counter()
        spent, _ = timed(lambda: run_tokenize(recipe, engine, console))
        below = [*processes_below(os.getpid())]
        ticks = [Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[13:15] for pid in below]
        seconds = sum(int(tick) for both in ticks for tick in both) / os.sysconf("SC_CLK_TCK")
        peaks = {pid: peak_bytes(pid) for pid in (os.getpid(), *below)}
    size = {shard.prefix.name: shard.text_bytes for shard in load_manifest(recipe.shards_dir).of("scale")}
    shutil.rmtree(out)
    order = sorted(console.ends, key=console.ends.__getitem__)
    total = sum(size.values())
    row, done, quarter, since = Row(), 0, 1, (began, 0)
    for item in order:
        done += size.get(item, 0)
        if done >= quarter * total / 4:
            row[f"MB/s, quarter {quarter}"] = (done - since[1]) / 1e6 / (console.ends[item] - since[0])
            since, quarter = (console.ends[item], done), quarter + 1
    row["MB per processor second"] = total / 1e6 / (seconds + spent["CPU s"])
    row["driver's peak MB"] = peaks.pop(os.getpid()) / 1e6
    row["worker's peak MB"] = max(peaks.values()) / 1e6
    return row


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def measure(inputs: Inputs) -> Table:
    """A job and one of a tenth of it, once: they are long."""
    folder, tiny, table = inputs.folder / "scale", tiny_files(inputs.folder, WORKERS), Table()
    for part in (10, 1):
        total = inputs.scaled(round(inputs.gigabytes * 1e9 / part))
        write_inputs(inputs, folder, total)
        table[f"{total / 1e9:.3g} GB"] = fresh(run_scale, folder, tiny, inputs.vocab, inputs.folder / "out")
        shutil.rmtree(folder)
    return table
