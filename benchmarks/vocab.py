"""Vocabulary training: speed beside `tokenizers.BpeTrainer`, growth with the corpus, tokens saved.

    python -m benchmarks.vocab speed merges extend scaling economy --corpus DIR   # DIR/it/*.zst and DIR/en/*.zst

Output: results_vocab.json beside this file, one section for each that was asked for, with the load of the machine.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from benchmarks.measure import fresh, machine, timed
from pretok.base.console import Silent
from pretok.base.execute import Engine, Report, peak_bytes
from pretok.base.stop import StopFlag
from pretok.config import DEFAULT_SPECIAL_TOKENS, Recipe, make_recipe
from pretok.counts.buckets import Words, concatenate
from pretok.counts.counts_file import CorpusCounts
from pretok.counts.job import run_count
from pretok.counts.table import WordTable
from pretok.counts.weigh import multipliers, weigh
from pretok.kernels.hashing import hash_documents, select
from pretok.kernels.pretokenize import PATTERNS
from pretok.read.batches import from_buffers
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.vocabulary import load_vocab, write_vocab
from pretok.vocab.bpe import buffer_of, extend_merges, train_merges
from pretok.vocab.extend import tokens_of
from pretok.vocab.job import lay_out, run_build_vocab

RESULTS = Path(__file__).with_name("results_vocab.json")
SIZE = 50_000
SPECIAL = len(DEFAULT_SPECIAL_TOKENS)
WEIGHTS = {"it": Fraction(9, 10), "en": Fraction(1, 10)}
NOVELS = {"it": "gutenberg/", "en": "eltec-en/"}
HELDOUT_BOOKS = 0.06
NOISE = 0.003
"""Share of ASCII letters that a copy of the corpus has changed, so that its distinct words grow with its size."""


def documents(corpus: Path, source: str) -> Iterator[dict[str, str]]:
    """The records of one language."""
    for path in sorted((corpus / source).glob("*.zst")):
        with path.open("rb") as file:
            yield from map(
                json.loads, io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8")
            )


def pack(texts: list[str]) -> tuple[Any, Any]:
    """Texts as (data, offsets)."""
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)], dtype=np.int64)


def counted(texts: list[str], pattern: str) -> Words:
    """Words of texts, counted in this thread."""
    table = WordTable()
    table.add_documents(*pack(texts), np.zeros(len(texts), np.bool_), pattern)
    return table.words()


def recipe(out: Path, inputs: dict[str, list[str]], **vocab: Any) -> Recipe:
    """A recipe for these inputs without hold-out, as the reference has none."""
    sources = {name: {"inputs": paths} for name, paths in inputs.items()}
    return make_recipe({"out": out, "sources": sources, "vocab": {"holdout": "0", **vocab}}, "benchmark")


def wake(item: tuple[Path, int], _report: Report) -> None:
    """Makes a worker start, load the compiled code and wait until all have, which belongs to starting Ray."""
    folder, workers = item
    counted(["wake up"], "cl100k")
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < workers:
        time.sleep(0.01)


def start(engine: Engine, work: Path) -> None:
    """Have all workers of the engine ready."""
    folder = work / "awake"
    folder.mkdir(parents=True)
    workers = engine.workers or 1
    list(engine.map(wake, [(folder, workers)] * workers))


def measure_speed(corpus: Path, work: Path) -> dict[str, Any]:
    """Counting and merging with two workers, beside BpeTrainer with its threads; counting in one thread."""
    texts = [record["text"] for source in ("it", "en") for record in documents(corpus, source)]
    size = sum(len(text.encode()) for text in texts)
    data, offsets = pack(texts)
    table = WordTable()
    began = time.process_time()
    table.add_documents(data, offsets, np.zeros(len(texts), np.bool_), "cl100k")
    alone = time.process_time() - began
    inputs = {name: [str(corpus / name / "*.zst")] for name in ("it", "en")}
    made = recipe(work / "speed", inputs)
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        began = time.process_time()
        run_count(recipe(work / "here", inputs), engine, Silent())
        counting_cpu = time.process_time() - began
    with StopFlag() as stop, Engine(2, None, stop) as engine:
        start(engine, work)
        counting, counts = timed(lambda: run_count(made, engine, Silent()))
    weighing, words = timed(lambda: _weighed(counts))
    began = time.process_time()
    merging, merges = timed(lambda: _merges(words))
    merging_cpu = time.process_time() - began
    began = time.process_time()
    reference, tokens = timed(lambda: _reference(texts))
    reference_cpu = time.process_time() - began
    ours = {merges.tokens[i] for i in range(SPECIAL, SIZE)}
    return {
        "text_mb": size / 1e6,
        "counting_mb_s_one_core_cpu_time": size / 1e6 / alone,
        "counting_job_cpu_seconds": counting_cpu,
        "counting_seconds_two_workers": counting,
        "weighing_seconds": weighing,
        "merging_seconds": merging,
        "merging_cpu_seconds": merging_cpu,
        "distinct_words": len(words),
        "reference_seconds": reference,
        "reference_cpu_seconds": reference_cpu,
        "times_faster": reference / (counting + weighing + merging),
        "same_tokens": ours == tokens,
    }


def _weighed(counts: CorpusCounts) -> Words:
    return concatenate([part for part, _ in weigh(counts.buckets, dict.fromkeys(counts.sources, 1), 1)])


def _merges(words: Words) -> Any:
    buffer = buffer_of(words.data, words.offsets, words.counts)
    return train_merges(buffer, vocab_size=SIZE, special_tokens=SPECIAL)


def _reference(texts: list[str]) -> set[bytes]:
    """Tokens that BpeTrainer makes of the texts, as bytes."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    from pretok.tokenizer.tokenizer_file import to_bytes

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERNS["cl100k"]), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=list(DEFAULT_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((texts[i : i + 256] for i in range(0, len(texts), 256)), trainer)
    return {to_bytes(token) for token in tokenizer.get_vocab() if token not in DEFAULT_SPECIAL_TOKENS}


def measure_merges(corpus: Path, _work: Path) -> dict[str, Any]:
    """Merging to 50,000 entries from the 300 thousand most frequent words."""
    words = counted(
        [record["text"] for source in ("it", "en") for record in documents(corpus, source)], "cl100k"
    )
    common = words.take(np.sort(np.argsort(-words.counts, kind="stable")[:300_000]))
    began = time.process_time()
    seconds, merges = timed(lambda: _merges(common))
    return {
        "words": len(common),
        "merges": len(merges.pairs),
        "seconds": seconds,
        "cpu_seconds": time.process_time() - began,
    }


def measure_extend(corpus: Path, work: Path) -> dict[str, Any]:
    """8,000 entries more on 32,000 of English, in turns beside 40,000 from nothing, of the same counts: CPU seconds."""
    inputs = {name: [str(corpus / name / "*.zst")] for name in ("it", "en")}
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        english = recipe(work / "en", {"en": inputs["en"]}, size=32_000)
        run_build_vocab(english, engine, Silent())
        made = recipe(work / "both", inputs, extend=english.vocab_dir)
        counts, old = run_count(made, engine, Silent()), load_vocab(english.vocab_dir)
    found: dict[str, list[float]] = {"extended": [], "ordinary": []}
    for _ in range(3):
        began = time.process_time()
        extend_merges(lay_out(counts, made.vocab, old)[0], *tokens_of(old), made.vocab.added)
        found["extended"].append(time.process_time() - began)
        began = time.process_time()
        train_merges(lay_out(counts, made.vocab, None)[0], vocab_size=40_000, special_tokens=SPECIAL)
        found["ordinary"].append(time.process_time() - began)
    return found


def measure_scaling(corpus: Path, work: Path) -> dict[str, Any]:
    """A tenth of the corpus, and ten noisy copies of that tenth: seconds with two workers, peak of one worker."""
    tenth = {name: [r["text"] for r in documents(corpus, name)][::10] for name in ("it", "en")}
    result: dict[str, Any] = {}
    for copies in (1, 10):
        folder = work / f"x{copies}"
        inputs = {name: [_noisy(texts, folder / f"{name}.jsonl", copies)] for name, texts in tenth.items()}
        made = recipe(folder / "out", inputs)
        with StopFlag() as stop, Engine(2, None, stop) as engine:
            start(engine, folder)
            counting, counts = timed(lambda made=made, engine=engine: run_count(made, engine, Silent()))  # type: ignore[misc]
        words = _weighed(counts)
        merging, _ = timed(lambda words=words: _merges(words))  # type: ignore[misc]
        result[f"x{copies}"] = {
            "text_mb": sum(counts.sizes.values()) / 1e6,
            "distinct_words": len(words),
            "counting_seconds": counting,
            "merging_seconds": merging,
            "seconds": counting + merging,
            "worker_peak_mb": fresh(_peak_of_counting, recipe(folder / "alone", inputs)) / 1e6,
        }
    result["time_ratio"] = result["x10"]["seconds"] / result["x1"]["seconds"]
    return result


def _noisy(texts: list[str], path: Path, copies: int) -> str:
    """Write copies of the texts as JSON Lines, each but the first with some letters changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data, offsets = pack(texts)
    with path.open("w", encoding="utf-8") as file:
        for seed in range(copies):
            rng = np.random.default_rng(seed)
            noisy = data.copy()
            hit = (rng.random(len(data)) < (NOISE if seed else 0)) & (data >= 97) & (data <= 122)
            noisy[hit] = rng.integers(97, 123, int(hit.sum()))
            for text in from_buffers(noisy, offsets).to_pylist():
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return str(path)


def _peak_of_counting(made: Recipe) -> int:
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run_count(made, engine, Silent())
    return peak_bytes()


def measure_economy(corpus: Path, work: Path) -> dict[str, Any]:
    """Bytes per token on novels whose books were not in training, 90/10, by pattern and size."""
    training: dict[str, list[str]] = {"it": [], "en": []}
    unseen: dict[str, list[str]] = {"it": [], "en": []}
    for name, kind in NOVELS.items():
        for record in documents(corpus, name):
            book = pack([record["source"]])
            apart = record["source"].startswith(kind) and select(hash_documents(*book, 1), HELDOUT_BOOKS)[0]
            (unseen if apart else training)[name].append(record["text"])
    result: dict[str, Any] = {f"unseen_{name}_mb": len(pack(unseen[name])[0]) / 1e6 for name in unseen}
    for pattern in PATTERNS:
        words = {name: counted(texts, pattern) for name, texts in training.items()}
        factors = multipliers(WEIGHTS, {name: int(w.counts @ w.lengths) for name, w in words.items()})
        table = WordTable()
        for name, part in words.items():
            table.add_words(replace(part, counts=part.counts * factors[name]))
        merged = (found := table.words()).data, found.offsets, found.counts
        for size in (32_000, SIZE, 64_000):
            made = train_merges(buffer_of(*merged), vocab_size=size, special_tokens=SPECIAL)
            pairs = [(made.tokens[left], made.tokens[right]) for left, right in made.pairs.tolist()]
            vocab = write_vocab(work / "economy", PATTERNS[pattern], DEFAULT_SPECIAL_TOKENS, pairs)
            encoder = Encoder(vocab.path.read_text(encoding="utf-8"), 0, vocab.size)
            for name, texts in unseen.items():
                probe = counted(texts, pattern)
                _, lengths = encoder.encode(from_buffers(probe.data, probe.offsets))
                tokens = int(probe.counts @ (lengths.astype(np.int64) - 1))
                result[f"{pattern}_{size}_{name}"] = int(probe.counts @ probe.lengths) / tokens
            result[f"{pattern}_engine"] = "tokenizers" if encoder.notice else "gigatoken"
    return result


SECTIONS = {
    "speed": measure_speed,
    "merges": measure_merges,
    "extend": measure_extend,
    "scaling": measure_scaling,
    "economy": measure_economy,
}


def main() -> None:
    """Measure the sections named; the others in the results stay."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.vocab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sections", nargs="+", choices=list(SECTIONS))
    parser.add_argument("--corpus", type=Path, required=True)
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for section in arguments.sections:
        with tempfile.TemporaryDirectory() as work:
            values = SECTIONS[section](arguments.corpus, Path(work))
        rounded = json.loads(json.dumps(values), parse_float=lambda text: float(f"{float(text):.4g}"))
        results[section] = {**rounded, "load_average": round(os.getloadavg()[1], 1)}
        results["machine"] = machine()
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(section, json.dumps(results[section], indent=1), flush=True)


if __name__ == "__main__":
    main()
