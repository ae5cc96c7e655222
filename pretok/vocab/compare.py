"""Any tokenizers x the held-out texts that were kept -> what each of them costs there.

Input: counts with their held-out texts, and paths of tokenizer.json files of any origin. Output: tokens, bytes and
words between spaces per tokenizer and source; how evenly each tokenizer uses its entries, and how many of them are
entries of the first one too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from pretok.base.console import Console
from pretok.counts.counts_file import CorpusCounts
from pretok.read.batches import buffers
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab
from pretok.vocab.cost import measure_texts
from pretok.vocab.entries import renyi_efficiency
from pretok.vocab.records import Compared, OtherTokenizer, ratio

THIS = "this"
"""Name of the vocabulary made, in the report."""


@dataclass(frozen=True, slots=True)
class TextCosts:
    """Texts by one tokenizer. uses: (ids,), None where it gives up on one of them; spaced: words between spaces. They
    are numbers of texts as they are, or multiples of them."""

    uses: npt.NDArray[Any] | None
    bytes: float
    spaced: float

    @property
    def tokens(self) -> float | None:
        """How many tokens the texts have, without EOD."""
        return None if self.uses is None else self.uses.sum()


CostsBySource = dict[str, TextCosts]
"""What the held-out texts of each source cost by one tokenizer."""


def measure_tokenizer(path: Path, counts: CorpusCounts, console: Console) -> CostsBySource:
    """The held-out texts of each source by one tokenizer."""
    row = {}
    for name in counts.sources:
        texts, uses = counts.heldout_texts(name), None
        try:
            uses = measure_texts(path, texts)
        except Unencodable as error:
            console.notice(f"{path} is not compared on {name}: {error}")
        spaced = pc.sum(pc.count_substring_regex(texts, r"\S+")).as_py() or 0
        row[name] = TextCosts(uses, len(buffers(texts)[0]), spaced)
    return row


def compared(row: CostsBySource) -> dict[str, Compared]:
    """The row of a tokenizer in the report."""
    return {
        name: Compared(
            None if costs.tokens is None else int(costs.tokens),
            int(costs.bytes),
            ratio(costs.bytes, costs.tokens),
            ratio(costs.tokens, costs.spaced) if costs.tokens else None,
        )
        for name, costs in row.items()
    }


def weigh_tokenizers(
    paths: Mapping[str, Path], rows: Mapping[str, CostsBySource], shares: Mapping[str, float]
) -> dict[str, OtherTokenizer]:
    """Each tokenizer on held-out texts mixed by bytes. paths, rows: `THIS` among them; shares: of each source."""
    names = {name: _entry_names(load_vocab(path, 0)) for name, path in paths.items()}
    mixed = {name: _mix(row, shares) for name, row in rows.items()}
    this = mixed[THIS]
    made = {}
    for name, costs in mixed.items():
        shared = names[THIS].keys() & names[name].keys()
        ids = sorted(names[THIS][token] for token in shared)  # sets have another order in each process
        made[name] = OtherTokenizer(
            len(names[name]),
            len(shared),
            None if this.uses is None else ratio(this.uses[ids].sum(), this.tokens),
            ratio(costs.bytes, costs.tokens),
            ratio(costs.tokens, costs.spaced) if costs.tokens else None,
            None if costs.uses is None else renyi_efficiency(costs.uses),
        )
    return made


def _mix(row: CostsBySource, shares: Mapping[str, float]) -> TextCosts:
    """Held-out texts in these proportions by bytes; without uses where a source that has a share has no text, or one
    that the tokenizer gives up on."""
    parts = [(share, row[name]) for name, share in shares.items() if share]
    factors = [share / max(1, costs.bytes) for share, costs in parts]
    uses = [f * costs.uses for f, (_, costs) in zip(factors, parts, strict=True) if costs.uses is not None]
    whole = parts and len(uses) == len(parts) and all(costs.bytes for _, costs in parts)
    return TextCosts(
        np.sum(uses, axis=0) if whole else None,
        sum(f * costs.bytes for f, (_, costs) in zip(factors, parts, strict=True)),
        sum(f * costs.spaced for f, (_, costs) in zip(factors, parts, strict=True)),
    )


def _entry_names(vocab: Vocabulary) -> dict[bytes, int]:
    """Bytes of each entry -> id, without added tokens."""
    added = set(vocab.added_tokens.values())
    return {vocab.token_bytes(i): i for i in range(vocab.size) if i not in added}
