"""A recipe -> the vocabulary its tokens are counted with before there is one of its own.

Input: a recipe and the inputs of its sources, looked at. Output: the recipe's vocabulary where it is there; else one
trained on a sample of each source, weighed as `build-vocab` weighs: by the recipe's `weights`, or by what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pretok.config import Recipe, Source
from pretok.counts.buckets import WordCounts, concatenate
from pretok.counts.table import WordTable
from pretok.counts.weigh import multipliers
from pretok.forecast.windows import windows
from pretok.kernels.pretokenize import PATTERNS
from pretok.read.batches import buffers
from pretok.read.files import CorruptInputError
from pretok.read.probe import Probe
from pretok.read.readers import documents_of, read_piece
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, load_vocab, write_vocab
from pretok.vocab.bpe import buffer_of, train_merges


@contextmanager
def counting_vocabulary(
    recipe: Recipe, probed: Mapping[str, list[Probe]], seed: int
) -> Iterator[tuple[Vocabulary, bool]]:
    """(the vocabulary to count with, whether it was trained for that purpose). Raises UsageError for `weights` of other
    sources, or of one without text."""
    path = recipe.vocab_dir
    if recipe.vocab.extend is not None and not (path / TOKENIZER_FILE).exists():
        path = recipe.vocab.extend  # the extended one makes fewer tokens, never more
        yield load_vocab(path, recipe.vocab.eod, recipe.vocab.bos), True
        return
    if recipe.vocab.path is not None or (path / TOKENIZER_FILE).exists():
        yield load_vocab(path, recipe.vocab.eod, recipe.vocab.bos), False
        return
    parts = {
        name: _count(recipe, source, probed[name], f"{seed}/vocabulary/{name}")
        for name, source in recipe.sources.items()
    }
    stored = {name: Fraction(sum(probe.file.size for probe in probed[name])) for name in parts}
    sampled = {name: int(words.lengths @ words.counts) for name, words in parts.items()}
    there = {name: size if sampled[name] else Fraction(0) for name, size in stored.items()}
    factors = multipliers(recipe.vocab.weights or there, sampled)
    words = concatenate(list(parts.values()))
    counts = np.concatenate([factors[name] * part.counts for name, part in parts.items()])
    special = recipe.vocab.special_tokens
    buffer = buffer_of(words.data, words.offsets, counts)
    merges = train_merges(buffer, vocab_size=recipe.vocab.size, special_tokens=len(special))
    with TemporaryDirectory(prefix="pretok-") as folder:
        made = merges.first(recipe.vocab.size)
        write_vocab(Path(folder), PATTERNS[recipe.vocab.pattern], special, made)
        yield load_vocab(Path(folder), bos=recipe.vocab.bos), True


def _count(recipe: Recipe, source: Source, probes: list[Probe], seed: str) -> WordCounts:
    """The words of a sample of a source; what cannot be read is left for the sample that is measured to tell."""
    table, documents = WordTable(), documents_of(source.record, recipe.normalize.function)
    for window in windows(probes, seed, []):
        try:
            for batch in read_piece(window.piece, 0, source.record):
                texts = documents(batch).texts
                table.add_documents(*buffers(texts), np.zeros(len(texts), np.bool_), recipe.vocab.pattern)
        except CorruptInputError:
            continue
    return table.words()
