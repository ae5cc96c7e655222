"""Vocabularies: merges -> an ordinary `tokenizer.json` folder, and any byte-level BPE `tokenizer.json` -> a Vocabulary.

Input: a pattern, special tokens and merges of bytes; or a file that any program wrote. Output: tokenizer.json,
tokenizer_config.json and special_tokens_map.json, which `tokenizers` and `transformers` open; or a Vocabulary, what
other stages need to know of a tokenizer. Ids: special tokens, then the 256 bytes, then one per merge.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pretok.base.errors import UsageError
from pretok.base.storage import atomic_open, write_json
from pretok.tokenizer.kinds import MARKERS
from pretok.tokenizer.tokenizer_file import (
    ALPHABET,
    CHARACTER_BYTES,
    DEFAULTS,
    fingerprint_of,
    is_byte_fallback,
    read_tokenizer,
    to_bytes,
    to_characters,
)

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
OWN_TEMPLATE = Path(__file__).with_name("chatml.jinja")
"""The chat template of a vocabulary with the markers of conversations."""
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
GENERATION_FILE = "generation_config.json"
BESIDE = (CONFIG_FILE, SPECIAL_TOKENS_FILE, TEMPLATE_FILE)
"""Files next to a tokenizer.json that stay valid with more entries. Others (vocab.json, merges.txt, added_tokens.json,
tokenizer.model) hold what tokenizer.json holds."""
EOD_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>")
"""Names of the end-of-document token to try, in this order, if the tokenizer does not declare one."""

FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
"""Flags of an added token, in the order of the file."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer."""

    path: Path
    raw: bytes = field(repr=False)
    """The bytes of the tokenizer.json."""
    data: dict[str, Any] = field(repr=False)
    """Its `canonical` contents."""
    size: int
    """One more than the largest id."""
    eod_id: int
    bos_id: int | None = None
    """The token before each document, None for none."""

    @property
    def added(self) -> list[dict[str, Any]]:
        """The added tokens, which are outside of the merges, as the file lists them: `content`, `id` and flags."""
        added: list[dict[str, Any]] = self.data.get("added_tokens", [])
        return added

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """Name -> id of the added tokens, such as special tokens."""
        return {token["content"]: token["id"] for token in self.added}

    def with_special(self, names: Collection[str]) -> Vocabulary:
        """Return the same tokenizer with these added tokens special, so that no text becomes one of them."""
        added = [{**token, "special": token["special"] or token["content"] in names} for token in self.added]
        return replace(self, data={**self.data, "added_tokens": added})

    @cached_property
    def config(self) -> dict[str, Any]:
        """The contents of the tokenizer_config.json in the same folder, {} without one. Raises UsageError."""
        path = self.path.with_name(CONFIG_FILE)
        if not path.exists():
            return {}
        try:
            config: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is not a tokenizer_config.json: {error}") from None
        return config

    def role(self, name: str) -> str:
        """Return the token that `config` gives a role such as eos_token; "" if it names none. Raises UsageError."""
        token = self.config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if not isinstance(text, str | None):
            raise UsageError(f"{self.path.with_name(CONFIG_FILE)}: {name} is not a token: {text!r}")
        return text or ""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that decides ids, however the file writes it."""
        return fingerprint_of(self.data)

    @cached_property
    def holes(self) -> list[int]:
        """The ids below `size` that no entry has. No text becomes one of them."""
        return sorted(set(range(self.size)) - self.tokens.keys())

    def holds(self, ids: npt.NDArray[Any]) -> bool:
        """Return whether each id is that of an entry."""
        inside = not ids.size or 0 <= int(ids.min()) <= int(ids.max()) < self.size
        return inside and not (self.holes and np.isin(ids, self.holes).any())

    @cached_property
    def _special(self) -> set[str]:
        return {token["content"] for token in self.added if token["special"]}

    @cached_property
    def _byte_fallback(self) -> bool:
        return is_byte_fallback(self.data)

    @cached_property
    def prefix(self) -> bool:
        """Whether each text gets a space before it that is not part of it, as Llama 2 does."""
        normalizer, splitter = (self.data.get(part) or {} for part in ("normalizer", "pre_tokenizer"))
        prepends = [step.get("prepend") for step in (normalizer, *normalizer.get("normalizers", []))]
        schemes = [
            step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            for step in (splitter, *splitter.get("pretokenizers", []))
            if step.get("type") == "Metaspace"
        ]
        return self._byte_fallback and ("▁" in prepends or any(scheme != "never" for scheme in schemes))

    @cached_property
    def tokens(self) -> dict[int, str]:
        """Id -> token as the file writes it."""
        named = {**self.data["model"]["vocab"], **self.added_tokens}
        return {i: token for token, i in named.items()}

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """The merges in order."""
        return [(left, right) for left, right in self.data["model"]["merges"]]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of text of an id.

        Of an added token, or one that is not byte-level, they are its name; of a hole b"".
        """
        text = self.tokens.get(token, "")
        if self._byte_fallback and text not in self._special:
            byte = re.fullmatch("<0x([0-9A-F]{2})>", text)
            return bytes.fromhex(byte[1]) if byte else text.replace("▁", " ").encode()
        named = text in self.added_tokens or not CHARACTER_BYTES.keys() >= set(text)
        return text.encode() if named else to_bytes(text)

    def copy_to(self, path: Path) -> None:
        """Write the bytes that were read, even if the file has changed since; an equal file is left alone."""
        if not path.exists() or path.read_bytes() != self.raw:
            with atomic_open(path) as file:
                file.write(self.raw)


