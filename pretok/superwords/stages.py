"""Superword vocabularies: one tokenizer.json whose last merges join words inside of segments.

Input: a tokenizer.json. Output: the two stages it consists of. Stage 1 is an ordinary vocabulary of the pattern
`segments.BASE`; the merges of stage 2 join a token that ends a word and one that begins the next. Encoding by stage 1
and then merging by stage 2 gives what all merges in order give over segments, because no merge of stage 1 can apply
across the border of two words of a segment. That holds but for bytes that are parts of characters, of which a merge
may stand for a letter in one text and for something else in another: `drop_crossing` takes such merges out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pretok.kernels.pretokenize import LETTER, PATTERNS
from pretok.kernels.unicode import class_table
from pretok.superwords.segments import BASE, COMMA, FLAGS_OF, MARKS
from pretok.tokenizer.tokenizer_file import CHARACTER_BYTES, to_bytes

Merge = tuple[bytes, bytes]

CHARACTER_SIZES = (1, 2, 3, 4)
"""Bytes of a character in UTF-8."""


def marks(separators: int) -> tuple[bytes, ...]:
    """What a word can begin with that the separators join to the one before, as bytes."""
    return tuple(mark for flag, group in MARKS.items() if separators & flag for mark in group)


def letter_first(token: bytes) -> bool | None:
    """Whether the first character is a letter; None where it is cut, or there is none."""
    return _is_letter(token[:size] for size in CHARACTER_SIZES)


def letter_last(token: bytes) -> bool | None:
    """Whether the last character is a letter; None where it is cut, or there is none."""
    return _is_letter(token[-size:] for size in CHARACTER_SIZES)


def _is_letter(pieces: Iterable[bytes]) -> bool | None:
    """Whether the piece that is one character is a letter; None where none of them is one."""
    for piece in pieces:
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            continue
        if len(text) == 1:
            return bool(class_table()[ord(text)] & LETTER)
    return None


def begins_word(token: bytes, separators: int) -> bool:
    """Whether a token begins with a space or an apostrophe that joins, and a whole letter after it."""
    for mark in marks(separators & ~COMMA):
        rest = token.removeprefix(mark)
        if rest != token:
            return bool(letter_first(rest))
    return False


def is_superword(merge: Merge, separators: int) -> bool:
    """Whether a merge can apply only at the border of two words of a segment: what stage 2 consists of."""
    left, right = merge
    if left.endswith(b","):
        return bool(separators & COMMA) and right.startswith(b" ")
    return right.startswith(marks(separators)) and bool(letter_last(left))


def crosses(merge: Merge, separators: int) -> bool:
    """Whether a merge could apply at the border of two words of a segment: what stage 1 must not hold."""
    left, right = merge
    if is_superword(merge, separators):
        return True
    part = all(byte & 0xC0 == 0x80 for byte in left)  # of a letter, or of something else
    if part and right.startswith(marks(separators)):
        return True
    cut = any(mark != right and mark.startswith(right) for mark in marks(separators))
    return cut and (part or bool(letter_last(left)))


def drop_crossing(merges: Iterable[Merge], separators: int) -> list[Merge]:
    """Merges of stage 1 without those that `crosses` is true of, and without those that need their results.

    These join a part of a character to a separator, or a letter to a part of one. They are too rare to be missed:
    vocabularies of real text have none.
    """
    tokens = {bytes([byte]) for byte in range(256)}
    kept = []
    for left, right in merges:
        if left in tokens and right in tokens and not crosses((left, right), separators):
            tokens.add(left + right)
            kept.append((left, right))
    return kept


@dataclass(frozen=True, slots=True)
class Stages:
    """A superword vocabulary taken apart.

    separators: flags of SEPARATORS; first: tokenizer.json of stage 1; merges: of stage 2 in order, as the ids
    (left, right, result); tokens: id -> bytes, for every entry of the merges and of stage 1.
    """

    separators: int
    first: dict[str, Any]
    merges: list[tuple[int, int, int]]
    tokens: dict[int, bytes]


def split_stages(tokenizer: dict[str, Any]) -> Stages:
    """The stages of a tokenizer.json whose Split has a coarse pattern.

    Stage 2 begins with the first merge that joins words. ValueError when the merges are not stage 1 followed by stage
    2, so that encoding in two steps would not be exact.
    """
    split, *others = tokenizer["pre_tokenizer"]["pretokenizers"]
    separators = FLAGS_OF[split["pattern"]["Regex"]]
    if not all(token["special"] for token in tokenizer.get("added_tokens", [])):
        raise ValueError("its added tokens that are not special could stand inside of a segment")
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    pairs = [
        tuple(m.split(" ")) if isinstance(m, str) else (m[0], m[1]) for m in tokenizer["model"]["merges"]
    ]
    try:
        merges = [(to_bytes(left), to_bytes(right)) for left, right in pairs]
    except KeyError as error:
        raise ValueError(f"a merge holds {error}, which stands for no byte") from None
    start = next((i for i, m in enumerate(merges) if is_superword(m, separators)), len(merges))
    if any(crosses(m, separators) for m in merges[:start]):
        raise ValueError("a merge of its words could apply across words")
    if not all(is_superword(m, separators) for m in merges[start:]):
        raise ValueError("after the first merge that joins words there is one that does not")
    second = [(vocab[left], vocab[right], vocab[left + right]) for left, right in pairs[start:]]
    results = {result for _, _, result in second}
    words = {token: i for token, i in vocab.items() if i not in results}
    steps = [{**split, "pattern": {"Regex": PATTERNS[BASE]}}, *others]
    first = {
        **tokenizer,
        "pre_tokenizer": {**tokenizer["pre_tokenizer"], "pretokenizers": steps},
        "model": {**tokenizer["model"], "vocab": words, "merges": tokenizer["model"]["merges"][:start]},
    }
    added = {token["content"] for token in tokenizer.get("added_tokens", [])}
    tokens = {
        i: to_bytes(token)
        for token, i in vocab.items()
        if token not in added and CHARACTER_BYTES.keys() >= set(token)
    }
    return Stages(separators, first, second, tokens)
