"""What others make of the same documents with the same tokenizer.json on the same cores.

Input: the corpus, or a slice of it for slow programs. Output: MB/s of text. Imports and loading are left out: of the
programs that start their own workers by running them on a sixth of the slice as well and taking the difference.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians, timed

EOD = "<|endoftext|>"


def gigatoken_in_memory(paths: list[str], tokenizer: Path, threads: int) -> float:
    """Seconds to encode all texts, read before into one Arrow array; the ids go nowhere."""
    import awkward as ak
    import gigatoken
    import pyarrow as pa

    from pretok.read.partition import Piece
    from pretok.read.readers import RecordFormat, read_piece
    from pretok.read.recognise import list_inputs

    files, _ = list_inputs(paths, "auto")
    texts = [batch.texts for file in files for batch in read_piece(Piece(file), 0, RecordFormat())]
    strings = ak.from_arrow(pa.concat_arrays(texts))
    engine = gigatoken.Tokenizer.from_json(_without_added_tokens(tokenizer))
    seconds, _ = timed(lambda: engine.encode_batch(strings, parallel=threads > 1))
    return seconds


def _without_added_tokens(tokenizer: Path) -> str:
    return json.dumps({**json.loads(tokenizer.read_text(encoding="utf-8")), "added_tokens": []})


def whole_file(plain: Path, tokenizer: Path, output: Path) -> float:
    """Seconds of what Megatron-LM's preprocess_data_fast.py does, with all threads: gigatoken reads one uncompressed
    file whole, an EOD joins each document, megatron-core's builder writes them."""
    import awkward as ak
    import gigatoken
    import numpy as np
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    engine = gigatoken.Tokenizer.from_json(_without_added_tokens(tokenizer))
    added = json.loads(tokenizer.read_text(encoding="utf-8"))["added_tokens"]
    eod = next(token["id"] for token in added if token["content"] == EOD)

    def work() -> None:
        documents = engine.encode_files(gigatoken.JsonlFileSource([str(plain)], field="text"), parallel=True)
        ends = ak.singletons(ak.Array(np.full(len(documents), eod, np.uint32)))
        documents = ak.concatenate([documents, ends], axis=1)
        builder = IndexedDatasetBuilder(str(output) + ".bin", dtype=DType.optimal_dtype(engine.vocab_size))
        for document in documents:
            builder.add_document(np.asarray(document), [len(document)])
        builder.finalize(str(output) + ".idx")

    seconds, _ = timed(work)
    for suffix in (".bin", ".idx"):
        output.with_name(output.name + suffix).unlink()
    return seconds


def datatrove(folder: Path, tokenizer: Path, output: Path) -> float:
    """Seconds of JsonlReader and DocumentTokenizer, two tasks in two processes."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    tokens = DocumentTokenizer(
        str(output / "tokens"),
        str(tokenizer),
        eos_token=EOD,
        shuffle_documents=False,
        save_final_metadata=False,
    )
    executor = LocalPipelineExecutor(
        [JsonlReader(str(folder)), tokens], tasks=2, workers=2, logging_dir=str(output / "logs")
    )
    seconds, _ = timed(executor.run)
    shutil.rmtree(output)
    return seconds


def datasets_map(folder: Path, tokenizer: Path, output: Path) -> float:
    """Seconds of datasets.map over batches with `tokenizers`, two processes, result saved as Arrow."""
    from datasets import load_dataset

    data = load_dataset("json", data_files=str(folder / "*.jsonl"), split="train", cache_dir=str(output))

    def work() -> None:
        encode = _Encode(str(tokenizer))
        data.map(
            encode, batched=True, num_proc=2, remove_columns=data.column_names, load_from_cache_file=False
        )

    seconds, _ = timed(work)
    shutil.rmtree(output)
    return seconds


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


def _sixth(inputs: Inputs) -> tuple[Path, int]:
    """The first sixth of each file of the slice, and its bytes of text."""
    folder = inputs.folder / "sixth"
    folder.mkdir(exist_ok=True)
    size = 0
    for path in inputs.slices:
        lines = path.read_bytes().splitlines(keepends=True)
        kept, wanted = bytearray(), path.stat().st_size / 6
        for line in lines:
            if len(kept) < wanted:
                kept += line
                size += len(json.loads(line)["text"].encode())
        (folder / path.name).write_bytes(kept)
    return folder, size


def measure_peers(inputs: Inputs, runs: int) -> dict[str, Any]:
    """MB/s of each."""
    tokenizer, folder = inputs.vocab / "tokenizer.json", inputs.folder
    paths = [path for paths in inputs.zst.values() for path in paths]
    total = inputs.text_bytes / 1e6
    results: list[dict[str, float]] = []
    for _ in range(runs):
        result = {}
        for threads in (1, 2):
            env = {"RAYON_NUM_THREADS": str(threads)}
            seconds = fresh(gigatoken_in_memory, paths, tokenizer, threads, env=env)
            result[f"gigatoken_in_memory_{threads}_threads"] = total / seconds
        result["gigatoken_whole_file_and_builder"] = total / fresh(
            whole_file, inputs.plain, tokenizer, folder / "whole", env={"RAYON_NUM_THREADS": "2"}
        )
        results.append(result)
    slow = {}
    sixth, sixth_bytes = _sixth(inputs)
    megabytes = (inputs.slice_bytes - sixth_bytes) / 1e6
    env = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    for function in (datatrove, datasets_map):
        output = folder / function.__name__
        less = fresh(function, sixth, tokenizer, output, env=env, quiet=True)
        more = fresh(function, inputs.slices[0].parent, tokenizer, output, env=env, quiet=True)
        slow[f"{function.__name__}_2_processes"] = megabytes / (more - less)
    return {**medians(results), **slow, "slice_mb": inputs.slice_bytes / 1e6}
