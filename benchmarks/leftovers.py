"""What removing left-over entries would gain: docs/vocabulary.md has the figures.

    python benchmarks/leftovers.py WORK/counts --weights it=0.9,en=0.1 [--sizes 16000,32000,50000]

Three ways for each size, in tokens of all counted words by weight. `free`: as many further merges are added and nothing
is removed, which no way of removing can beat. `ordinary`: entries are removed whose results can be made from two other
entries. `ignore_merges`: also those whose results are whole words almost always and no step, which `tokenizers` then
finds without merges. What is removed is made up for by further merges; ids are compared with `tokenizers`.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from pretok.base.storage import write_json
from pretok.config import DEFAULT_SPECIAL_TOKENS
from pretok.counts.buckets import concatenate
from pretok.counts.counts_file import load_counts
from pretok.counts.weigh import WeightedWords, multipliers, weigh
from pretok.kernels.pretokenize import PATTERNS
from pretok.read.batches import from_buffers
from pretok.stream.quota import parse_weights
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab, to_characters, write_vocab
from pretok.vocab.bpe import Merges, train_merges
from pretok.vocab.cells import cells_of

Merge = tuple[bytes, bytes]
MOSTLY = 0.95
"""A result is a whole word almost always from this share of its uses on."""
COMPARED = 100
"""Held-out documents of which ids are compared with those of `tokenizers`."""


@dataclass(frozen=True)
class Trained:
    """Words with weighted counts, and merges trained on them, enough for the largest size and its refill."""

    words: WeightedWords
    merges: Merges
    texts: list[str]
    folder: Path

    def write(self, pairs: list[Merge], whole: list[bytes]) -> Vocabulary:
        """A vocabulary of merges, and of words that are found without."""
        vocab = write_vocab(self.folder, PATTERNS["cl100k"], DEFAULT_SPECIAL_TOKENS, pairs)
        if not whole:
            return vocab
        model = vocab.data["model"]
        model["ignore_merges"] = True
        for word in whole:
            model["vocab"][to_characters(word)] = len(model["vocab"])
        write_json(vocab.path, vocab.data)
        return load_vocab(self.folder)

    def uses(self, pairs: list[Merge], whole: list[bytes]) -> tuple[Vocabulary, npt.NDArray[np.int64]]:
        """The vocabulary, and the weighted uses of its ids; ids of some documents are those of `tokenizers`."""
        vocab = self.write(pairs, whole)
        encoder = Encoder(vocab.raw.decode(), 0, vocab.size)
        ids, lengths = encoder.encode(from_buffers(self.words.data, self.words.offsets))
        uses = np.zeros(vocab.size, np.int64)
        np.add.at(uses, ids, np.repeat(self.words.counts, lengths))
        uses[0] = 0  # EOD
        reference = Tokenizer.from_file(str(vocab.path))
        found, _ = encoder.encode(pa.array(self.texts, pa.large_string()))
        assert found.tolist() == [i for text in self.texts for i in [*reference.encode(text).ids, 0]]
        return vocab, uses


def bpe(word: bytes, ranks: dict[Merge, int]) -> list[bytes]:
    """A word by some merges."""
    parts = [word[i : i + 1] for i in range(len(word))]
    while True:
        known = [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not known:
            return parts
        _, at = min(known)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def remove(
    pairs: list[Merge], left_over: set[bytes], steps: set[bytes], words: set[bytes]
) -> tuple[list[Merge], list[bytes], int]:
    """Merges without as many left-over entries as can go, the words that need none, and how many went."""
    removed = set(left_over)
    while True:
        ranks: dict[Merge, int] = {}
        whole, back = [], set()
        for left, right in pairs:
            result = left + right
            if result in removed:
                continue
            parts = bpe(result, ranks) if {left, right} & removed else [left, right]
            if len(parts) == 2:
                ranks[parts[0], parts[1]] = len(ranks)
            elif result in words and result not in steps:
                whole.append(result)
            else:
                back |= {left, right} & removed
        if not back:
            return list(ranks), whole, len(removed)
        removed -= back


def refill(kept: list[Merge], whole: list[bytes], more: list[Merge], wanted: int) -> list[Merge]:
    """The merges with the first ones of `more` that are made of what is there."""
    there = {bytes([byte]) for byte in range(256)} | {left + right for left, right in kept}
    added: list[Merge] = []
    for left, right in more:
        if len(added) < wanted and left in there and right in there:
            there.add(left + right)
            added.append((left, right))
    return kept + [pair for pair in added if pair[0] + pair[1] not in whole]


def measure(trained: Trained, size: int) -> None:
    """Print a size's lines."""
    pairs = trained.merges.first(size)
    vocab, uses = trained.uses(pairs, [])
    by_bytes = {vocab.token_bytes(i): int(uses[i]) for i in range(len(DEFAULT_SPECIAL_TOKENS), vocab.size)}
    steps = {part for pair in pairs for part in pair}
    last = by_bytes[b"".join(pairs[-1])]
    left_over = {
        left + right for left, right in pairs if left + right in steps and by_bytes[left + right] < last
    }
    share = sum(by_bytes[entry] for entry in left_over) / uses.sum()
    print(f"{size}: {len(left_over)} left over ({len(left_over) / size:.1%}), {share:.2%} of the tokens")
    free = trained.uses(trained.merges.first(size + len(left_over)), [])[1].sum()
    print(f"  free: {free / uses.sum() - 1:+.2%} tokens")
    alone = dict(zip(trained.words.words().to_pylist(), trained.words.counts.tolist(), strict=True))
    words = {entry for entry, count in by_bytes.items() if alone.get(entry, 0) >= MOSTLY * count}
    more = trained.merges.first(size + 2 * len(left_over))[len(pairs) :]
    for name, candidates in (("ordinary", set()), ("ignore_merges", words)):
        kept, whole, gone = remove(pairs, left_over, steps, candidates)
        refilled, found = trained.uses(refill(kept, whole, more, gone), whole)
        assert refilled.size == size
        print(f"  {name}: {gone} removed, {found.sum() / uses.sum() - 1:+.2%} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("counts", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--sizes", default="16000,32000,50000")
    arguments = parser.parse_args()
    counts = load_counts(arguments.counts)
    weights = parse_weights(arguments.weights) or {}
    factors = multipliers(weights, {name: counts.of(name).bytes for name in counts.sources})
    words = concatenate([part.words for part in weigh(counts.buckets, factors, 1)])
    sizes = [int(size) for size in arguments.sizes.split(",")]
    merges = train_merges(
        cells_of(words.data, words.offsets, words.counts),
        vocab_size=int(1.2 * max(sizes)),
        special_tokens=len(DEFAULT_SPECIAL_TOKENS),
    )
    texts = [text for name in counts.sources for text in counts.heldout_texts(name).to_pylist()[:COMPARED]]
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            measure(Trained(words, merges, texts, Path(folder)), size)


if __name__ == "__main__":
    main()
