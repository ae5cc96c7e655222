"""Questions -> how well a model in training answers them.

Input: Questions and the model on its mesh. Output: for each file its Answers, equal on all ranks; None when a stop was
asked for on the way.

The score of a continuation is its log-likelihood divided by its bytes of text in UTF-8, so that neither a longer choice
nor one of more tokens is at a disadvantage. The choice of the highest score is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from train.model.loss import IGNORE
from train.parallel.mesh import data_rank, reshard
from train.steps.evaluate import bits_per_byte, stop_agreed
from train.steps.questions import Questions, Row
from train.steps.step import Trainee

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
