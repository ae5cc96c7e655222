"""A user's questions -> how well a model in training answers them.

Input: JSON Lines named by --evaluate, the tokenizer of the shards, the model on its mesh. Output: Questions as rows of
token ids, the same on every rank; for each file its Answers, equal on all ranks, None when a stop was asked for on the
way. One object a line, all of a file of one kind; keys that are not named here are left alone:

    {"question": "Qual è la capitale d'Italia?", "choices": ["Roma", "Parigi"], "answer": 0}
    {"context": "La capitale d'Italia è", "choices": [" Roma", " Parigi"], "answer": 0}
    {"context": "The capital of France is", "continuation": " Paris"}

`answer` counts from 0. A choice follows a question after one space, unless there is white space already; after a
context it follows as it is written, so "dell'" can be followed by "Italia". White space at the end of the first part is
scored with the second, because vocabularies join it to the word that follows.

A row is what stands before the text of every document of a stream (its BOS, or else the EOD of the one before), the
context and the continuation. They are encoded as one text where the context's own tokens are its beginning, else each
alone: no token holds bytes of both. The score of a continuation is its log-likelihood divided by its bytes of text in
UTF-8, so that neither a longer choice nor one of more tokens is at a disadvantage. The best score is the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pretok.base.errors import MismatchError, UsageError
from pretok.base.storage import read_json
from pretok.shards.manifest import load_manifest
from train.checkpoint.export import TOKENIZER_FILE, tokenizer_fingerprint
from train.evaluate import bits_per_byte, stop_agreed
from train.model.loss import IGNORE
from train.parallel.mesh import data_rank, reshard
from train.step import Trainee

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Row:
    """ids: all tokens of a row; scored: how many at its end are the continuation; text_bytes: of that, in UTF-8."""

    ids: list[int]
    scored: int
    text_bytes: int


@dataclass(frozen=True, slots=True)
class Question:
    """The rows of its choices, and which is right; a cloze has one row, which is right."""

    rows: list[Row]
    answer: int


@dataclass(frozen=True, slots=True)
class Questions:
    """A file of questions, of one kind: `cloze`, or of several choices."""

    name: str
    cloze: bool
    items: list[Question]


def load_encode(shards: Path) -> Encode:
    """Text -> ids of the shards' tokenizer, the names of special tokens being text.

    Raises UsageError without the package `tokenizers` or the file, MismatchError when it is another tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError("--evaluate needs the package tokenizers: pip install tokenizers") from None
    path = shards / TOKENIZER_FILE
    if not path.is_file():
        raise UsageError(f"--evaluate needs {path}, the copy of the tokenizer that pretok tokenize leaves")
    data = read_json(path)
    found = tokenizer_fingerprint(data)
    expected = load_manifest(shards).tokenizer.fingerprint
    if found != expected:
        raise MismatchError(
            f"{path} is another tokenizer (fingerprint {found}) than that of the shards ({expected})"
        )
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def load_questions(files: Mapping[str, Path], shards: Path, first_id: int, seq_len: int) -> list[Questions]:
    """Read and encode the files, by name.

    Raises UsageError, which names file and line, for what is no question and for a row of more than seq_len + 1 tokens,
    which the model was never trained on; nothing is cut.
    """
    if not files:
        return []
    encode = load_encode(shards)
    return [_read(name, path, encode, first_id, seq_len) for name, path in files.items()]


def _read(name: str, path: Path, encode: Encode, first_id: int, seq_len: int) -> Questions:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--evaluate {name}: {path} cannot be read: {error}") from None
    items: list[Question] = []
    cloze = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            first, seconds, answer = _parts(record)
            if items and cloze != ("continuation" in record):
                raise ValueError(
                    "the lines above are of the other kind, choices or continuation; use two files"
                )
            cloze = "continuation" in record
            rows = [_row(first, second, encode, first_id) for second in seconds]
            if (longest := max(len(row.ids) for row in rows)) > seq_len + 1:
                raise ValueError(f"{longest} tokens; the model is trained on {seq_len}, shorten or drop it")
        except ValueError as error:
            raise UsageError(f"{path}:{number}: {error}") from None
        items.append(Question(rows, answer))
    if not items:
        raise UsageError(f"--evaluate {name}: {path} holds no question")
    return Questions(name, cloze, items)


def _parts(record: Any) -> tuple[str, list[str], int]:
    """What comes first, what may follow, and which of these is right. ValueError says what is wrong."""
    if not isinstance(record, dict) or ("question" in record) == ("context" in record):
        raise ValueError('a line is an object with "question" or "context"')
    if ("choices" in record) == ("continuation" in record):
        raise ValueError('either "choices" with "answer" or "continuation" is needed')
    first = record["question"] if "question" in record else record["context"]
    seconds = record["choices"] if "choices" in record else [record["continuation"]]
    answer = record.get("answer") if "choices" in record else 0
    if not isinstance(seconds, list) or ("choices" in record and len(seconds) < 2):
        raise ValueError('"choices" is a list of at least two texts')
    if not all(isinstance(text, str) and text for text in [*seconds, first]):
        raise ValueError("every text is a string and not empty")
    if type(answer) is not int or not 0 <= answer < len(seconds):
        raise ValueError(
            f'"answer" is {answer!r}; it is the number of the right choice, 0 to {len(seconds) - 1}'
        )
    if "question" in record:
        seconds = [text if first[-1].isspace() or text[0].isspace() else f" {text}" for text in seconds]
    return first, seconds, answer


