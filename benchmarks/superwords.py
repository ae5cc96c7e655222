"""What superwords save on text kept out of training, what they cost in speed, and what training them takes.

    python benchmarks/superwords.py CORPUS [--size 50000] [--superwords 10000] [--max-words 4] [--separators NAME ...]

CORPUS holds `LANGUAGE/NAME-NN.jsonl.zst` with `id` and `text`. A 25th of the works is kept out: whole books where ids
are `BOOK-CHAPTER`, else documents. Plain and superword vocabularies have the same number of entries. Speeds are those
of `tokenize` in this process, files to shards, in seconds of processor time, the vocabularies taking turns.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import zstandard

from pretok.base.console import Silent
from pretok.base.execute import Engine, peak_bytes
from pretok.base.stop import StopFlag
from pretok.config import DEFAULT_SPECIAL_TOKENS, make_recipe
from pretok.counts.table import WordTable
from pretok.kernels.hashing import hash_documents
from pretok.kernels.pretokenize import PATTERNS
from pretok.read.batches import buffers
from pretok.shards.job import run_tokenize
from pretok.shards.manifest import load_manifest
from pretok.superwords.chains import ChainFinder, train_superwords
from pretok.superwords.encode import SuperwordEngine
from pretok.superwords.segments import BASE, COARSE, SEPARATORS
from pretok.superwords.stages import drop_crossing
from pretok.tokenizer.encoder import BatchEncoder, FastEngine, fast_engine
from pretok.tokenizer.vocabulary import tokenizer_data
from pretok.vocab.bpe import train_merges
from pretok.vocab.symbols import buffer_of

HELD_OUT = 25
BATCH = 4 << 20
Merge = tuple[bytes, bytes]
Texts = dict[str, list[pa.LargeStringArray]]


def read(corpus: Path) -> tuple[Texts, Texts]:
    """(training, held-out) texts of each source in batches."""
    texts: tuple[Texts, Texts] = {}, {}
    for path in sorted(corpus.glob("*/*.jsonl.zst")):
        source = re.sub(r"-\d+\.jsonl\.zst$", "", path.name)
        data = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
        parts: tuple[list[str], list[str]] = [], []
        for line in data.splitlines():
            record = json.loads(line)
            work = re.sub(r"-\d+$", "", record["id"])
            number = int(hash_documents(*buffers(pa.array([work], pa.large_string())), 0)[0])
            parts[number % HELD_OUT == 0].append(record["text"])
        for part, chosen in zip(parts, texts, strict=True):
            chosen.setdefault(source, []).extend(batches(part))
    return texts


def batches(texts: list[str]) -> Iterator[pa.LargeStringArray]:
    """Arrays of about BATCH characters."""
    start = size = 0
    for i, text in enumerate(texts):
        size += len(text)
        if size >= BATCH or i == len(texts) - 1:
            yield pa.array(texts[start : i + 1], pa.large_string())
            start, size = i + 1, 0


def encode_all(engine: BatchEncoder, texts: Texts) -> dict[str, int]:
    """Tokens of each source."""
    return {name: sum(len(engine.encode(batch)[0]) for batch in group) for name, group in texts.items()}


def size_of(texts: Texts) -> dict[str, int]:
    """Bytes of each source."""
    return {name: sum(len(buffers(batch)[0]) for batch in group) for name, group in texts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the vocabularies")
    parser.add_argument("--size", type=int, default=50_000)
    parser.add_argument("--superwords", type=int, nargs="+", default=[10_000])
    parser.add_argument("--max-words", type=int, nargs="+", default=[4])
    parser.add_argument("--separators", nargs="+", default=list(SEPARATORS))
    args = parser.parse_args()
    train, held = read(args.corpus)
    sizes = size_of(held)
    print(
        f"{sum(size_of(train).values()) / 1e6:.0f} MB for training, held out in MB:",
        {k: round(v / 1e6, 1) for k, v in sizes.items()},
    )
    start = time.process_time()
    table = WordTable()
    for group in train.values():
        for batch in group:
            table.add_documents(*buffers(batch), np.zeros(len(batch), np.bool_), BASE)
    words = table.words()
    special = DEFAULT_SPECIAL_TOKENS
    buffer = buffer_of(words.data, words.offsets, words.counts)
    merges1 = train_merges(buffer, vocab_size=args.size, special_tokens=len(special))
    all1 = merges1.first(args.size)
    print(f"stage 1: {time.process_time() - start:.1f} s")
    plain = json.dumps(tokenizer_data(PATTERNS[BASE], special, all1))
    print(f"{'':44}" + "".join(f"{name[:15]:>17}" for name in held))

    def row(label: str, engine: BatchEncoder) -> None:
        tokens = encode_all(engine, held)
        print(f"{label:44}" + "".join(f"{sizes[n] / tokens[n]:17.3f}" for n in held), flush=True)

    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
        (args.keep / "plain.json").write_text(plain)
    plain_engine = FastEngine(plain)
    row("plain", plain_engine)
    for superwords in args.superwords:
        for separators in args.separators:
            flags = SEPARATORS[separators]
            count1 = args.size - superwords - len(special) - 256
            kept = drop_crossing(all1[:count1], flags)
            assert len(kept) == count1
            stage1 = tokenizer_data(PATTERNS[BASE], special, kept)
            start = time.process_time()
            engine1 = FastEngine(json.dumps(stage1))
            tokens = [b""] * len(special) + merges1.tokens[len(special) : len(special) + 256 + count1]
            assert len(stage1["model"]["vocab"]) == len(tokens)
            finder = ChainFinder(tokens, flags)
            chains = [finder.find(*buffers(b), *engine1.encode(b)) for g in train.values() for b in g]
            chained = time.process_time()
            for max_words in args.max_words:
                begun = time.process_time()
                merges2 = train_superwords(chains.__iter__, tokens, superwords, max_words)
                ended = time.process_time()
                data = tokenizer_data(COARSE[separators], special, kept + merges2.first(args.size))
                engine = fast_engine(json.dumps(data))
                assert isinstance(engine, SuperwordEngine)
                row(f"{superwords} {separators}, {max_words} words", engine)
                memory = peak_bytes() / 1e9
                print(
                    f"    chains {chained - start:.1f} s, training {ended - begun:.1f} s, "
                    f"last count {merges2.counts[-1]}, peak so far {memory:.2f} GB"
                )
                speed(args.corpus, {"plain": plain, "superwords": json.dumps(data)})
                if args.keep:
                    args.keep.mkdir(parents=True, exist_ok=True)
                    (args.keep / f"{superwords}-{separators}-{max_words}.json").write_text(json.dumps(data))


def speed(corpus: Path, files: dict[str, str], rounds: int = 3) -> None:
    """Run `tokenize` on the corpus with each tokenizer.json, in turns and in this process; the best of a few rounds."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, StopFlag() as stop, Engine(0, None, stop) as engine:
        for label, text in files.items():
            folder = Path(name) / label / "vocab"
            folder.mkdir(parents=True)
            (folder / "tokenizer.json").write_text(text)
        for turn in range(rounds):
            for label in files:
                out = Path(name) / label / str(turn)
                sources = {
                    p.name: {"inputs": [f"{p}/*.jsonl.zst"]} for p in sorted(corpus.iterdir()) if p.is_dir()
                }
                vocab = {"path": str(Path(name) / label / "vocab")}
                recipe = make_recipe({"out": str(out), "sources": sources, "vocab": vocab}, "benchmark")
                start = time.process_time()
                run_tokenize(recipe, engine, Silent())
                best[label] = min(best.get(label, float("inf")), time.process_time() - start)
                size = load_manifest(out / "shards").data["totals"]["bytes"] / 1e6
                shutil.rmtree(out)
    plain, joined = best.values()
    print(
        f"    tokenize: {size / plain:.0f} MB/s without, {size / joined:.0f} MB/s with superwords, "
        f"ratio {plain / joined:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
