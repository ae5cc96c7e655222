"""Checks before the first step: another model, another length, another stream, too few sequences.

Input: a View and the trainer's settings. Output: nothing, or a UsageError or MismatchError that names both sides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretok.base.errors import MismatchError, UsageError
from pretok.stream import View, same_until
from pretok.stream.mix_file import parse_mix
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, load_vocab

PADDING = 4096
"""Rows of the embedding beyond the vocabulary that may be padding; more belong to another tokenizer."""


def check_model(
    view: View, *, seq_len: int | None = None, rows: int | None = None, tokenizer: str | Path | None = None
) -> None:
    """Raise MismatchError if the model does not fit the stream.

    seq_len: sequence length of the trainer. rows: rows of its embedding, perhaps padded. tokenizer: its tokenizer.json,
    or its folder. None: unknown.
    """
    if seq_len not in (None, view.seq_len):
        raise MismatchError(
            f"the trainer is set to sequences of {seq_len} tokens, but the mix has {view.seq_len}: make them equal"
        )
    if rows is not None and not view.vocab_size <= rows <= view.vocab_size + PADDING:
        raise MismatchError(
            f"the model has {rows} rows of embeddings, but the vocabulary of the shards has {view.vocab_size} ids: the "
            "model belongs to another tokenizer"
        )
    if tokenizer is not None and (path := Path(tokenizer)).exists():
        file = path / TOKENIZER_FILE if path.is_dir() else path
        if file.exists() and (vocab := load_vocab(file, eod=view.eod_id)).fingerprint != (
            ours := view.tokenizer["fingerprint"]
        ):
            raise MismatchError(
                f"{file} has {vocab.size} ids and the fingerprint {vocab.fingerprint}, but the shards were made with "
                f"{view.vocab_size} ids and {ours}: name the tokenizer of the shards"
            )


def check_length(view: View, sequences: int) -> None:
    """Raise UsageError if a run would read more sequences than the stream has."""
    if sequences > len(view):
        raise UsageError(
            f"the run reads {sequences:,} sequences, but the stream has {len(view):,}: use fewer steps, or make a "
            "longer mix (pretok mix --continue)"
        )


def checked_position(view: View, state: Mapping[str, Any]) -> int:
    """Return the position in a saved state.

    Raises MismatchError if the state is not a state of pretok, or belongs to a stream that differs before that
    position.
    """
    try:
        position, stream = int(state["position"]), state["stream"]
        mix = None
        if stream != view.fingerprint:
            mix = parse_mix(json.loads(state["mix"]), Path("the checkpoint"))
    except KeyError as error:
        raise MismatchError(
            f"the loader's state in the checkpoint has no position of pretok (no {error}, but "
            f"{', '.join(map(str, state)) or 'nothing'}): it was written with another loader"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise MismatchError(f"the state of pretok's loader in the checkpoint is damaged: {error}") from None
    same = len(view) if mix is None else same_until(mix, view.mix, view.but_for_removals)
    if not 0 <= position <= same:
        raise MismatchError(
            f"the checkpoint has read {position} sequences of the stream {stream}; this one is {view.fingerprint}, and "
            f"only the first {same} are the same: name the shards and the mix of the run, or a mix that continues it"
        )
    return position
