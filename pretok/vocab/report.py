"""What was counted and measured -> the report of a vocabulary.

Input: counts, the vocabularies made from them, their Measure, and what tokenizers cost on held-out texts. Output: a
VocabReport. What is of the mix is weighed by the text that is planned, not by what lies on disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.records import replace
from pretok.config import Recipe
from pretok.counts.counts_file import CorpusCounts
from pretok.counts.weigh import Tally, mix_bytes_per_token, multipliers, shares
from pretok.tokenizer.vocabulary import Vocabulary
from pretok.vocab.compare import CostsBySource, compared, weigh_tokenizers
from pretok.vocab.cost import KINDS, Measure
from pretok.vocab.entries import (
    Entries,
    list_rare,
    occurring_only_inside,
    read_entries,
    size_figures,
    text_figures,
)
from pretok.vocab.planned import plan_text
from pretok.vocab.records import (
    Compared,
    Costs,
    CountedWords,
    Decision,
    LongToken,
    MadeVocabulary,
    MixCosts,
    RareEntry,
    RowCosts,
    SourceCosts,
    SourceFigures,
    TokenOwners,
    VocabReport,
    WordFigures,
    ratio,
)

LONGEST = 100
"""Tokens listed as the longest."""
MOSTLY = 0.9
"""A token belongs to a source that has this share of its occurrences, were all sources of one size."""


@dataclass(frozen=True, slots=True)
class Made:
    """All that a report is of. vocabularies: by the size asked for, the main one first; measure: of them, in
    this order; main: the one written; paths, rows: tokenizers compared, `this` first; replaced: entries that gave way;
    model: the sizes (train.model.sizes) of the one that is extended."""

    recipe: Recipe
    counts: CorpusCounts
    words: Tally
    vocabularies: Mapping[int, Vocabulary]
    measure: Measure
    main: Vocabulary
    paths: Mapping[str, Path]
    rows: Mapping[str, CostsBySource]
    config: dict[str, Any]
    replaced: tuple[RareEntry, ...] = ()
    model: Any = None


def make_report(made: Made) -> VocabReport:
    """The report."""
    counts, measure, sources = made.counts, made.measure, made.counts.sources
    plain = made.vocabularies[made.recipe.vocab.size]
    compare = {path: compared(row) for path, row in made.rows.items()}
    mix = _mix(made, compare)
    return VocabReport(
        vocabulary=MadeVocabulary(
            made.main.size, made.recipe.vocab.size, made.main.fingerprint, made.main.eod_id
        ),
        words=CountedWords(
            made.words.distinct,
            int(measure.words[:, 0].sum()),
            made.words.dropped_words,
            ratio(made.words.dropped_bytes, sum(made.counts.sizes.values())),
        ),
        sources=_sources(made),
        sizes={
            str(vocab.size): {name: int(measure.tokens[k, v].sum()) for k, name in enumerate(sources)}
            for v, vocab in enumerate(made.vocabularies.values())
        },
        tokens=_token_owners(plain, measure.uses[0], sources),
        compare=compare,
        mix=mix,
        failed=counts.failed,
        config=made.config,
        decision=_decision(made),
        replaced=made.replaced or None,
        rows=None if made.model is None or len(made.vocabularies) == 1 else _row_costs(made.model, mix.sizes),
    )


def _row_costs(model: Any, by_size: Mapping[str, float | None]) -> dict[str, RowCosts]:
    """by_size: bytes per token of the mix by entries, of the old vocabulary and larger ones."""
    found: dict[str, RowCosts] = {}
    old = min(map(int, by_size))
    for size in sorted(map(int, by_size)):
        now = replace(model, vocab_size=size, rows=0)
        flops = now.flops_per_token(now.seq_len)
        if size == old:
            unit = flops / (by_size[str(old)] or 1)
        found[str(size)] = RowCosts(
            (size - old) * now.dim * (1 if now.tied else 2),
            round(6 * now.padded_vocab * now.dim / flops, 6),
            round(flops / (by_size[str(size)] or 1) / unit, 6),
        )
    return found


def _sources(made: Made) -> dict[str, SourceCosts]:
    factors = multipliers(made.recipe.vocab.weights, made.counts.sizes)
    weighted = {name: factors[name] * size for name, size in made.counts.sizes.items()}
    return {
        name: SourceCosts(
            made.counts.of(name).documents,
            ratio(weighted[name], sum(weighted.values())),
            factors[name],
            int(made.measure.distinct[k]),
            _costs(made.measure, k, 0),
            _costs(made.measure, k, 1, made.counts.of(name).heldout_documents),
        )
        for k, name in enumerate(made.counts.sources)
    }


def _costs(measure: Measure, source: int, split: int, documents: int | None = None) -> Costs:
    """One source in training (0) or held-out (1) documents, by the main vocabulary."""
    size, words = int(measure.bytes[source, split]), int(measure.words[source, split])
    tokens = int(measure.tokens[source, 0, split])
    return Costs(
        documents=documents,
        bytes=size,
        words=words,
        tokens=tokens,
        bytes_per_token=ratio(size, tokens),
        tokens_per_word=ratio(tokens, words),
    )


def _mix(made: Made, compare: Mapping[str, Mapping[str, Compared]]) -> MixCosts:
    measure, sources = made.measure, made.counts.sources
    parts = shares(made.recipe.vocab.weights, made.counts.sizes)
    sizes = dict(zip(sources, measure.bytes.sum(1).tolist(), strict=True))
    tokens = [dict(zip(sources, row, strict=True)) for row in measure.tokens.sum(2).T.tolist()]
    return MixCosts(
        {name: round(float(part), 6) for name, part in parts.items()},
        {
            str(vocab.size): mix_bytes_per_token(parts, sizes, tokens[v])
            for v, vocab in enumerate(made.vocabularies.values())
        },
        {
            path: mix_bytes_per_token(
                parts,
                {name: one.bytes for name, one in row.items()},
                {name: one.tokens for name, one in row.items()},
            )
            for path, row in compare.items()
        },
    )


def _token_owners(vocab: Vocabulary, uses: npt.NDArray[np.int64], sources: Sequence[str]) -> TokenOwners:
    """Whose the tokens are, which are never used, the longest, and the bytes no training text has.

    uses: (sources, ids). Shares are taken of occurrences per token of each source, so that its size does not count.
    """
    learned = np.ones(vocab.size, np.bool_)
    learned[list(vocab.added_tokens.values())] = False
    rates = uses / np.maximum(uses.sum(1, keepdims=True), 1)
    used = rates.sum(0) > 0
    parts = rates / np.maximum(rates.sum(0), np.finfo(np.float64).tiny)
    mostly = {name: int((parts[k] >= MOSTLY).sum()) for k, name in enumerate(sources)}
    names = {i: vocab.token_bytes(i) for i in np.flatnonzero(learned).tolist()}
    longest = sorted(names, key=lambda i: (-len(names[i]), i))[:LONGEST]
    return TokenOwners(
        mostly,
        int(used.sum()) - sum(mostly.values()),
        int((learned & ~used).sum()),
        tuple(
            LongToken(
                i,
                names[i].decode(errors="replace"),
                {name: int(uses[k, i]) for k, name in enumerate(sources)},
            )
            for i in longest
        ),
        tuple(sorted(f"{names[i].hex()}" for i in names if len(names[i]) == 1 and not used[i])),
    )


def _decision(made: Made) -> Decision:
    measure, sources = made.measure, made.counts.sources
    counted = dict(zip(sources, measure.tokens[:, 0, 0].tolist(), strict=True))
    sample = Fraction(made.counts.config.sample)
    basis, scale = plan_text(made.recipe, sample, made.counts.sizes, counted)
    plain = made.vocabularies[made.recipe.vocab.size]
    entries = [read_entries(vocab) for vocab in made.vocabularies.values()]
    trained = np.array(list(multipliers(made.recipe.vocab.weights, made.counts.sizes).values()))
    words = float(scale @ measure.words[:, 0])
    text = scale * np.array(list(made.counts.sizes.values()))
    parts = dict(zip(sources, (text / max(1.0, text.sum())).tolist(), strict=True))
    tokens = scale * measure.tokens[:, 0, 0]
    return Decision(
        basis=basis,
        sources={
            name: _figures(measure, entries[0], np.eye(len(sources))[k], tokens[k])
            for k, name in enumerate(sources)
        },
        mix=_figures(measure, entries[0], scale, tokens.sum()),
        sizes={
            str(vocab.size): size_figures(entries[v], scale @ uses, trained @ uses, words)
            for v, (vocab, uses) in enumerate(zip(made.vocabularies.values(), measure.uses, strict=True))
        },
        rare=list_rare(plain, entries[0], scale @ measure.uses[0]),
        tokenizers=weigh_tokenizers(made.paths, made.rows, parts),
    )


def _figures(
    measure: Measure, entries: Entries, scale: npt.NDArray[np.float64], tokens: float
) -> SourceFigures:
    """Text of each source as a multiple of what was counted, by the main vocabulary; tokens: planned of it."""
    uses, words = scale @ measure.uses[0], float(scale @ measure.words[:, 0])
    kinds = np.tensordot(scale, measure.kinds, 1).tolist()
    return SourceFigures(
        round(tokens),
        text_figures(entries, uses, words),
        occurring_only_inside(entries, uses),
        {
            kind: WordFigures(ratio(found, words), ratio(parts, found), ratio(size, parts))
            for kind, (found, parts, size) in zip(KINDS, kinds, strict=True)
        },
    )
