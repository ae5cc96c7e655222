"""Batches of JSON -> batches of documents with spans.

Input: batches whose texts are the JSON of a conversation or of some fields (`read.readers`), and how they become
documents. Output: the documents, rendered by the template, with a column of spans; without a template, as counting
wants it, only their contents. A record that cannot become a document is a reject of the batch.

A template runs once for each shape of conversation. Its output is kept with the steps of its run (`text.Trace`);
another conversation of that shape that gives the same answers is rendered from it without Jinja, in a few
microseconds. Fields are rendered in the same way, from a shape without steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from jinja2.exceptions import TemplateError

from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.texts import buffers, from_buffers
from pretok.chat.limits import LIMITS, OverLimit, TemplateLimits, limited
from pretok.chat.messages import BadRecord, Shape, decode, messages_of, texts_of, wrapped
from pretok.chat.spans import ANSWER, USER, column_of, pack
from pretok.chat.text import Step, Trace, TracedText, replay
from pretok.chat.turns import Turns
from pretok.read.batches import Reject, TextBatch
from pretok.read.normalize import Normalization
from pretok.read.record_format import Conversation, RecordFormat, fields_of

MOST_SHAPES, MOST_OF_SHAPE = 1024, 8
"""Shapes whose outputs are kept, and outputs per shape."""
Document = tuple[list[bytes], list[int]]
"""The bytes of a document in pieces, and its spans."""


_Piece = tuple[bytes, list[int], int, int]
"""A piece of a kept output: (bytes of the template, their spans, the kind of the value that follows, its number; -1 if
none follows)."""


class Renderer:
    """Turns the records of a source into documents."""

    def __init__(
        self, record: RecordFormat, normalization: Normalization, limits: TemplateLimits = LIMITS
    ) -> None:
        assert isinstance(record.conversation, Conversation)
        self._most, self._limits = record.max_document, limits
        self._normalization = normalization
        self._plain = normalization == Normalization()
        how = record.conversation
        if how.fields:
            parts = []
            for number, (text, field) in enumerate(fields_of(how.template)):
                if field:
                    kind = ANSWER if field in how.learned else USER
                    parts.append(TracedText("", kind, source=number))
                elif not how.content_only:
                    parts.append(TracedText(text))
            self._fields = [field for _, field in fields_of(how.template)]
            self._pieces = _pieces(parts)
            self._render = self._from_fields
        elif not how.template:
            self._render = self._contents
        else:
            with limited(limits.seconds, limits.memory):
                self._turns = Turns(how)
            self._name = how.chat_template or "of the tokenizer"
            self._known: dict[Shape, list[tuple[list[Step], list[_Piece]]]] = {}
            self._render = self._from_messages

    def __call__(self, batch: TextBatch) -> TextBatch:
        """Return the batch, with documents instead of JSON."""
        # One copy of all bytes, and plain integers to slice it by, instead of an Arrow scalar for each record.
        data, offsets = buffers(batch.texts)
        whole, ends = data.tobytes(), offsets.tolist()
        parts: list[bytes] = []
        spans: list[int] = []
        sizes, counts = [0], []
        rejects: list[Reject] = []
        refused = batch.refused
        for document, number in enumerate(batch.numbers.tolist()):
            record = whole[ends[document] : ends[document + 1]]
            try:
                texts, row, size = self._document(record)
            except BadRecord as error:
                rejects.append((number, *error.args))
                refused += len(record)
                texts, row, size = [], [], 0
            except OverLimit as error:  # no reject: that would depend on the machine
                raise UsageError(
                    f"record {number + 1}: the chat template ({self._name}): {error}; leave the record out, or raise "
                    "conversation_seconds or template_memory of the source"
                ) from None
            parts += texts
            spans += row
            sizes.append(size)
            counts.append(len(row))
        documents = from_buffers(np.frombuffer(b"".join(parts), np.uint8), np.cumsum(sizes, dtype=np.int64))
        return replace(batch, texts=documents, spans=column_of(spans, counts), refused=refused).without(
            rejects
        )

    def _document(self, data: bytes) -> tuple[list[bytes], list[int], int]:
        try:
            texts, spans = self._render(data)
        except TemplateError as error:
            raise BadRecord("template_refused", str(error)[:200]) from None
        size = sum(map(len, texts))
        if size > self._most:
            raise BadRecord("too_long", f"more than {self._most} bytes")
        if not size:
            raise BadRecord("empty_text", "")
        return texts, spans, size

    def _clean(self, text: str) -> str:
        """Normalize a text of the record like any text of the corpus."""
        if self._plain:
            return text
        clean: str = self._normalization(pa.array([text], pa.large_string()))[0].as_py()
        return clean

    def _contents(self, data: bytes) -> Document:
        """Return the texts of the messages, without a template."""
        texts: list[bytes] = []
        spans: list[int] = []

        def add(text: str, kind: int, _: int) -> None:
            if text := self._clean(text):
                texts.append(text.encode())
                spans.append(pack(len(texts[-1]), kind))

        wrapped(messages_of(data), add)
        return texts, spans

    def _from_fields(self, data: bytes) -> Document:
        """Fill a template of `{field}`s.

        The fields that the recipe learns are answers, the others are what the user says.
        """
        record = decode(data)
        values = [self._clean(_field(record, field)) if field else "" for field in self._fields]
        if not any(values):
            raise BadRecord("empty_text", "all its fields are empty")
        return _fill(self._pieces, values)

    def _from_messages(self, data: bytes) -> Document:
        shape, texts = texts_of(data) or ((), [])  # most conversations have only texts
        texts = [self._clean(text) for text in texts]
        # The output that was found last is tried first.
        for steps, pieces in self._known.get(shape, ()):
            if (values := replay(steps, texts)) is not None:
                return _fill(pieces, values)
        # A new shape, or answers to the template's questions that no kept run had: Jinja runs, and what it asked is
        # traced.
        messages, trace = messages_of(data), Trace()
        inputs = wrapped(messages, lambda text, kind, number: trace.text(self._clean(text), kind, number))
        with limited(self._limits.conversation_seconds, self._limits.memory):
            parts = self._turns.render(inputs, trace)
        written = {part.message for part in parts if part.source >= 0}
        for number, message in enumerate(messages):
            if number not in written:  # otherwise it would be lost silently
                detail = f"the template leaves out message {number + 1} ({message['role']})"
                raise BadRecord("template_refused", detail)
        pieces = _pieces(parts)
        if shape and trace.whole:
            # Hostile records may all have shapes of their own; what is dropped is only found out again.
            if len(self._known) >= MOST_SHAPES:
                self._known.clear()
            known = self._known.setdefault(shape, [])
            known.insert(0, (trace.steps, pieces))
            del known[MOST_OF_SHAPE:]
        return _fill(pieces, trace.values)


def _field(record: Any, field: str) -> str:
    """Return the text of a field; `meta.text` is a field inside another. Raises BadRecord."""
    value = record
    for name in [field] if isinstance(record, dict) and field in record else field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        raise BadRecord("missing_field", f"no field {field!r}")
    if not isinstance(value, str):
        raise BadRecord("text_not_a_string", f"the field {field!r} is not a string")
    return value


def _pieces(parts: Sequence[TracedText]) -> list[_Piece]:
    """Turn parts into pieces: the text of the template between two values is encoded once, for all conversations."""
    pieces: list[_Piece] = []
    data, spans, end = b"", list[int](), TracedText("")
    for part in (*parts, end):
        if part.source >= 0 or part is end:
            pieces.append((data, spans, part.kind, part.source))
            data, spans = b"", []
        else:
            text = part.text.encode()
            data += text
            spans.append(pack(len(text), part.kind, part.marker))
    return pieces


def _fill(pieces: list[_Piece], values: Sequence[str]) -> Document:
    texts: list[bytes] = []
    spans: list[int] = []
    for data, row, kind, source in pieces:
        texts.append(data)
        spans += row
        if source >= 0:
            text = values[source].encode()
            texts.append(text)
            spans.append(pack(len(text), kind))
    return texts, spans
