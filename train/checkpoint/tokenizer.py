"""The tokenizer that goes with exported weights: the one the shards were made with, and no other.

Enters: a checkpoint's meta and, when named, a folder or a tokenizer.json. Leaves: the files of the model's folder.
Rows of the model are ids of one tokenizer; with another it would speak nonsense without an error, so fingerprints are
compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.storage import fingerprint, read_json
from train.checkpoint.meta import Meta

TOKENIZER_FILE = "tokenizer.json"
_PARTS = ("added_tokens", "normalizer", "pre_tokenizer", "model")
"""What decides ids."""


def tokenizer_files(meta: Meta, named: Path | None) -> dict[str, bytes]:
    """Contents by file name: tokenizer.json, tokenizer_config.json, special_tokens_map.json.

    named None: the copy in the shards' folder. The last two are taken from beside tokenizer.json or, where they are
    not, made of the tokens that end and begin documents. Raises UsageError when there is no tokenizer.json,
    MismatchError when it is another one.
    """
    expected, shards = meta.tokenizer.fingerprint, Path(meta.tokenizer.shards)
    place = shards if named is None else named
    path = place / TOKENIZER_FILE if place.is_dir() else place
    if not path.is_file():
        raise UsageError(f"{path} does not exist: --tokenizer names the vocabulary the shards were made with")
    data = read_json(path)
    if not isinstance(data, dict):
        raise IntegrityError(f"{path} is no tokenizer")
    found = tokenizer_fingerprint(data)
    if found != expected:
        raise MismatchError(
            f"{path} is another tokenizer than the one the model was trained with: the same ids mean other words; "
            f"{shards / TOKENIZER_FILE} is a copy of the right one, taken without --tokenizer (fingerprint {found}, "
            f"the right one has {expected})"
        )
    roles = {"eos_token": _token(data, meta.eod_id)}
    if meta.bos_id is not None:
        roles["bos_token"] = _token(data, meta.bos_id)
    made = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **roles,
            "clean_up_tokenization_spaces": False,
            "model_max_length": meta.identity.model.seq_len,
        },
        "special_tokens_map.json": roles,
    }
    files = {TOKENIZER_FILE: path.read_bytes()}
    for other, value in made.items():
        beside = path.with_name(other)
        text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
        files[other] = beside.read_bytes() if beside.is_file() else text.encode()
    return files


def tokenizer_fingerprint(data: dict[str, Any]) -> str:
    """That of a tokenizer.json, as `pretok` takes it."""
    return fingerprint({part: data.get(part) for part in _PARTS})


def _token(data: dict[str, Any], token_id: int) -> str:
    named = {token["id"]: token["content"] for token in data["added_tokens"]}
    named |= {number: token for token, number in data["model"]["vocab"].items() if number == token_id}
    found: str = named[token_id]
    return found