def tokenizer_data(
    pattern: str, special_tokens: Sequence[str], merges: Sequence[tuple[bytes, bytes]]
) -> dict[str, Any]:
    """Make a tokenizer.json. pattern: the regular expression of its Split; merges: pairs of token bytes, in order.

    A merge whose result is a token already adds no entry, as in `tokenizers`. Raises UsageError if merges spell a
    special token: text could then become one.
    """
    # Special tokens first: their ids do not depend on how large the vocabulary becomes.
    vocab: dict[str, int] = {token: i for i, token in enumerate(special_tokens)}
    if spelled := vocab.keys() & {to_characters(left + right) for left, right in merges}:
        raise UsageError(
            f"{', '.join(sorted(spelled))} is so frequent in the text that it became an entry of the vocabulary: give "
            "the special tokens other names"
        )
    for token in [bytes([byte]) for byte in ALPHABET] + [left + right for left, right in merges]:
        # `setdefault`: a merge that spells an older token adds no entry.
        vocab.setdefault(to_characters(token), len(vocab))
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, **dict.fromkeys(FLAGS, False), "special": True}
            for i, token in enumerate(special_tokens)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            **DEFAULTS["BPE"],
            "vocab": vocab,
            "merges": [[to_characters(left), to_characters(right)] for left, right in merges],
        },
    }


def write_vocab(
    folder: Path,
    pattern: str,
    special_tokens: Sequence[str],
    merges: Sequence[tuple[bytes, bytes]],
    max_length: int | None = None,
) -> Vocabulary:
    """Write the files of a tokenizer folder. The first special token is EOD, the second, if any, padding.

    max_length: context length in tokens, beyond which `transformers` warns; None for no limit.
    """
    eod, *others = special_tokens
    roles: dict[str, Any] = {"eos_token": eod, "pad_token": others[0] if others else eod}
    write_json(folder / SPECIAL_TOKENS_FILE, {**roles, "additional_special_tokens": others[1:]})
    config = {
        **roles,
        "additional_special_tokens": others[1:],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length or 10**30,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / CONFIG_FILE, config)
    if set(MARKERS) <= set(special_tokens):
        with atomic_open(folder / TEMPLATE_FILE) as file:
            file.write(OWN_TEMPLATE.read_bytes())
    write_json(folder / TOKENIZER_FILE, tokenizer_data(pattern, special_tokens, merges))
    return load_vocab(folder)


def load_vocab(
    path: Path, eod: str | int | None = None, bos: str | int | None = None, *, decode_only: bool = False
) -> Vocabulary:
    """Read a tokenizer.json, or the one in a folder.

    eod: name or id of the end-of-document token; by default the `eos_token` of the tokenizer_config.json next to it, or
    the first of EOD_NAMES that exists; bos: name or id of the special token before each document, None for none;
    decode_only: see `read_tokenizer`. Raises
    UsageError if the file is missing, is not a byte-level BPE, lacks ids or has one twice, or has no such token.
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    try:
        raw, data, size = read_tokenizer(file, decode_only=decode_only)
    except FileNotFoundError:
        raise UsageError(
            f"no tokenizer at {file}, which does not exist: train one with pretok build-vocab, or name "
            "another with --vocab"
        ) from None
    vocab = Vocabulary(file, raw, data, size, 0)
    eod_id = _eod_id(vocab, eod)
    return replace(vocab, eod_id=eod_id, bos_id=None if bos is None else _bos_id(vocab, bos, eod_id))


def _eod_id(vocab: Vocabulary, eod: str | int | None) -> int:
    if isinstance(eod, int):
        return _entry(vocab, eod, "end-of-document token")
    name = eod or vocab.role("eos_token")
    candidates = (name,) if name else EOD_NAMES
    ids = {**vocab.data["model"]["vocab"], **vocab.added_tokens}
    if known := [ids[name] for name in candidates if name in ids]:
        return int(known[0])
    raise UsageError(
        f"{vocab.path} has no end-of-document token {' or '.join(candidates)}; name one with --eod, or as eod under "
        "[vocab]"
    )


def _entry(vocab: Vocabulary, token: int, what: str) -> int:
    """Return an id. Raises UsageError if no entry has it."""
    if token not in vocab.tokens:
        holes = ", with gaps" if vocab.holes else ""
        raise UsageError(f"{vocab.path} has no {what} {token}: its ids are 0 to {vocab.size - 1}{holes}")
    return token


def _bos_id(vocab: Vocabulary, bos: str | int, eod_id: int) -> int:
    """Return the id of BOS.

    Only a special token is accepted: no text becomes one, so it occurs only where documents begin.
    """
    if isinstance(bos, int):
        return _entry(vocab, bos, "token to begin documents with,")
    special = {token["content"]: token["id"] for token in vocab.added if token["special"]}
    if bos not in special:
        names = ", ".join(list(special)[:6]) + (", ..." if len(special) > 6 else "")
        raise UsageError(
            f"{vocab.path} has no special token {bos!r} to begin documents with; it has {names or 'none'}: name one of "
            "them as bos under [vocab]"
        )
    if special[bos] == eod_id:
        raise UsageError(
            f"{vocab.path}: {bos!r} both begins and ends documents; name another as bos or eod under [vocab]"
        )
    return int(special[bos])
