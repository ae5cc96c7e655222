"""What others make of the same documents with the same tokenizer.json on the same cores.

Input: the corpus, or a slice of it for slow programs. Output: MB/s of text. Imports and loading are left out: for the
programs that start their own workers by running them on a sixth of the slice as well and taking the difference. What is
not installed is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.end_to_end import run_job, tiny_files
from benchmarks.inputs import SLICE, Inputs, text_bytes
from benchmarks.measure import Row, Table, fresh, in_turns, timed

EOD = "<|endoftext|>"


def _engine(tokenizer: Path) -> Any:
    """gigatoken with a tokenizer that finds no special tokens in text."""
    import gigatoken

    data = {**json.loads(tokenizer.read_text(encoding="utf-8")), "added_tokens": []}
    return gigatoken.Tokenizer.from_json(json.dumps(data))


def gigatoken_in_memory(plain: Path, tokenizer: Path) -> float:
    """Seconds to encode all texts, read before into one Arrow array, with all threads; the ids go nowhere."""
    import awkward as ak
    import pyarrow as pa

    strings = ak.from_arrow(
        pa.array([json.loads(line)["text"] for line in plain.open("rb")], pa.large_string())
    )
    engine = _engine(tokenizer)
    return timed(lambda: engine.encode_batch(strings, parallel=True))[0]["s"]


def whole_file(plain: Path, tokenizer: Path, output: Path) -> float:
    """Seconds of what Megatron-LM's preprocess_data_fast.py does, with all threads: gigatoken reads one uncompressed
    file whole, an EOD joins each document, the builder writes them: in bulk, or one by one before version 0.17."""
    if checkout := os.environ.get("MEGATRON_LM"):
        for name in (
            "megatron",
            "megatron.core",
            "megatron.core.datasets",
        ):  # whose __init__ import CUDA's packages
            package = sys.modules[name] = ModuleType(name)
            package.__path__ = [str(Path(checkout, *name.split(".")))]
        import_module(
            "megatron.core.parallel_state"
        )  # first, as megatron.core would: others import it in a circle
    import awkward as ak
    import gigatoken
    import numpy as np
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    engine = _engine(tokenizer)
    added = json.loads(tokenizer.read_text(encoding="utf-8"))["added_tokens"]
    eod = next(token["id"] for token in added if token["content"] == EOD)

    def work() -> None:
        documents = engine.encode_files(gigatoken.JsonlFileSource([str(plain)], field="text"), parallel=True)
        builder = IndexedDatasetBuilder(f"{output}.bin", dtype=DType.optimal_dtype(engine.vocab_size))
        if hasattr(builder, "add_documents"):
            builder.add_documents(documents, eod_token=eod)
        else:
            ends = ak.singletons(ak.Array(np.full(len(documents), eod, np.uint32)))
            for document in ak.concatenate([documents, ends], axis=1):
                builder.add_document(np.asarray(document), [len(document)])
        builder.finalize(f"{output}.idx")

    return timed(work)[0]["s"]


def datatrove(folder: Path, tokenizer: Path, output: Path) -> float:
    """Seconds of JsonlReader and DocumentTokenizer, two tasks in two processes."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    options = {"eos_token": EOD, "shuffle_documents": False, "save_final_metadata": False}
    steps = [JsonlReader(str(folder)), DocumentTokenizer(str(output / "tokens"), str(tokenizer), **options)]
    executor = LocalPipelineExecutor(steps, tasks=2, workers=2, logging_dir=str(output / "logs"))
    return timed(executor.run)[0]["s"]


def datasets_map(folder: Path, tokenizer: Path, output: Path) -> float:
    """Seconds of datasets.map over batches with `tokenizers`, two processes, result saved as Arrow."""
    from datasets import load_dataset

    data = load_dataset("json", data_files=str(folder / "*.jsonl"), split="train", cache_dir=str(output))
    options = {"batched": True, "num_proc": 2, "load_from_cache_file": False}
    encode = _Encode(str(tokenizer))
    return timed(lambda: data.map(encode, remove_columns=data.column_names, **options))[0]["s"]


class _Encode:
    """Batch of rows -> batch of ids; loads its tokenizer in each process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._tokenizer: Any = None

    def __call__(self, rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(self._path)
        eod = self._tokenizer.token_to_id(EOD)
        encodings = self._tokenizer.encode_batch_fast(rows["text"], add_special_tokens=False)
        return {"ids": [[*encoding.ids, eod] for encoding in encodings]}


def measure(inputs: Inputs) -> Table:
    """pretok and each of the others in turns."""
    tokenizer, output, tiny = (
        inputs.vocab / "tokenizer.json",
        inputs.folder / "peer",
        tiny_files(inputs.folder, 2),
    )
    plain, small, large = inputs.plain, inputs.slice(6 * SLICE), inputs.slice(SLICE)
    megabytes = text_bytes(plain) / 1e6
    difference = (text_bytes(*large.iterdir()) - text_bytes(*small.iterdir())) / 1e6
    two = {"RAYON_NUM_THREADS": "2"}
    alone = {
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }

    def slow(function: Any) -> Row:
        seconds = []
        for folder in (small, large):
            seconds.append(fresh(function, folder, tokenizer, output, env=alone, quiet=True))
            shutil.rmtree(output)
        return {"MB/s": difference / (seconds[1] - seconds[0])}

    cases = {
        "pretok tokenize, 2 workers, from .jsonl.zst": lambda: {
            "MB/s": fresh(run_job, inputs.zst, tiny, inputs.vocab, inputs.folder)["MB/s"]
        },
        "gigatoken, 2 threads, text and ids in memory": lambda: {
            "MB/s": megabytes / fresh(gigatoken_in_memory, plain, tokenizer, env=two)
        },
    }
    if find_spec("megatron"):
        cases["gigatoken on a whole plain file + Megatron builder, 2 threads"] = lambda: {
            "MB/s": megabytes / fresh(whole_file, plain, tokenizer, output, env=two)
        }
    if find_spec("datasets"):
        cases["datasets.map + tokenizers, 2 processes"] = lambda: slow(datasets_map)
    if find_spec("datatrove"):
        cases["datatrove, 2 processes"] = lambda: slow(datatrove)
    table = in_turns(cases, inputs.runs)
    ours = next(iter(table.values()))["MB/s"]
    return {name: row | {"pretok is, times as fast": ours / row["MB/s"]} for name, row in table.items()}
