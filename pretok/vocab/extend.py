"""An existing tokenizer and counts of words -> the same tokenizer with more entries.

Input: a byte-level BPE tokenizer.json and words with their counts. Output: tokenizer.json, in which the new merges
stand after the old ones and every old id keeps its meaning, with the files that stood beside it; and what each new
entry is made of.

Words begin as the old tokenizer cuts them, and are merged on. A merge that spells an old entry is never made: it would
change the ids of text without new entries. Added tokens are written into model.vocab, because `tokenizers` would
number those that are not there after the new entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.storage import copy_file, write_json
from pretok.base.vocab_map import FILE_NAME, MapEnd, write_map
from pretok.kernels.pretokenize import PATTERNS, word_ends
from pretok.tokenizer.reference import split_of
from pretok.tokenizer.tokenizer_file import CHARACTER_BYTES, to_bytes, to_characters
from pretok.tokenizer.vocabulary import (
    CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    Vocabulary,
    load_vocab,
)
from pretok.vocab.bpe import Merges

BESIDE = (CONFIG_FILE, SPECIAL_TOKENS_FILE, "chat_template.jinja")
"""Files beside a tokenizer.json that hold with more entries as well. vocab.json and merges.txt do not."""
STEPS = 8
"""How many sizes on the way the report looks at, so that a person sees where to stop."""


def open_old(path: Path, pattern: str, eod: str | None, bos: str | None) -> Vocabulary:
    """The tokenizer to extend. UsageError for one that cannot be, or whose words another pattern cuts."""
    if not (path / TOKENIZER_FILE if path.is_dir() else path).exists():
        raise UsageError(f"--extend: {path} is no {TOKENIZER_FILE}, nor a folder that holds one")
    old = load_vocab(path, eod, bos)
    found = _pattern_of(old.data)
    if found is None:
        raise UsageError(
            f"{old.path} cuts text into words by a pattern that is not known here, so no counts fit it; known are "
            f"those of GPT-2, Llama 3, Qwen 2 and what pretok makes: {', '.join(PATTERNS)}"
        )
    if found != pattern:
        raise UsageError(
            f"{old.path} cuts text into words by the pattern {found}, and the words are to be counted by {pattern}: "
            f'give --pattern {found}, or pattern = "{found}" under [vocab]'
        )
    _check_merges(old)
    _check_added(old, pattern)
    return old


def _pattern_of(tokenizer: dict[str, Any]) -> str | None:
    """The name in PATTERNS of what cuts its words. GPT-2's is the one that ByteLevel has by itself."""
    step = tokenizer["pre_tokenizer"]
    if step["type"] == "ByteLevel":
        return "gpt2" if step.get("use_regex", True) and not step.get("add_prefix_space", True) else None
    pattern = split_of(tokenizer)
    return next((name for name, regex in PATTERNS.items() if regex == pattern), None)


def _check_merges(old: Vocabulary) -> None:
    """UsageError where merges do not make the entries: those that they do not make are never reached."""
    model = old.data["model"]
    vocab: dict[str, int] = model["vocab"]
    made = {left + right for left, right in old.merges}
    if unknown := made - vocab.keys():
        raise UsageError(f"{old.path}: a merge makes {min(unknown)!r}, which is no entry of model.vocab")
    lost = [t for t in vocab if len(t) > 1 and t not in made and t not in old.added_tokens]
    if lost and not model.get("ignore_merges"):
        raise UsageError(
            f"{old.path}: no merge makes {len(lost):,} of its entries, such as {lost[0]!r}, so no text reaches them; "
            "extend the tokenizer as it was before they were appended"
        )


def _check_added(old: Vocabulary, pattern: str) -> None:
    """UsageError where text could become an added token once it stands in model.vocab: ignore_merges takes a word that
    is an entry as it is."""
    model = old.data["model"]
    for token in old.added_tokens.keys() - model["vocab"].keys() if model.get("ignore_merges") else ():
        spelled = np.frombuffer(_spelled(token), np.uint8)
        if len(spelled) and len(word_ends(spelled, np.array([0, len(spelled)]), pattern)) == 1:
            raise UsageError(
                f"{old.path}: the added token {token!r} is one word, and with ignore_merges text that spells it would "
                "become it once entries follow; no entries can be added"
            )


def _spelled(token: str) -> bytes:
    """The bytes of a text that an entry stands for, b"" where no text becomes it by merges."""
    return to_bytes(token) if set(token) <= CHARACTER_BYTES.keys() else b""


