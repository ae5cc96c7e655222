"""Training a vocabulary of 50,000 entries: speed beside `tokenizers.BpeTrainer`, memory by the number of words.

Input: the corpus. Output: seconds and CPU seconds of counting and merging in one process and of BpeTrainer with its
threads, which give the same tokens; then CPU seconds and memory of merging alone, of the words of the corpus and of
more words, joined of parts of these.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.inputs import LANGUAGES, Inputs
from benchmarks.measure import Row, Table, fresh, timed
from pretok.base.execute import peak_bytes
from pretok.base.tokens import Bytes, Ints
from pretok.config import DEFAULT_SPECIAL_TOKENS
from pretok.kernels.pretokenize import PATTERNS
from pretok.vocab.bpe import Merges, train_merges
from pretok.vocab.counts.buckets import Words, from_arrow
from pretok.vocab.counts.table import WordTable
from pretok.vocab.symbols import buffer_of

SIZE, SPECIAL = 50_000, len(DEFAULT_SPECIAL_TOKENS)
WORDS = (3_000_000, 30_000_000)
HEAD = 4
"""Bytes of a word that begin another one."""


def counted(texts: list[str], pattern: str) -> Words:
    """Words of texts, counted in this thread."""
    encoded = [text.encode() for text in texts]
    data = np.frombuffer(b"".join(encoded), np.uint8)
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    table = WordTable()
    table.add_documents(data, offsets, np.zeros(len(texts), np.bool_), pattern)
    return table.words()


def merges_of(data: Bytes, offsets: Ints, counts: Ints) -> Merges:
    """The vocabulary of words with their counts."""
    return train_merges(buffer_of(data, offsets, counts), vocab_size=SIZE, special_tokens=SPECIAL)


def reference(texts: list[str]) -> set[bytes]:
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


def write_words(words: Words, number: int, path: Path) -> Path:
    """So many distinct words with their counts as .npz: those given, and the first bytes of one with the rest of
    another, as rare as the rarer of both. So lengths and counts stay those of the corpus."""
    old, counts = words.words(), words.counts
    more = int(1.2 * max(0, number - len(old)))  # some come twice, or are there already
    first, second = np.random.default_rng(0).integers(0, len(old), (2, more))
    heads, tails = pc.binary_slice(old, 0, HEAD).take(first), pc.binary_slice(old, HEAD).take(second)
    joined = pc.binary_join_element_wise(heads, tails, pa.scalar(b"", old.type))
    table = {
        "word": pa.concat_arrays([old, joined]),
        "count": np.concatenate([counts, np.minimum(counts[first], counts[second])]),
    }
    every = pa.table(table).group_by("word", use_threads=False).aggregate([("count", "max")])[:number]
    column = every["word"].combine_chunks()
    many = from_arrow(column, every["count_max"].to_numpy(), np.zeros(len(column), np.int64))
    np.savez(path, data=many.data, offsets=many.offsets, counts=many.counts)
    return path


def merge_file(path: Path) -> Row:
    """Merge the words of a file."""
    arrays = np.load(path)
    data, offsets, counts = arrays["data"], arrays["offsets"], arrays["counts"]
    before = peak_bytes()
    spent, _ = timed(lambda: merges_of(data, offsets, counts))
    return {"words": len(counts), **spent, "peak MB": (peak_bytes() - before) / 1e6}


def measure(inputs: Inputs) -> Table:
    """Each once: BpeTrainer takes a minute and a half of CPU time."""
    texts = [text for name in LANGUAGES for text in inputs.texts(name)]
    counting, words = timed(lambda: counted(texts, "cl100k"))
    merging, merges = timed(lambda: merges_of(words.data, words.offsets, words.counts))
    theirs, tokens = timed(lambda: reference(texts))
    if set(merges.tokens[SPECIAL:]) != tokens:
        raise AssertionError("BpeTrainer makes other tokens")
    table: Table = {"counting": counting, "merging": merging, "BpeTrainer": theirs}
    for number in (len(words), *map(inputs.scaled, WORDS)):
        # In a process of its own, whose memory is free again before the words are merged: 9 GB for 30 million.
        path = fresh(write_words, words, number, inputs.folder / "words.npz")
        row = fresh(merge_file, path)
        table[f"merging {row.pop('words'):,.0f} words"] = row
    return table
