"""An existing tokenizer and counts of words -> the same tokenizer with more entries.

Input: a byte-level BPE tokenizer.json and words with their counts. Output: a tokenizer.json with the new merges behind
the old ones, in which every old id keeps its meaning; the files next to the old one; and a map from each new entry to
the old ones that it consists of.

The old tokenizer splits the words into tokens, and merging continues from there. A merge that spells an old entry is
never made, because it would change the ids of text without new entries. Added tokens are written into model.vocab, as
`tokenizers` would otherwise number them after the new entries.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretok.base.errors import UsageError
from pretok.base.storage import copy_file, write_json
from pretok.config.settings import Normalize
from pretok.kernels.pretokenize import PATTERNS, word_ends
from pretok.tokenizer.reference import pattern_of
from pretok.tokenizer.tokenizer_file import CHARACTER_BYTES, effective, to_bytes, to_characters
from pretok.tokenizer.vocab_map import FILE_NAME, MapEnd, write_map
from pretok.tokenizer.vocabulary import (
    BESIDE,
    CONFIG_FILE,
    GENERATION_FILE,
    TOKENIZER_FILE,
    Vocabulary,
    load_vocab,
)
from pretok.vocab.bpe import Merges

NFC = {"type": "NFC"}
"""The normalizer of Qwen's tokenizers."""


def open_old(path: Path, pattern: str, eod: str | None, bos: str | None) -> Vocabulary:
    """Load the tokenizer to extend.

    Raises UsageError if it cannot be extended, splits words by another pattern or has a normalizer other than NFC.
    """
    old = load_vocab(path, eod, bos)
    own = pattern_of(old.data)
    if own is None:
        raise UsageError(
            f"{old.path} splits text into words by a pattern that pretok does not know, so its words cannot be "
            f"counted. Known patterns: {', '.join(PATTERNS)} (GPT-2, Llama 3, Qwen 2 and pretok's own tokenizers)"
        )
    if own != pattern:
        raise UsageError(
            f"{old.path} splits text into words by the pattern {own}, but words would be counted by {pattern}: "
            f'give --pattern {own}, or pattern = "{own}" under [vocab]'
        )
    normalizer = effective(old.data.get("normalizer"))
    if normalizer not in (None, NFC):
        raise UsageError(
            f"{old.path} changes text before it splits it into words (normalizer {normalizer['type']}), so its words "
            "cannot be counted; of the normalizers only NFC can be extended"
        )
    _check_merges(old)
    _check_added(old, pattern)
    return old


def counted_as(old: Vocabulary, normalize: Normalize) -> Normalize:
    """Return how texts are normalized before their words are counted: as the old tokenizer does it, too.

    Else merges would be made of words that it never sees, and of those that it sees too few.
    """
    normalizer = effective(old.data.get("normalizer"))
    return normalize.model_copy(update={"unicode": "nfc"}) if normalizer == NFC else normalize


def _check_merges(old: Vocabulary) -> None:
    """Raise UsageError for an entry that no merge makes: no text would ever become it."""
    model = old.data["model"]
    reached = {left + right for left, right in old.merges} | old.added_tokens.keys()
    lost = [token for token in model["vocab"] if len(token) > 1 and token not in reached]
    if lost and not model.get("ignore_merges"):
        raise UsageError(
            f"{old.path}: no merge makes {len(lost):,} of its entries, such as {lost[0]!r}, so no text reaches them; "
            "extend the tokenizer as it was before they were appended"
        )


def _check_added(old: Vocabulary, pattern: str) -> None:
    """Raise UsageError if text could become an added token once it is in model.vocab.

    With ignore_merges, a whole word that is an entry becomes that entry.
    """
    model = old.data["model"]
    for token in old.added_tokens.keys() - model["vocab"].keys() if model.get("ignore_merges") else ():
        spelled = np.frombuffer(_spelled(token), np.uint8)
        if len(spelled) and len(word_ends(spelled, np.array([0, len(spelled)]), pattern)) == 1:
            raise UsageError(
                f"{old.path}: the added token {token!r} is one word, and with ignore_merges text that spells it would "
                "become it once it is in model.vocab; so no entries can be added"
            )


def _spelled(token: str) -> bytes:
    """Return the bytes of an entry; b"" if no merge makes it."""
    return to_bytes(token) if set(token) <= CHARACTER_BYTES.keys() else b""


def tokens_of(old: Vocabulary) -> tuple[list[bytes], npt.NDArray[np.bool_]]:
    """Return (the bytes of each id, bool[ids]: whether it is an added token, which merges never join)."""
    apart = np.zeros(old.size, np.bool_)
    apart[list(old.added_tokens.values())] = True
    return [_spelled(old.tokens.get(i, "")) for i in range(old.size)], apart


def write_extended(folder: Path, old: Vocabulary, merges: Merges) -> Vocabulary:
    """Write the extended tokenizer, the files next to the old one, and the map of the new entries."""
    model, size = old.data["model"], len(merges.tokens)
    more = [[to_characters(left), to_characters(right)] for left, right in merges.first(size)]
    entries = {to_characters(merges.tokens[i]): i for i in range(old.size, size)}
    vocab = {**model["vocab"], **old.added_tokens, **entries}
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*BESIDE, GENERATION_FILE):
        if (beside := old.path.with_name(name)).is_file():
            copy_file(beside, folder / name)
    if not (folder / CONFIG_FILE).exists():
        roles = dict.fromkeys(("eos_token", "pad_token"), old.tokens[old.eod_id])
        write_json(folder / CONFIG_FILE, {**roles, "tokenizer_class": "PreTrainedTokenizerFast"})
    # Behind the old merges, which apply first: their tokens are only joined further.
    model = {**model, "vocab": vocab, "merges": model["merges"] + more}
    write_json(folder / TOKENIZER_FILE, {**old.data, "model": model})
    extended = load_vocab(folder, old.eod_id, old.bos_id)
    ends = MapEnd(old.size, old.fingerprint), MapEnd(extended.size, extended.fingerprint)
    write_map(folder / FILE_NAME, *ends, parts_of(merges, old.size))
    return extended


def parts_of(merges: Merges, old_size: int) -> dict[int, tuple[int, ...]]:
    """Map each new id to the old ids that it consists of, along the merge that made it first."""
    parts: dict[int, tuple[int, ...]] = {}
    for (left, right), product in zip(merges.pairs.tolist(), merges.products.tolist(), strict=True):
        if product >= old_size and product not in parts:
            parts[product] = parts.get(left, (left,)) + parts.get(right, (right,))
    return parts
