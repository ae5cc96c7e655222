"""Helpers of the tests that read inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pretok.read.conversation import RecordFormat
from pretok.read.files import CorruptInputError, InputFile
from pretok.read.format import Piece
from pretok.read.kept import KeptColumn
from pretok.read.readers import read_piece
from pretok.read.recognise import list_inputs


class Found(NamedTuple):
    """What a file holds."""

    texts: dict[int, str]
    """Line or row -> text."""
    rejects: dict[int, str]
    """Line or row -> reason."""
    error: str
    """Of the rest, which cannot be read."""
    kept: list[tuple[Any, ...]]
    """Kept values of each text."""


def inputs_of(*patterns: Path | str, declared: str = "auto") -> list[InputFile]:
    return list_inputs([*map(str, patterns)], declared)[0]


def read(
    path: Path | str, record: RecordFormat, declared: str = "auto", keep: Sequence[KeptColumn] = ()
) -> Found:
    """All of a file. Each record is a text or a reject, and batches follow on each other."""
    found, end = Found({}, {}, "", []), 0
    (file,) = inputs_of(path, declared=declared)
    try:
        for batch in read_piece(Piece(file), 0, record, keep):
            texts = dict(zip(batch.numbers.tolist(), batch.texts.to_pylist(), strict=True))
            rejects = {reject["record"]: reject["reason"] for reject in batch.rejects.to_pylist()}
            assert (
                len(texts.keys() | rejects.keys()) == len(batch.texts) + len(batch.rejects) == batch.records
            )
            assert all(end <= number < batch.end for number in (*texts, *rejects))
            found.texts.update(texts)
            found.rejects.update(rejects)
            found.kept.extend(zip(*(column.to_pylist() for column in batch.kept), strict=True))
            end = batch.end
    except CorruptInputError as error:
        return found._replace(error=str(error))
    return found


def lines_of(texts: Sequence[str]) -> bytes:
    """JSON Lines of these texts."""
    return b"".join(json.dumps({"text": text, "id": n}).encode() + b"\n" for n, text in enumerate(texts))