def tokens_of(old: Vocabulary) -> tuple[list[bytes], npt.NDArray[np.bool_]]:
    """(the bytes of each id, whether merges leave it apart, as they do added tokens)."""
    apart = np.zeros(old.size, np.bool_)
    apart[list(old.added_tokens.values())] = True
    return [_spelled(old.tokens[i]) for i in range(old.size)], apart


def least_used(old: Vocabulary, uses: npt.NDArray[np.float64], count: int) -> list[int]:
    """The `count` learned entries of fewest uses, in the order in which they go: none that is a part of one that stays.

    uses: float64[ids], in the planned text. When an entry goes, what it was made of has its uses too.
    """
    ids: dict[str, int] = old.data["model"]["vocab"]
    made_by: dict[int, list[tuple[int, int]]] = {}
    parts = np.zeros(old.size, np.int64)
    for left, right in old.merges:
        made_by.setdefault(ids[left + right], []).append((ids[left], ids[right]))
        parts[ids[left]] += 1
        parts[ids[right]] += 1
    uses = uses.copy()
    heap = [(uses[i], -i) for i in made_by if not parts[i]]
    heapq.heapify(heap)
    gone: list[int] = []
    while heap and len(gone) < count:
        entry = -heapq.heappop(heap)[1]
        gone.append(entry)
        for part in made_by[entry][0]:
            uses[part] += uses[entry]
        for part in {part for pair in made_by[entry] for part in pair}:
            parts[part] -= sum(pair.count(part) for pair in made_by[entry])
            if not parts[part] and part in made_by:
                heapq.heappush(heap, (uses[part], -part))
    return gone


def without(old: Vocabulary, gone: Collection[int]) -> Vocabulary:
    """The tokenizer without some entries, in whose place stand names that no text becomes."""
    if not gone:
        return old
    model = old.data["model"]
    vocab = {f"gone {i}" if i in gone else token: i for token, i in model["vocab"].items()}
    kept = [
        merge
        for merge, (left, right) in zip(model["merges"], old.merges, strict=True)
        if left + right in vocab
    ]
    data = old.data | {"model": model | {"vocab": vocab, "merges": kept}}
    return replace(old, raw=msgspec.json.encode(data), data=data)


def write_extended(
    folder: Path, old: Vocabulary, merges: Merges, size: int, gone: Collection[int] = ()
) -> Vocabulary:
    """Write the tokenizer of `size` entries, the files that stood beside the old one, and the map.

    size: as if none were `gone`, whose ids the first new entries take.
    """
    kept = without(old, gone).data["model"]
    pairs = [(to_characters(left), to_characters(right)) for left, right in merges.first(size)]
    texts = bool(kept["merges"]) and isinstance(kept["merges"][0], str)
    ids = dict(zip(range(old.size, size), [*sorted(gone), *range(old.size, size)], strict=False))
    named = {i: token for token, i in (kept["vocab"] | old.added_tokens).items()}
    named |= {ids[i]: to_characters(merges.tokens[i]) for i in ids}
    more = [f"{left} {right}" if texts else [left, right] for left, right in pairs]
    model = {"vocab": {token: i for i, token in named.items()}, "merges": kept["merges"] + more}
    data = old.data | {"model": kept | model}
    folder.mkdir(parents=True, exist_ok=True)
    for name in BESIDE:
        if (beside := old.path.with_name(name)).is_file():
            copy_file(beside, folder / name)
    if not (folder / CONFIG_FILE).exists():
        roles = dict.fromkeys(("eos_token", "pad_token"), old.tokens[old.eod_id])
        write_json(folder / CONFIG_FILE, {**roles, "tokenizer_class": "PreTrainedTokenizerFast"})
    write_json(folder / TOKENIZER_FILE, data)
    made = load_vocab(folder, old.eod_id, old.bos_id)
    ends = MapEnd(old.size, old.fingerprint), MapEnd(made.size, made.fingerprint)
    write_map(folder / FILE_NAME, *ends, {ids[i]: parts for i, parts in made_of(merges, size).items()})
    return made


def made_of(merges: Merges, size: int) -> dict[int, tuple[int, ...]]:
    """New id below `size` -> the old ids that it is made of, along the merge that made it first."""
    parts: dict[int, tuple[int, ...]] = {}
    for (left, right), product in zip(merges.pairs.tolist(), merges.products.tolist(), strict=True):
        if product < size and product not in parts:
            parts[product] = parts.get(left, (left,)) + parts.get(right, (right,))
    return parts


def steps_of(old: int, new: int) -> list[int]:
    """Sizes from the old one to before the new one: a thousand entries apart, or as many as are STEPS of them."""
    return [*range(old, new, max(1000, -(-(new - old) // STEPS)))]
