"""A tokenizer.json of any origin -> its checked contents, before a library in Rust sees it.

Input: a path. Output: the bytes and what they say, of which all is checked that this project or its engines rely on;
or a UsageError with the file and the place in it. An id of 2**31 - 1 made gigatoken ask for memory until the process
was aborted, so nothing is handed on that was not looked at here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from pretok.base.errors import UsageError
from pretok.base.storage import passes


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary.

    Bytes that are printable in Latin-1 stand for themselves, the others take the code points from U+0100 on; the
    mapping is that of the GPT-2 tokenizer (Radford et al., 2019) and of `tokenizers`' ByteLevel.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    code_points = {byte: byte for byte in printable}
    code_points.update({byte: 0x100 + i for i, byte in enumerate(others)})
    return [chr(code_points[byte]) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
CHARACTER_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
ALPHABET = tuple(sorted(range(256), key=lambda byte: BYTE_CHARACTERS[byte]))
"""The 256 bytes in the order of their ids, which is that of their characters, as in `tokenizers.BpeTrainer`."""


def to_characters(token: bytes) -> str:
    """A token's bytes as they stand in a tokenizer.json."""
    return "".join(BYTE_CHARACTERS[byte] for byte in token)


def to_bytes(token: str) -> bytes:
    """Inverse of `to_characters`. KeyError for a character that stands for no byte."""
    return bytes(CHARACTER_BYTES[character] for character in token)


_NOT_SET = {
    "continuing_subword_prefix": "byte-level tokens have no prefix",
    "end_of_word_suffix": "byte-level tokens have no suffix",
    "dropout": "with that a text has other tokens each time",
}
"""What has to be null in the model, and why."""


class AddedToken(msgspec.Struct):
    """An entry that stands outside of the merges."""

    id: int
    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


class Step(msgspec.Struct):
    """A pre-tokenizer, or a sequence of them."""

    type: str
    pretokenizers: list[Step] = []
    pattern: dict[str, str] | None = None


class Model(msgspec.Struct):
    """The byte pair encoding itself."""

    vocab: dict[str, int]
    merges: list[str | tuple[str, str]]
    type: str | None = None
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class TokenizerJson(msgspec.Struct):
    """What is checked of a tokenizer.json; all else is the libraries' business."""

    model: Model
    pre_tokenizer: Step | None = None
    added_tokens: list[AddedToken] = []


def read_tokenizer(path: Path) -> tuple[bytes, dict[str, Any], int]:
    """(the bytes of a tokenizer.json, what they say, its entries, whose ids are 0 to one less).

    Raises FileNotFoundError, and UsageError for what is not a byte-level BPE whose ids are all there, each once.
    """
    raw = _read(path)
    try:
        data = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a tokenizer.json: {error}") from None
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE":
        kind = (
            f" but {model['type']}" if isinstance(model, dict) and isinstance(model.get("type"), str) else ""
        )
        raise UsageError(
            f"{path} is not a byte-level BPE tokenizer{kind}, and pretok encodes with no other: take the tokenizer of "
            "a model such as GPT-2, Llama 3 or Qwen, or make one of your text with pretok build-vocab"
        )
    try:
        contents = msgspec.convert(data, TokenizerJson)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a tokenizer.json that can be used: {error}") from None
    _check_model(path, contents)
    return raw, data, _check_ids(path, contents)


@lru_cache(maxsize=2)
def decoded(tokenizer_json: str) -> dict[str, Any]:
    """A tokenizer.json as Python values, which nobody may change: decoded once for all who look into it, as the json
    module takes a tenth of a second for 50,000 entries."""
    values: dict[str, Any] = msgspec.json.decode(tokenizer_json)
    return values


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise UsageError(f"{path} is not a tokenizer.json: it is no file")
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        if passes(error):
            raise
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _steps(step: Step | None) -> Iterator[Step]:
    if step is not None:
        yield step
        for inner in step.pretokenizers:
            yield from _steps(inner)


def _check_model(path: Path, contents: TokenizerJson) -> None:
    """That it is byte-level BPE: all 256 bytes are tokens, a ByteLevel step maps text to them, merges do the rest."""
    model = contents.model
    levels = [step for step in _steps(contents.pre_tokenizer) if step.type == "ByteLevel"]
    if not levels or not model.vocab.keys() >= CHARACTER_BYTES.keys():
        raise UsageError(
            f"{path} is not byte-level: a text could hold characters it has no token for. Take a byte-level tokenizer, "
            "such as that of GPT-2, Llama 3 or Qwen, or make one of your text with pretok build-vocab"
        )
    for name, why in _NOT_SET.items():
        if value := getattr(model, name):
            raise UsageError(f"{path}: model.{name} is {value!r}, but {why}; set it to null")


def _check_ids(path: Path, contents: TokenizerJson) -> int:
    """The number of entries. `tokenizers` numbers added tokens itself: those that the model lacks from its last id on,
    in their order, whatever the file says; so only a file that says the same has one meaning."""
    vocab = contents.model.vocab
    names: dict[int, str] = {}
    for token, i in vocab.items():
        if not 0 <= i < len(vocab):
            raise UsageError(
                f"{path}: {token!r} in model.vocab has the id {i}, but {len(vocab)} entries have the ids 0 to "
                f"{len(vocab) - 1}: others are missing"
            )
        if i in names:
            raise UsageError(f"{path}: {names[i]!r} and {token!r} in model.vocab both have the id {i}")
        names[i] = token
    added: set[str] = set()
    following = len(vocab)
    for number, entry in enumerate(contents.added_tokens):
        place = f"{path}: added_tokens[{number}], {entry.content!r},"
        if entry.content in added or not entry.content:
            raise UsageError(f"{place} is empty or stands there twice")
        added.add(entry.content)
        expected = vocab.get(entry.content, following)
        following += entry.content not in vocab
        if entry.id != expected:
            raise UsageError(
                f"{place} has the id {entry.id}, but tokenizers gives it {expected}: ids that are missing, stand twice "
                "or are out of order have more than one meaning"
            )
    return following
