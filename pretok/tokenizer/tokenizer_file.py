"""A tokenizer.json of any origin -> its checked contents, before a library in Rust reads it.

Input: a path. Output: the bytes and their contents, or a UsageError with the file and the place in it. Everything that
pretok or its engines rely on is checked: an id of 2**31 - 1 made gigatoken allocate memory until the process was
aborted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pretok.base.errors import UsageError


def _byte_characters() -> list[str]:
    """The printable character for each byte in a byte-level vocabulary.

    Bytes that are printable in Latin-1 stand for themselves, the others get the code points from U+0100 on. The mapping
    is that of the GPT-2 tokenizer (Radford et al., 2019) and of ByteLevel in `tokenizers`.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    following = map(chr, range(0x100, 0x200))
    return [chr(byte) if byte in printable else next(following) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
CHARACTER_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
ALPHABET = tuple(sorted(range(256), key=lambda byte: BYTE_CHARACTERS[byte]))
"""The 256 bytes in the order of their ids: that of their characters, as in `tokenizers.BpeTrainer`."""


def to_characters(token: bytes) -> str:
    """A token's bytes as a tokenizer.json writes them."""
    return "".join(BYTE_CHARACTERS[byte] for byte in token)


def to_bytes(token: str) -> bytes:
    """Inverse of `to_characters`. Raises KeyError for a character that no byte has."""
    return bytes(CHARACTER_BYTES[character] for character in token)


class AddedToken(msgspec.Struct):
    """A token outside of the merges."""

    id: int
    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


class PreTokenizerStep(msgspec.Struct):
    """A pre-tokenizer, or a sequence of them."""

    type: str
    pretokenizers: list[PreTokenizerStep] = []
    pattern: dict[str, str] | None = None


class Model(msgspec.Struct):
    """The byte pair encoding. Its last three fields must be null."""

    vocab: dict[str, int]
    merges: list[str | tuple[str, str]]
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class TokenizerJson(msgspec.Struct):
    """The parts of a tokenizer.json that are checked here. The libraries check the rest."""

    model: Model
    pre_tokenizer: PreTokenizerStep | None = None
    added_tokens: list[AddedToken] = []


def read_tokenizer(path: Path) -> tuple[bytes, dict[str, Any], int]:
    """(the bytes of a tokenizer.json, its contents, the number of its entries).

    Raises FileNotFoundError, and UsageError if it is not a byte-level BPE with the ids from 0 on, each once.
    """
    raw = path.read_bytes()
    try:
        data = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a tokenizer.json: {error}") from None
    model = data.get("model") if isinstance(data, dict) else None
    kind = model.get("type") if isinstance(model, dict) else None
    if kind != "BPE":
        raise UsageError(
            f"{path} is not a byte-level BPE tokenizer{f' but {kind}' if kind else ''}, the only kind that pretok "
            "supports: use the tokenizer of a model such as GPT-2, Llama 3 or Qwen, or train one with pretok "
            "build-vocab"
        )
    try:
        contents = msgspec.convert(data, TokenizerJson)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a tokenizer.json that can be used: {error}") from None
    _check_model(path, contents)
    return raw, data, _check_ids(path, contents)


def _steps(step: PreTokenizerStep | None) -> Iterator[PreTokenizerStep]:
    if step is not None:
        yield step
        for inner in step.pretokenizers:
            yield from _steps(inner)


def _check_model(path: Path, contents: TokenizerJson) -> None:
    """Raises UsageError if it is not byte-level: all 256 bytes are tokens, and a ByteLevel step makes them of text."""
    model = contents.model
    levels = [step for step in _steps(contents.pre_tokenizer) if step.type == "ByteLevel"]
    if not levels or not model.vocab.keys() >= CHARACTER_BYTES.keys():
        raise UsageError(
            f"{path} is not byte-level: it may have no token for a character of your text. Use a byte-level tokenizer "
            "such as that of GPT-2, Llama 3 or Qwen, or train one with pretok build-vocab"
        )
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if value := getattr(model, name):
            raise UsageError(f"{path}: model.{name} is {value!r}, which is not supported; set it to null")


def _check_ids(path: Path, contents: TokenizerJson) -> int:
    """The number of entries. `tokenizers` ignores the ids of added tokens in the file: it numbers those that the model
    lacks after the last id of the model, in their order. So only a file with these ids has one meaning."""
    vocab = contents.model.vocab
    tokens = {i: token for token, i in vocab.items()}
    for token, i in vocab.items():
        if not 0 <= i < len(vocab) or tokens[i] != token:
            raise UsageError(
                f"{path}: {token!r} in model.vocab has the id {i}, but {len(vocab)} entries must have the ids 0 to "
                f"{len(vocab) - 1}, each once"
            )
    names: set[str] = set()
    following = len(vocab)
    for number, entry in enumerate(contents.added_tokens):
        place = f"{path}: added_tokens[{number}], {entry.content!r},"
        if entry.content in names or not entry.content:
            raise UsageError(f"{place} is empty or there twice")
        names.add(entry.content)
        expected = vocab.get(entry.content, following)
        following += entry.content not in vocab
        if entry.id != expected:
            raise UsageError(f"{place} has the id {entry.id}, but tokenizers gives it {expected}")
    return following
