"""A tokenizer.json of any origin -> its checked contents, before a library in Rust reads it.

Input: a path. Output: the bytes and their contents, or a UsageError with the file and the place in it. Everything that
pretok or its engines rely on is checked: an id of 2**31 - 1 made gigatoken allocate memory until the process was
aborted. Files that compute the same have the same contents (`canonical`), however a program wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pretok.base.errors import UsageError
from pretok.base.storage import digest


def _byte_characters() -> list[str]:
    """Return the printable character for each byte in a byte-level vocabulary.

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
    """Write a token's bytes as a tokenizer.json writes them."""
    return "".join(BYTE_CHARACTERS[byte] for byte in token)


def to_bytes(token: str) -> bytes:
    """Invert `to_characters`. Raises KeyError for a character that no byte has."""
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
    """The byte pair encoding. Its last three fields must be null or empty."""

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


DEFAULTS: dict[str, dict[str, Any]] = {
    "BPE": {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    },
    "ByteLevel": {"use_regex": True},
    "Punctuation": {"behavior": "Isolated"},
}
"""Type of a part -> the keys that a file may leave out, with what `tokenizers` takes for them."""
_DECIDE_NO_ID = {"ByteLevel": {"trim_offsets": True}}
"""Type of a part -> keys that only decide where a token lies in its text, and the values that pretok writes."""


