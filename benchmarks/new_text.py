"""How fast text is encoded that was not seen before: the word cache of a tokenizer flatters text that repeats.

Enters: the corpus, every document once, in an order by chance, and a tokenizer whose cache is cold. Leaves: MB/s of
CPU time of each tenth of it, one after the other, and of all of it once more. The last tenth is what a larger corpus of
such text is encoded at, or a little less; the second time is what a benchmark measures that repeats its text.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians

TENTHS = 10
BATCH_BYTES = 4 << 20
"""Of text at once, as the pipeline encodes it."""


def run_new_text(paths: list[str], tokenizer: Path) -> dict[str, float]:
    """MB/s by the tenth of the text, and `again`."""
    import pyarrow as pa

    from benchmarks.inputs import texts_of
    from pretok.tokenizer.encoder import Encoder

    texts = [text for path in paths for text in texts_of(Path(path))]
    random.Random(0).shuffle(texts)
    batches: list[list[str]] = [[]]
    held = 0
    for text in texts:
        if held >= BATCH_BYTES:
            batches.append([])
            held = 0
        batches[-1].append(text)
        held += len(text.encode())
    arrays = [pa.array(batch, pa.large_string()) for batch in batches]
    encoder = Encoder(tokenizer.read_text(encoding="utf-8"), 0, 50_000)
    encoder.encode(arrays[0].slice(0, 1))  # compiled code is loaded, the cache stays cold
    tenths = [arrays[len(arrays) * k // TENTHS : len(arrays) * (k + 1) // TENTHS] for k in range(TENTHS)]
    speeds = {f"{k * 10} to {k * 10 + 10} %": _speed(encoder, part) for k, part in enumerate(tenths)}
    return {**speeds, "again": _speed(encoder, arrays)}


def _speed(encoder: Any, arrays: list[Any]) -> float:
    began = time.thread_time()
    for array in arrays:
        encoder.encode(array)
    size = sum(array.buffers()[2].size for array in arrays)
    return size / 1e6 / (time.thread_time() - began)


def measure_new_text(inputs: Inputs, runs: int) -> dict[str, Any]:
    """MB/s on one core of each tenth of the corpus, every document once, and of all of it again."""
    paths = [path for files in inputs.zst.values() for path in files]
    return medians([fresh(run_new_text, paths, inputs.vocab / "tokenizer.json") for _ in range(runs)])
