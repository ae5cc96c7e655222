"""Each part of tokenization alone, on one core; and the limit that their sum sets.

Input: compressed JSON Lines. Output: MB/s of text by part. Every part handles the same batches in the same order as the
pipeline does, with the pipeline's own functions and a tokenizer whose word cache starts empty. CPU seconds of the one
thread that works, so that other work on the machine counts little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, fresh, medians


def run_parts(paths: list[str], tokenizer: Path, output: Path) -> Row:
    """MB/s of text of each part over the files, and of all in a row."""
    import numpy as np

    from pretok.base.texts import from_buffers
    from pretok.base.tree import Tree
    from pretok.read.batches import hash_texts
    from pretok.read.files import in_file
    from pretok.read.fill import fill_from
    from pretok.read.formats.json_parser import parse_lines
    from pretok.read.readers import BATCH_BYTES
    from pretok.read.record_format import RecordFormat
    from pretok.read.whole_records import whole_records
    from pretok.tokenizer.encoder import Encoder
    from pretok.tokenizer.vocabulary import load_vocab

    encoder = Encoder(load_vocab(tokenizer))
    tree, size, seconds = Tree(), 0, dict[str, float]()

    def clock(name: str, function: Callable[..., Any], *args: Any) -> Any:
        began = time.thread_time()
        result = function(*args)
        seconds[name] = seconds.get(name, 0) + time.thread_time() - began
        return result

    with output.open("wb", buffering=0) as file:
        for path in paths:
            fill = partial(clock, "decompress", fill_from(in_file(str(path)), "zstd"))
            spans = whole_records(fill, b"\n", RecordFormat().max_line, BATCH_BYTES)
            while span := clock("regroup", next, spans, None):
                data, offsets, *_ = clock("parse", parse_lines, np.frombuffer(span, np.uint8), "text")
                texts = from_buffers(data, offsets)
                clock("check UTF-8", lambda texts: texts.validate(full=True), texts)
                clock("hash texts", hash_texts, texts)
                tokens, _ = clock("encode", encoder.encode, texts)
                raw = tokens.view(np.uint8).data
                clock("SHA-256 tree", tree.update, raw)
                clock("write", file.write, raw)
                size += len(data)
    seconds["regroup"] -= seconds["decompress"]  # which it calls
    seconds["all"] = sum(seconds.values())
    return {name: size / 1e6 / took for name, took in seconds.items()}


def measure(inputs: Inputs) -> Table:
    """A row for each part."""
    paths = [path for paths in inputs.zst.values() for path in paths]
    tokenizer, output = inputs.vocab / "tokenizer.json", inputs.folder / "parts.bin"
    speeds = medians([fresh(run_parts, paths, tokenizer, output) for _ in range(inputs.runs)])
    return {name: {"MB/s": speed} for name, speed in speeds.items()}
