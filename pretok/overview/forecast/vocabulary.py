"""A recipe -> the vocabulary to count its tokens with, before it has one of its own.

Input: a recipe and the probed inputs of its sources. Output: the recipe's vocabulary if it exists; else one trained on
a sample of each source, with the weights that `build-vocab` would use: the recipe's `weights`, or the sizes on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pretok.base.errors import PartitionsFailed
from pretok.base.texts import buffers
from pretok.chat.read_documents import documents_of
from pretok.config import Recipe, Source
from pretok.kernels.pretokenize import PATTERNS
from pretok.overview.forecast.windows import windows
from pretok.read.files import CorruptInputError
from pretok.read.format import Probe
from pretok.read.readers import read_piece
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, load_vocab, write_vocab
from pretok.vocab.bpe import train_merges
from pretok.vocab.counts.buckets import Words, concatenate
from pretok.vocab.counts.table import WordTable
from pretok.vocab.counts.weigh import multipliers
from pretok.vocab.symbols import buffer_of


def counting_vocabulary(recipe: Recipe, probed: Mapping[str, list[Probe]]) -> tuple[Vocabulary, bool]:
    """Return (the vocabulary to count with, whether it only replaces the recipe's).

    Raises UsageError for `weights` of unknown sources, or of one without text; PartitionsFailed if none has text.
    """
    settings, path = recipe.vocab, recipe.vocab_dir
    if settings.path is not None or (path / TOKENIZER_FILE).exists():
        return load_vocab(path, settings.eod, settings.bos), False
    if settings.extend is not None:  # extending makes fewer tokens, never more
        return load_vocab(settings.extend, settings.eod, settings.bos), True
    parts = {
        name: _count(recipe, source, probed[name], f"vocabulary/{name}")
        for name, source in recipe.sources.items()
    }
    stored = {name: Fraction(sum(probe.file.size for probe in probed[name])) for name in parts}
    sampled = {name: int(words.lengths @ words.counts) for name, words in parts.items()}
    if not any(sampled.values()):
        raise PartitionsFailed("no input gave any text: there is nothing to estimate from")
    sizes = {name: size if sampled[name] else Fraction(0) for name, size in stored.items()}
    factors = multipliers(settings.weights or sizes, sampled)
    words = concatenate(list(parts.values()))
    counts = np.concatenate([factors[name] * part.counts for name, part in parts.items()])
    buffer = buffer_of(words.data, words.offsets, counts)
    merges = train_merges(buffer, vocab_size=settings.size, special_tokens=len(settings.special_tokens))
    with TemporaryDirectory(prefix="pretok-") as folder:
        write_vocab(
            Path(folder), PATTERNS[settings.pattern], settings.special_tokens, merges.first(settings.size)
        )
        return load_vocab(Path(folder), bos=settings.bos), True


def _count(recipe: Recipe, source: Source, probes: list[Probe], seed: str) -> Words:
    """Count the words of a sample of a source. What cannot be read is skipped here; measuring reports it."""
    table, documents = WordTable(), documents_of(source.record_format(), recipe.normalize.function)
    for window in windows(probes, seed, {}):
        try:
            for batch in read_piece(window.piece, 0, source.record_format()):
                texts = documents(batch).texts
                table.add_documents(*buffers(texts), np.zeros(len(texts), np.bool_), recipe.vocab.pattern)
        except CorruptInputError:
            continue
    return table.words()
