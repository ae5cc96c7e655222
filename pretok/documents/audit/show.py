"""Show a document, or a sequence of a mix, as its tokens.

Input: shards and the number of a document, or a mix or run and a position. Output: a `SeenSequence`, or tokens in
brackets. A token that ends inside a character shows its bytes, special tokens their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pretok.base.units import plural
from pretok.base.visible import visible
from pretok.documents.audit.inspection import Inspection, token_texts
from pretok.documents.audit.trace import Reading, Traced, passages, with_origins
from pretok.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class SeenSequence:
    """One position of a mix."""

    position: int
    step: int | None
    """Step of the run that reads it, None without a run."""
    source: str
    epoch: int
    sequence: int
    ids: list[int]
    """seq_len + 1, the last of which is only predicted."""
    tokens: list[str]
    documents: list[Reading]
    """Its parts, in order; the rest of a packed sequence is EOD."""
    learned: list[bool] | None = None
    """Whether each token counts in the loss, None: all do."""


def seen_sequence(traced: Traced, vocab: Vocabulary, position: int) -> SeenSequence:
    """Return the sequence at a position. Raises UsageError for a wrong position, IntegrityError for ids of no token."""
    documents = with_origins(traced, list(passages(traced, position)))
    source, epoch, sequence = traced.view.origin(position)
    ids = traced.view[position].tolist()
    tokens, step = token_texts(vocab, ids), traced.step_of(position)
    # The first token is no target.
    learned = [False, *traced.view.loss(position).tolist()] if traced.view.masked else None
    return SeenSequence(position, step, source, epoch, sequence, ids, tokens, documents, learned)


def marked(tokens: Sequence[str], learned: Sequence[bool] | None = None) -> str:
    """Put each token in brackets, round ones if it is not learned. learned: whether each is; None: all are."""
    known = [True] * len(tokens) if learned is None else learned
    return "".join(
        f"[{text}]" if is_known else f"({text})" for text, is_known in zip(tokens, known, strict=True)
    )


def document_heading(found: Inspection, vocab: Vocabulary) -> list[str]:
    """Return the lines above the tokens of a document."""
    kept = [f"{name}: {visible(str(value), '')}" for name, value in found.kept.items()]
    where = f"{found.file}, line or row {found.position}; document {found.document} of {found.shard}"
    bos = "" if vocab.bos_id is None else "the first is the beginning-of-document token, "
    return [where, *kept, f"{plural(len(found.ids), 'token')}, {bos}the last is the end-of-document token:"]


def sequence_heading(seen: SeenSequence) -> list[str]:
    """Return the lines above the tokens of a sequence."""
    step = "" if seen.step is None else f", step {seen.step}"
    classes = {row.of_class for row in seen.documents} - {None}
    of = seen.source
    if classes - {seen.documents[0].source}:
        of = f"{seen.source}, a class of {seen.documents[0].source}"
    place = f"position {seen.position}{step}: sequence {seen.sequence} of {of}, epoch {seen.epoch}"
    lines = [
        f"  {row.file}, line or row {row.line}: {plural(row.tokens, 'token')} from token {row.first}"
        for row in seen.documents
    ]
    filling = len(seen.ids) - sum(row.tokens for row in seen.documents)
    end = f"the last {filling:,} are padding" if filling else "the last is only a target"
    return [place, *lines, f"{plural(len(seen.ids), 'token')}, {end}:"]
