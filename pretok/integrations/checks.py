"""What is refused before the first step: another model, another length, another stream, too few sequences.

Input: a View and what a trainer says of itself. Output: nothing, or UsageError or MismatchError that name both sides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretok.base.errors import MismatchError, UsageError
from pretok.stream import View, same_until
from pretok.stream.mix_file import mix_json, parse_mix
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, load_vocab

PADDING = 4096
"""Rows of embeddings beyond the vocabulary that may be padding; more belong to another tokenizer."""


def check_model(
    view: View, *, seq_len: int | None = None, rows: int | None = None, tokenizer: str | Path | None = None
) -> None:
    """MismatchError where the model is not made for the stream.

    seq_len: tokens of a sequence that the trainer was told; rows: of its embeddings, which may be padded; tokenizer:
    the folder or tokenizer.json that it uses. None: not known.
    """
    if seq_len not in (None, view.seq_len):
        raise MismatchError(
            f"the trainer wants sequences of {seq_len} tokens, the mix has {view.seq_len}: make them equal"
        )
    if rows is not None and not view.vocab_size <= rows <= view.vocab_size + PADDING:
        raise MismatchError(
            f"the model has {rows} rows of embeddings and the vocabulary of the shards {view.vocab_size} ids: the "
            "model belongs to another tokenizer"
        )
    if tokenizer is not None and (path := Path(tokenizer)).exists():
        file = path / TOKENIZER_FILE if path.is_dir() else path
        if file.exists() and (vocab := load_vocab(file, eod=view.eod_id)).fingerprint != (
            ours := view.tokenizer["fingerprint"]
        ):
            raise MismatchError(
                f"{file} has {vocab.size} ids and the fingerprint {vocab.fingerprint}, the shards were made with "
                f"{view.vocab_size} ids and {ours}: name the tokenizer of the shards"
            )


def check_length(view: View, sequences: int) -> None:
    """UsageError where a run is to read more sequences than there are."""
    if sequences > len(view):
        raise UsageError(
            f"the run reads {sequences:,} sequences and the stream has {len(view):,}: take fewer steps, or make a "
            "longer mix (pretok mix --continue)"
        )


def saved_state(view: View, position: int) -> dict[str, str | int]:
    """What a checkpoint keeps of a stream: the position, and what the stream is."""
    return {"position": position, "stream": view.fingerprint, "mix": json.dumps(mix_json(view.mix))}


def checked_position(view: View, state: Mapping[str, Any]) -> int:
    """The position in a saved state. MismatchError where that is of another stream, which is not the same up to there,
    or no state of ours."""
    try:
        position, stream = int(state["position"]), state["stream"]
        mix = (
            None
            if stream == view.fingerprint
            else parse_mix(json.loads(state["mix"]), Path("the checkpoint"))
        )
    except KeyError as error:
        raise MismatchError(
            f"the checkpoint has no position of pretok's in its loader's state (no {error}, but "
            f"{', '.join(map(str, state)) or 'nothing'}): it was written with another loader"
        ) from None
    same = len(view) if mix is None else same_until(mix, view.mix, view.but_for_removals)
    if not 0 <= position <= same:
        raise MismatchError(
            f"the checkpoint has read {position} sequences of the stream {stream}; this one is {view.fingerprint} and "
            f"the same up to {same}: name the shards and the mix that the run reads, or one that continues that mix"
        )
    return position
