"""Each part of tokenization alone, on one core; and the limit that their sum sets.

Input: compressed JSON Lines. Output: seconds by part. Every part handles the same batches in the same order as the
pipeline does, with the pipeline's own functions and a tokenizer whose word cache starts cold. CPU seconds of the one
thread that works, so that other work on the machine counts little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, fresh_pair, medians

PARTS = ("decompress", "regroup", "parse", "check UTF-8", "encode", "write", "checksum")


class Clock:
    """CPU seconds of this thread by name."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def __call__(self, name: str, function: Callable[[], Any]) -> Any:
        began = time.thread_time()
        result = function()
        self.seconds[name] += time.thread_time() - began
        return result


def run_parts(paths: list[str], tokenizer: Path, output: Path) -> dict[str, float]:
    """CPU seconds of each part over the files, and `bytes` of text."""
    import numpy as np
    import xxhash

    from pretok.read.batches import from_buffers
    from pretok.read.files import read_bytes
    from pretok.read.jsonl import parse_lines
    from pretok.read.readers import BATCH_BYTES, RecordFormat
    from pretok.read.spans import whole_records
    from pretok.tokenizer.encoder import Encoder

    encoder = Encoder(tokenizer.read_text(encoding="utf-8"), 0, 50_000)
    clock, digest, size = Clock(), xxhash.xxh3_128(), 0
    with output.open("wb", buffering=0) as file:
        for path in paths:
            blocks = clock("decompress", lambda path=path: list(read_bytes(path, "zstd")))
            spans = whole_records(iter(blocks), b"\n", RecordFormat().max_line, BATCH_BYTES)
            while span := clock("regroup", lambda spans=spans: next(spans, None)):
                lines = np.frombuffer(span, np.uint8)
                data, offsets, *_ = clock("parse", lambda lines=lines: parse_lines(lines, "text"))
                texts = from_buffers(data, offsets)
                clock("check UTF-8", lambda texts=texts: texts.validate(full=True))
                tokens, _ = clock("encode", lambda texts=texts: encoder.encode(texts))
                raw = tokens.view(np.uint8).data
                clock("checksum", lambda raw=raw: digest.update(raw))
                clock("write", lambda raw=raw: file.write(raw))
                size += len(data)
    output.unlink()
    return {**clock.seconds, "bytes": float(size)}


def _speeds(seconds: dict[str, float]) -> dict[str, float]:
    total = sum(seconds[name] for name in PARTS)
    return {
        **{name: seconds["bytes"] / 1e6 / seconds[name] for name in PARTS},
        "all": seconds["bytes"] / 1e6 / total,
    }


def measure_parts(inputs: Inputs, runs: int) -> dict[str, Any]:
    """MB/s of text of each part, and of all in a row: on one core, and on two with half of the files each."""
    paths = [Path(path) for paths in inputs.zst.values() for path in paths]
    paths.sort(key=lambda path: -path.stat().st_size)
    halves: list[list[str]] = [[], []]
    weights = [0, 0]
    for path in paths:
        lighter = weights.index(min(weights))
        halves[lighter].append(str(path))
        weights[lighter] += path.stat().st_size
    tokenizer, output = inputs.vocab / "tokenizer.json", inputs.folder
    one, two = [], []
    for _ in range(runs):
        one.append(_speeds(fresh(run_parts, [*map(str, paths)], tokenizer, output / "parts.bin")))
        pair = fresh_pair(
            run_parts, (halves[0], tokenizer, output / "0.bin"), (halves[1], tokenizer, output / "1.bin")
        )
        slowest = max(sum(seconds[name] for name in PARTS) for seconds in pair)
        two.append({"all": sum(seconds["bytes"] for seconds in pair) / 1e6 / slowest})
    return {
        "parts_mb_s": medians(one),
        "limit_one_core": medians(one)["all"],
        "limit_two_cores": medians(two)["all"],
    }
