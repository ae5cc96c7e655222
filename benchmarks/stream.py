"""How fast a stream opens and reads, beside what other trainers do with the same tokens.

    python benchmarks/stream.py [--folder DIR] [--tokens 100000000] [--peer-tokens 20000000000]

1. A simulated corpus of 3 trillion tokens (sparse files of the true sizes, 2,000 shards, 12 sources): time and memory
   to open a mix of it, time to the first batch, random sequences a second from hot pages, all in a fresh process.
2. megatron-core's GPTDataset on `--peer-tokens` simulated tokens: time, memory and disk for its indices.
3. Tokens a second of one loader process on `--tokens` real tokens (sequence length 4096, shuffled), beside
   `datasets` with the numpy format. Needs torch and datasets.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from pretok.base.execute import peak_bytes

if TYPE_CHECKING:
    from pretok.shards.manifest import Shard

SEQ_LEN = 4096
SOURCES = 12
SHARDS = 2000
CORPUS_TOKENS = 3 * 10**12
DOCUMENT_TOKENS = 1000
BATCH = 1024


def sparse(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def shard_entry(source: str, number: int, tokens: int) -> Shard:
    from pretok.shards.manifest import Shard  # a fresh process measures how long this takes

    return Shard(
        path=f"{source}/{source}-{number:05d}.bin",
        source=source,
        split="train",
        tokens=tokens,
        documents=tokens // DOCUMENT_TOKENS,
        file_bytes=2 * tokens,
        text_bytes=0,
        root="0" * 64,
        index_root="0" * 64,
    )


def simulate_corpus(folder: Path) -> None:
    """2,000 shards of 1.5 billion tokens, more of them in some sources than in others, as sparse files."""
    from benchmarks.train_shards import bare_manifest
    from pretok.config import MixTable
    from pretok.shards.manifest import write_manifest
    from pretok.stream.mix_job import MixRequest, run_mix

    borders = np.cumsum(np.arange(1, SOURCES + 1)) * SHARDS // (SOURCES * (SOURCES + 1) // 2)
    owner = np.searchsorted(borders, np.arange(SHARDS), side="right")
    shards = [
        shard_entry(f"source-{number:02d}", at, CORPUS_TOKENS // SHARDS)
        for at, number in enumerate(owner.tolist())
    ]
    for shard in shards:
        sparse(folder / shard.path, shard.file_bytes)
    write_manifest(folder, bare_manifest(50_000, shards))
    run_mix(folder, folder / "mix.json", MixRequest(MixTable(seq_len=SEQ_LEN)))


def measure_open(folder: Path) -> dict[str, Any]:
    """Run in a fresh process: what a rank pays before its first step."""
    began = time.perf_counter()
    import pretok.stream

    imported = time.perf_counter()
    view = pretok.stream.open(folder, folder / "mix.json")
    opened = time.perf_counter()
    memory = peak_bytes() / 1e6
    view.batch(range(len(view) // 2, len(view) // 2 + 8))
    first = time.perf_counter()
    random = np.random.default_rng(0).integers(0, len(view), (8, BATCH))
    for positions in random:  # these pages become hot
        view.batch(positions, view.dtype)
    hot = []
    for _ in range(5):
        began_hot = time.perf_counter()
        for positions in random:
            view.batch(positions, view.dtype)
        hot.append(time.perf_counter() - began_hot)
    return {
        "sequences": len(view),
        "import_s": imported - began,
        "open_s": opened - imported,
        "memory_after_open_mb": memory,
        "first_batch_s": first - opened,
        "random_sequences_per_s": random.size / min(hot),
    }


def simulate_prefix(folder: Path, tokens: int) -> None:
    """One Megatron-LM prefix: a sparse .bin and a real .idx."""
    from pretok.shards.format import index_bytes

    sparse(folder / "flat.bin", 2 * tokens)
    lengths = np.full(tokens // DOCUMENT_TOKENS, DOCUMENT_TOKENS, np.int32)
    (folder / "flat.idx").write_bytes(index_bytes(lengths, np.dtype("<u2")))


def measure_megatron(folder: Path, tokens: int) -> dict[str, Any]:
    """Run in a fresh process: GPTDataset's document, sample and shuffle indices for one prefix."""
    import warnings

    warnings.simplefilter("ignore")
    import torch
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import Split

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    documents = tokens // DOCUMENT_TOKENS
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=SEQ_LEN,
        blend=([str(folder / "flat")], None),
        split="1,0,0",
        path_to_cache=str(folder / "cache"),
        tokenizer=SimpleNamespace(vocab_size=50_000, eod=0, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    before = peak_bytes() / 1e6
    began = time.perf_counter()
    low = GPTDataset.build_low_level_dataset(str(folder / "flat"), config)
    dataset = GPTDataset(
        low, str(folder / "flat"), np.arange(documents, dtype=np.int32), None, Split.train, config
    )
    seconds = time.perf_counter() - began
    cache = sum(path.stat().st_size for path in (folder / "cache").iterdir())
    index = (folder / "flat.idx").stat().st_size
    torch.distributed.destroy_process_group()
    return {
        "tokens": tokens,
        "samples": len(dataset),
        "build_s": seconds,
        "peak_memory_before_mb": before,
        "peak_memory_mb": peak_bytes() / 1e6,
        "index_files_mb": (cache + index) / 2**20,
    }


def write_tokens(folder: Path, tokens: int) -> None:
    """A real shard of random tokens, and the same sequences as a `datasets` folder."""
    import datasets
    import pyarrow as pa

    from benchmarks.train_shards import bare_manifest
    from pretok.shards.manifest import write_manifest

    data = np.random.default_rng(0).integers(1, 50_000, tokens, dtype=np.uint16)
    (folder / "it").mkdir(parents=True)
    data.tofile(folder / "it" / "it-00000.bin")
    write_manifest(folder, bare_manifest(50_000, [shard_entry("it", 0, tokens)]))
    rows = (tokens - 1) // SEQ_LEN
    starts = np.arange(rows)[:, None] * SEQ_LEN
    window = np.lib.stride_tricks.sliding_window_view(data, SEQ_LEN + 1)[starts[:, 0]].reshape(-1)
    column = pa.FixedSizeListArray.from_arrays(pa.array(window), SEQ_LEN + 1)
    datasets.Dataset(pa.table({"tokens": column})).save_to_disk(str(folder / "datasets"))


def rate(batches: Callable[[], Iterator[Any]], seconds: float = 5.0) -> float:
    """Tokens a second after one pass over 200 batches has warmed the pages."""
    for _ in zip(range(200), batches(), strict=False):
        pass
    began = time.perf_counter()
    tokens = 0
    while time.perf_counter() - began < seconds:
        for batch in batches():
            tokens += batch.shape[0] * (batch.shape[1] - 1)
            if time.perf_counter() - began > seconds:
                break
    return tokens / (time.perf_counter() - began)


def measure_loaders(folder: Path, tokens: int) -> dict[str, Any]:
    """One process, micro-batches of 8 and of 64 sequences, as int64 tensors, the same permuted order."""
    import datasets
    import torch

    import pretok.stream
    from pretok.stream.loader import PositionSampler

    datasets.disable_progress_bars()
    write_tokens(folder, tokens)
    view = pretok.stream.open(folder, seq_len=SEQ_LEN)
    rows = datasets.load_from_disk(str(folder / "datasets")).with_format("numpy")
    order = [view.origin(position)[2] for position in range(len(view))]
    np.testing.assert_array_equal(rows[order[:8]]["tokens"], view.batch(range(8)))
    result = {}
    for micro_batch in (8, 64):
        sampler = PositionSampler(len(view), global_batch=micro_batch, micro_batch=micro_batch)

        def ours(workers: int = 0, sampler: PositionSampler = sampler) -> Iterator[Any]:
            return iter(
                torch.utils.data.DataLoader(
                    view, batch_sampler=sampler, collate_fn=torch.from_numpy, num_workers=workers
                )
            )

        def theirs(sampler: PositionSampler = sampler) -> Iterator[Any]:
            for positions in sampler:
                batch = rows[[order[position] for position in positions]]["tokens"]
                yield torch.from_numpy(batch.astype(np.int64))

        result[f"pretok, micro-batch {micro_batch}"] = rate(ours)
        result[f"pretok, micro-batch {micro_batch}, one worker process"] = rate(lambda: ours(workers=1))
        result[f"datasets (numpy), micro-batch {micro_batch}"] = rate(theirs)
    return result


def in_fresh_process(function: Callable[..., dict[str, Any]], *arguments: str | int) -> dict[str, Any]:
    """Run a measurement of this file on its own, so that its memory is its own."""
    call = [sys.executable, __file__, "--measure", function.__name__, *map(str, arguments)]
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def show(title: str, result: dict[str, Any], unit: str = "") -> None:
    print(f"\n{title}")
    for name, value in result.items():
        text = f"{value:,.3f}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}"
        print(f"  {name:<50}{text:>18} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--peer-tokens", type=int, default=20_000_000_000)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        name, folder, *rest = options.measure
        print(json.dumps(globals()[name](Path(folder), *map(int, rest))))
        return
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        corpus, peer, loaders = (Path(temporary) / name for name in ("corpus", "peer", "loaders"))
        simulate_corpus(corpus)
        show("a mix of 3 trillion tokens, 2,000 shards", in_fresh_process(measure_open, str(corpus)))
        try:
            simulate_prefix(peer, options.peer_tokens)
            show(
                "megatron-core GPTDataset", in_fresh_process(measure_megatron, str(peer), options.peer_tokens)
            )
        except subprocess.CalledProcessError:
            print("megatron-core is not installed")
        show(
            "one loader process", in_fresh_process(measure_loaders, str(loaders), options.tokens), "tokens/s"
        )


if __name__ == "__main__":
    main()