def _row(first: str, second: str, encode: Encode, first_id: int) -> Row:
    context = first.rstrip()
    continuation = first[len(context) :] + second
    before, whole = encode(context), encode(context + continuation)
    after = whole[len(before) :] if whole[: len(before)] == before else encode(continuation)
    if not after:
        raise ValueError(f"{continuation!r} has no tokens")
    return Row([first_id, *before, *after], len(after), len(continuation.encode()))


WIDTH = 64
"""Rows of a pass are padded to a multiple of so many tokens."""


@dataclass(frozen=True, slots=True)
class Answers:
    """accuracy: part of the questions answered rightly, of a cloze by the most likely token each time; chance: the
    accuracy of guessing, None for a cloze; bits_per_byte: of the right continuations, all their bits over all their
    bytes, which moves long before the accuracy does."""

    questions: int
    accuracy: float
    chance: float | None
    bits_per_byte: float


def passes(rows: Sequence[Row], tokens: int, longest: int) -> list[list[int]]:
    """Numbers of rows that are scored together: of like length, at most `tokens` after padding unless one alone has
    more. longest: the length to which padding may go."""
    order = sorted(range(len(rows)), key=lambda number: (-len(rows[number].ids), number))
    found: list[list[int]] = []
    while order:
        size = max(1, tokens // padded_length(rows[order[0]], longest))
        found.append(order[:size])
        order = order[size:]
    return found


def padded_length(row: Row, longest: int) -> int:
    """Inputs of a pass whose longest row this is."""
    return min(longest, -(-(len(row.ids) - 1) // WIDTH) * WIDTH)


def pack(rows: Sequence[Row], length: int, eod_id: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (n, length) int64; padded by end-of-document tokens, and only continuations are targets."""
    inputs = torch.full((len(rows), length), eod_id)
    targets = torch.full((len(rows), length), IGNORE)
    for number, row in enumerate(rows):
        ids = torch.tensor(row.ids)
        end = len(ids) - 1
        inputs[number, :end] = ids[:-1]
        targets[number, end - row.scored : end] = ids[-row.scored :]
    return inputs, targets


def score(
    trainee: Trainee, files: Sequence[Questions], stop: Callable[[], bool]
) -> dict[str, Answers] | None:
    """Score every choice of every question. The stop flag is looked at after every pass.

    Passes are dealt out to the data-parallel ranks. They run without compiled code, whose shapes are those of training.
    """
    rows = [row for file in files for question in file.items for row in question.rows]
    table = torch.zeros(2, len(rows), dtype=torch.float64, device=trainee.device)
    work = passes(rows, trainee.batch.micro_batch * trainee.seq_len, trainee.seq_len)
    ranks, rank = trainee.batch.ranks, data_rank(trainee.mesh, trainee.context.ranks)
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for first in range(0, len(work), ranks):
                number = first + rank
                chosen = work[
                    number % len(work)
                ]  # a rank without work must take part, and drops what it finds
                scores = _score_rows(trainee, [rows[row] for row in chosen])
                if number < len(work):
                    table[:, chosen] = scores
                if stop_agreed(stop, trainee.device):
                    return None
        dist.all_reduce(table)
    finally:
        reshard(trainee.model)
    nats, best = (
        table / (dist.get_world_size() // ranks)
    ).tolist()  # ranks that share products sum up copies
    scored = iter(zip(nats, best, strict=True))
    return {file.name: _answers(file, scored) for file in files}


def _score_rows(trainee: Trainee, rows: Sequence[Row]) -> Tensor:
    """(2, n) float64, as means over the ranks that share sequences: nats of each row's continuation, and 1 where every
    token of it is the most likely."""
    length = padded_length(rows[0], trainee.seq_len)
    sharing = (
        trainee.mesh["tensor"].size() * trainee.context.ranks
    )  # sequences; they divide those of training
    length += -length % sharing
    inputs, targets = pack(rows, length, trainee.eod_id)
    nll, best = trainee.model(*trainee.given(inputs, targets), each=True)
    return torch.stack([trainee.context.ranks * nll.double().sum(1), best.all(1).double()])


def _answers(file: Questions, scored: Iterator[tuple[float, float]]) -> Answers:
    """scored: (nats, all most likely) of this file's rows, then of those that follow."""
    right, nats, text_bytes = 0, 0.0, 0
    for question in file.items:
        found = [next(scored) for _ in question.rows]
        per_byte = [nll / row.text_bytes for (nll, _), row in zip(found, question.rows, strict=True)]
        answered = found[0][1] >= 1 if file.cloze else per_byte.index(min(per_byte)) == question.answer
        right += answered
        nats += found[question.answer][0]
        text_bytes += question.rows[question.answer].text_bytes
    count = len(file.items)
    return Answers(
        questions=count,
        accuracy=right / count,
        chance=None if file.cloze else sum(1 / len(question.rows) for question in file.items) / count,
        bits_per_byte=bits_per_byte(nats, text_bytes),
    )
