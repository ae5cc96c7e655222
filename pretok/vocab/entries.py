"""Uses of a vocabulary's entries -> what they are worth.

Input: a Vocabulary and how often each id occurs in some text. Output: how evenly the entries are used, which are
seldom used, and which serve only as steps to longer ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pretok.tokenizer.vocabulary import Vocabulary
from pretok.vocab.records import RareEntry, SizeFigures, TextFigures, ratio

Uses = npt.NDArray[np.float64]

ALPHA = 2.5
"""Order of the Renyi entropy that agreed best with the quality of translation in the paper."""
RARE = (100, 1_000, 10_000)
"""Uses below which entries are counted as rare: their vectors get so many updates in the whole training."""
LISTED = 1_000
"""Rare entries are listed up to so many uses, and up to so many of them."""


@dataclass(frozen=True, slots=True)
class Entries:
    """What a vocabulary's file says of its ids.

    sizes: int64[ids], bytes, 0 of added tokens; learned: bool[ids], neither added nor one of the 256 bytes;
    high: bool[ids], a byte that is only a part of a character; merges: (left, right, result) in order, once a result.
    """

    sizes: npt.NDArray[np.int64]
    learned: npt.NDArray[np.bool_]
    high: npt.NDArray[np.bool_]
    merges: npt.NDArray[np.int64]

    @property
    def steps(self) -> npt.NDArray[np.bool_]:
        """The ids that merges join, bool[ids]."""
        found = np.zeros(len(self.sizes), np.bool_)
        found[self.merges[:, :2]] = True
        return found


def read_entries(vocab: Vocabulary) -> Entries:
    """The entries of a vocabulary."""
    added = set(vocab.added_tokens.values())
    names = [b"" if i in added else vocab.token_bytes(i) for i in range(vocab.size)]
    sizes = np.array([len(name) for name in names], np.int64)
    ids: dict[str, int] = vocab.data["model"]["vocab"]
    merges: dict[int, tuple[int, int, int]] = {}
    for left, right in vocab.merges:
        merges.setdefault(ids[left + right], (ids[left], ids[right], ids[left + right]))
    return Entries(
        sizes,
        sizes > 1,
        np.array([len(name) == 1 and name >= b"\x80" for name in names]),
        np.array(list(merges.values()), np.int64).reshape(-1, 3),
    )


def renyi_efficiency(uses: Uses) -> float | None:
    """Renyi entropy of order ALPHA of the entries' frequencies, over that of all being equally frequent; 0 to 1.

    H(p) = log(sum(p ** ALPHA)) / (1 - ALPHA), divided by log(ids). Zouhar et al., Tokenization and the Noiseless
    Channel, 2023, https://aclanthology.org/2023.acl-long.284/. None where nothing is used.
    """
    total = uses.sum()
    if not total or len(uses) < 2:
        return None
    power = ((uses / total) ** ALPHA).sum()
    return round(float(np.log(power) / (1 - ALPHA) / np.log(len(uses))), 4)


def occurring_only_inside(entries: Entries, uses: Uses) -> int:
    """Learned entries that a text has inside of longer ones alone, along the merges that make them."""
    found = (uses > 0).tolist()
    for left, right, result in entries.merges[::-1].tolist():  # a result comes after its parts
        if found[result]:
            found[left] = found[right] = True
    return int((entries.learned & (uses == 0) & found).sum())


def text_figures(entries: Entries, uses: Uses, words: float) -> TextFigures:
    """uses: of the text; words: how many it has, as the pattern cuts it."""
    size, tokens = float(uses @ entries.sizes), float(uses.sum())
    return TextFigures(
        ratio(size, tokens),
        ratio(tokens, words),
        _share(uses[entries.sizes == 1].sum(), size),
        _share(uses[entries.high].sum(), size),
        renyi_efficiency(uses),
    )


def _share(part: float, whole: float) -> float | None:
    return round(float(part) / whole, 6) if whole else None


def size_figures(
    entries: Entries, planned: Uses, trained: npt.NDArray[np.int64], words: float
) -> SizeFigures:
    """planned: uses in the planned text, of `words` words; trained: in the text trained on, weighted as for training.

    An entry that is no step is used as often as its pair occurred when it was made, and so at least as often as the
    last entry, but for runs of a character, whose pairs overlap. A step that is used less would not be made again.
    """
    steps = entries.learned & entries.steps
    last = trained[entries.merges[-1, 2]] if len(entries.merges) else 0
    left_over = int((steps & (trained < last)).sum())
    return SizeFigures(
        text_figures(entries, planned, words),
        int(steps.sum()),
        left_over,
        ratio(left_over, len(planned)),
        int((entries.learned & (planned == 0)).sum()),
        {str(limit): int((entries.learned & (planned < limit)).sum()) for limit in RARE},
    )


def list_rare(vocab: Vocabulary, entries: Entries, planned: Uses) -> tuple[RareEntry, ...]:
    """The learned entries of fewer than LISTED uses, the rarest first."""
    rare = np.flatnonzero(entries.learned & (planned < LISTED))
    order = rare[np.argsort(planned[rare], kind="stable")][:LISTED]
    steps = entries.steps
    return tuple(
        RareEntry(i, vocab.token_bytes(i).decode(errors="replace"), int(planned[i]), bool(steps[i]))
        for i in order.tolist()
    )