def canonical(data: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a checked tokenizer.json in the one form of all files that compute the same ids.

    Merges are pairs, defaults are written out, and normalizers that change nothing are none.
    """
    model = {**_filled(data["model"]), "merges": [_pair(merge) for merge in _merges(data["model"])]}
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        model[name] = model[name] or None
    names = AddedToken.__struct_fields__
    added = [{name: token[name] for name in names} for token in data.get("added_tokens", [])]
    return {
        **data,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "normalizer": effective(data.get("normalizer")),
        "pre_tokenizer": _filled(data.get("pre_tokenizer")),
        "model": model,
    }


def fingerprint_of(data: dict[str, Any]) -> str:
    """Return the hash of everything in `canonical` contents that decides ids; padding and truncation do not count.

    It equals `storage.fingerprint`, but msgspec writes the JSON in a tenth of the time, for which every job waits.
    """
    parts = {part: data[part] for part in ("added_tokens", "normalizer", "pre_tokenizer", "model")}
    return digest(msgspec.json.encode(parts, order="deterministic"))


def _filled(part: Any) -> Any:
    """Write out the defaults of a part, and of all parts of a Sequence."""
    if not isinstance(part, dict):
        return part
    steps = {"pretokenizers": [_filled(step) for step in part.get("pretokenizers", [])]}
    kind = part.get("type", "")
    inner = steps if kind == "Sequence" else {}
    return {**DEFAULTS.get(kind, {}), **part, **_DECIDE_NO_ID.get(kind, {}), **inner}


def _merges(model: dict[str, Any]) -> Iterator[str | list[str]]:
    """Yield the merges, without the line with a version that `tokenizers` passes over."""
    return (
        merge for merge in model["merges"] if not (isinstance(merge, str) and merge.startswith("#version"))
    )


def _pair(merge: str | list[str]) -> list[str]:
    """Return a merge as a pair; older files write it as one string. Raises ValueError if it is none."""
    pair = merge.split(" ") if isinstance(merge, str) else merge
    if len(pair) != 2:
        raise ValueError(f"the merge {merge!r} is not of two tokens")
    return pair


def effective(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what a normalizer changes: None if that is nothing, as for a Sequence of none."""
    match normalizer:
        case {"type": "Sequence", "normalizers": [*steps]}:
            left = [step for step in map(effective, steps) if step is not None]
            if len(left) > 1:
                return {"type": "Sequence", "normalizers": left}
            return left[0] if left else None
        case (
            {"type": "Strip", "strip_left": False, "strip_right": False}
            | {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "lowercase": False,
               "strip_accents": False | None}
        ):  # fmt: skip
            return None
        case {"type": "Replace", "pattern": {"String": text}, "content": same} if text == same:
            return None
    return normalizer


def read_tokenizer(path: Path, *, decode_only: bool = False) -> tuple[bytes, dict[str, Any], int]:
    """Read (the bytes of a tokenizer.json, its `canonical` contents, one more than its highest id).

    decode_only: also accept a BPE with tokens for bytes (`byte_fallback`), of which the text follows from ids. Raises
    FileNotFoundError, and UsageError if it is not a byte-level BPE with each id once.
    """
    if hint := conversion(path):
        raise UsageError(hint)
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
    if not (decode_only and is_byte_fallback(data)):
        _check_model(path, contents)
    size = _check_ids(path, contents)
    try:
        return raw, canonical(data), size
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a tokenizer.json that can be used: {error}") from None


_CODE = {
    "tekken": "from transformers.integrations.mistral.tokenizer import MistralConverter as C; C({file!r}).converted()",
    "tiktoken": (
        "from transformers.convert_slow_tokenizer import TikTokenConverter as C; "
        "C({file!r}, pattern=open('pattern.txt').read(), extra_special_tokens=['<|endoftext|>']).converted()"
    ),
    "merges": "from tokenizers import ByteLevelBPETokenizer as C; C({vocab!r}, {file!r})",
}
"""Form of a tokenizer -> Python whose value has `save`, with the names of files in it."""
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")


def conversion(path: Path) -> str:
    """Return what to do if there is another form of tokenizer instead of the tokenizer.json at a path, "" otherwise."""
    folder, names = path.parent, [path.name]
    if not path.is_file():
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        file = folder / name
        if "tekken" in name and file.suffix == ".json":
            form, what = "tekken", "is a tokenizer of mistral-common"
        elif name in ("merges.txt", "vocab.json") and (folder / "merges.txt").is_file():
            form, what, file = "merges", "is a part of a tokenizer", folder / "merges.txt"
        elif file.suffix in (".tiktoken", ".model") and file.is_file():
            with file.open("rb") as stream:
                if not _TIKTOKEN.match(stream.read(4096)):
                    return (
                        f"{file} is a model of SentencePiece, which is not byte-level: pretok does not encode with it. "
                        "To read tokens that it made, name the tokenizer.json that transformers writes, by "
                        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
                    )
            form, what = (
                "tiktoken",
                "is a list of tiktoken; write the pattern that splits its words to pattern.txt",
            )
        else:
            continue
        code = _CODE[form].format(file=str(file), vocab=str(folder / "vocab.json"))
        out = str(folder / "tokenizer.json")
        return f'{file} {what}; this makes a tokenizer.json of it: python -c "{code}.save({out!r})"'
    return ""


def _steps(step: PreTokenizerStep | None) -> Iterator[PreTokenizerStep]:
    if step is not None:
        yield step
        for inner in step.pretokenizers:
            yield from _steps(inner)


def is_byte_fallback(data: dict[str, Any]) -> bool:
    """Return whether entries of a BPE are text with `▁` for a space, or `<0x0A>` for a byte."""
    model = data["model"]
    return bool(model.get("byte_fallback")) and "<0x00>" in model["vocab"]


def _check_model(path: Path, contents: TokenizerJson) -> None:
    """Check that a model is byte-level: all 256 bytes are tokens, and a ByteLevel step makes them of text.

    Raises UsageError.
    """
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
    """Check the ids of a tokenizer.json, and return one more than the highest.

    `tokenizers` ignores the ids of added tokens in the file: it numbers those that the model lacks after the entries of
    the model and the added tokens before them. So only a file with these ids has one meaning. Ids of no entry are
    allowed, as cl100k has some, but fewer than entries: rows of matrices are made for all.
    """
    vocab = contents.model.vocab
    tokens = {i: token for token, i in vocab.items()}
    for token, i in vocab.items():
        if not 0 <= i < 2 * len(vocab) or tokens[i] != token:
            raise UsageError(
                f"{path}: {token!r} in model.vocab has the id {i}, but {len(vocab)} entries must have ids from 0 to "
                f"{2 * len(vocab) - 1}, each once"
            )
    names: set[str] = set()
    following = len(vocab)
    for number, entry in enumerate(contents.added_tokens):
        place = f"{path}: added_tokens[{number}], {entry.content!r},"
        if entry.content in names or not entry.content:
            raise UsageError(f"{place} is empty or there twice")
        names.add(entry.content)
        expected = vocab.get(entry.content, following)
        following = max(following, expected + 1)
        if entry.id != expected:
            raise UsageError(f"{place} has the id {entry.id}, but tokenizers gives it {expected}")
        if tokens.setdefault(expected, entry.content) != entry.content:
            raise UsageError(f"{place} has the id {entry.id}, which is also that of {tokens[expected]!r}")
    return max(tokens) + 1
