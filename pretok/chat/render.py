"""Batches of JSON -> batches of documents with spans.

Input: batches whose texts are the JSON of a conversation or of some fields (`read.readers`), and how they become
documents. Output: the same documents as text, what stands between contents included, with a column of spans; without a
template, as counting wants it, the contents alone. What cannot be made is a reject of the batch.

A template runs once for each shape of conversation: what it made is kept with what it asked about the contents
(`text.Trace`), and whoever answers alike is put together from it without Jinja, in a few microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jinja2.exceptions import TemplateError

from pretok.base.records import replace
from pretok.chat.records import BadRecord, Shape, Slot, decode, messages_of, shape_of, simple, wrapped
from pretok.chat.spans import ANSWER, TEMPLATE, USER, column_of, pack
from pretok.chat.template import ChatTemplate
from pretok.chat.text import Ops, Trace
from pretok.chat.turns import Bit, Habits, Markers, bits_of, learn_habits
from pretok.read.batches import Reject, TextBatch, buffers, from_buffers
from pretok.read.conversation import Conversation, fields_of
from pretok.read.normalize import Normalization
from pretok.read.readers import RecordFormat

MOST_SHAPES = 1024
"""Shapes of which what the template made is kept."""


class _Piece(NamedTuple):
    """Of a document to be: what is the same in each, with its spans, and behind it a text of the conversation; slot: -1
    where none follows."""

    data: bytes
    spans: list[int]
    kind: int
    slot: int
    ops: Ops


class _Skeleton(NamedTuple):
    """What a template makes of a shape, while the guards hold (`text.Trace`)."""

    guards: list[tuple[int, Ops, str, tuple[Any, ...], Any]]
    pieces: list[_Piece]


Document = tuple[list[bytes], list[int]]
"""The bytes of a document, and its spans."""


class Renderer:
    """Makes documents of the records of a source."""

    def __init__(self, record: RecordFormat, normalization: Normalization) -> None:
        assert isinstance(record.conversation, Conversation)
        self._most = record.max_document
        self._normalization = normalization
        self._plain = normalization == Normalization()
        self._how = how = record.conversation
        self._skeletons: dict[Shape, list[_Skeleton]] = {}
        if how.fields:
            self._render = self._from_fields
        elif not how.template:
            self._render = self._contents
        else:
            self._render = self._from_messages
            self._template, self._markers = open_template(how)
            self._habits: Habits | None = None
            if not self._template.generation:
                self._habits = learn_habits(self._template, self._markers)

    def __call__(self, batch: TextBatch) -> TextBatch:
        """The batch with documents in the place of JSON."""
        data, offsets = buffers(batch.texts)
        whole, ends = data.tobytes(), offsets.tolist()
        parts: list[bytes] = []
        spans: list[int] = []
        sizes: list[int] = []
        counts: list[int] = []
        rejects: list[Reject] = []
        kept = np.ones(len(batch.texts), np.bool_)
        for document, number in enumerate(batch.numbers.tolist()):
            try:
                texts, row, size = self._document(whole[ends[document] : ends[document + 1]])
            except BadRecord as error:
                rejects.append(Reject(number, *error.args))
                kept[document] = False
                continue
            parts += texts
            spans += row
            sizes.append(size)
            counts.append(len(row))
        refused = batch.refused + int(np.diff(offsets)[~kept].sum())
        made = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=made[1:])
        texts_made = from_buffers(np.frombuffer(b"".join(parts), np.uint8), made)
        batch = replace(batch, texts=texts_made, spans=column_of(spans, counts), refused=refused)
        if not rejects:
            return batch
        return replace(
            batch,
            numbers=batch.numbers[kept],
            rejects=batch.rejects.with_more(rejects),
            kept=tuple(column.filter(pa.array(kept)) for column in batch.kept),
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
        """A content as every text of the corpus is normalized."""
        if self._plain:
            return text
        made: str = self._normalization(pa.array([text], pa.large_string()))[0].as_py()
        return made

    def _checked(self, data: bytes) -> list[dict[str, Any]]:
        messages = messages_of(data)
        return messages if self._plain else _each(messages, self._clean)

    def _contents(self, data: bytes) -> Document:
        """What the writers wrote, without a template."""
        _, slots = wrapped(self._checked(data), Trace())
        pairs = [(text.encode(), kind) for text, _, kind in slots if text]
        return [text for text, _ in pairs], [pack(len(text), kind) for text, kind in pairs]

    def _from_fields(self, data: bytes) -> Document:
        """A template of `{field}`s. What the recipe names is an answer, the others are what is asked."""
        record = decode(data)
        parts: list[bytes] = []
        spans: list[int] = []
        given = False
        for text, field in fields_of(self._how.template):
            kind = TEMPLATE
            if field:
                text, kind = (
                    self._clean(_field(record, field)),
                    ANSWER if field in self._how.learned else USER,
                )
                given |= bool(text)
            elif self._how.content_only:
                continue
            encoded = text.encode()
            if encoded:
                parts.append(encoded)
                spans.append(pack(len(encoded), kind))
        if not given:
            raise BadRecord("empty_text", "all its fields are empty")
        return parts, spans

    def _from_messages(self, data: bytes) -> Document:
        if self._plain and (found := simple(data)) is not None:  # most conversations are of texts alone
            known_shape, texts = found
            for guards, pieces in self._skeletons.get(known_shape, ()):
                if not guards or _answers_alike(guards, texts):
                    return _fill(pieces, texts)
        messages = self._checked(data)
        shape = shape_of(messages)
        trace = Trace()
        made, slots = wrapped(messages, trace)
        pieces_made = self._template.run(made, trace)
        roles = [message["role"] for message in messages]
        bits = bits_of(pieces_made, slots, roles, self._markers, self._habits)
        _refuse_dropped(bits, slots, messages)
        if shape is not None and trace.whole and self._template.reusable:
            guards = list({repr(guard): guard for guard in trace.guards}.values())
            if len(self._skeletons) >= MOST_SHAPES:
                self._skeletons.clear()
            known = self._skeletons.setdefault(shape, [])
            known.insert(0, _Skeleton(guards, _pieces(bits)))
            del known[8:]
        encoded = [bit.text.encode() for bit in bits]
        return encoded, [
            pack(len(text), bit.kind, bit.marker) for text, bit in zip(encoded, bits, strict=True)
        ]


def open_template(how: Conversation) -> tuple[ChatTemplate, Markers]:
    """The template of a source, and its markers. Raises TemplateError."""
    variables = {**how.variables, **how.template_kwargs, "tools": how.tools or None}
    return ChatTemplate(how.template, variables, how.date), Markers(how.markers)


def _each(value: Any, clean: Any) -> Any:
    """JSON with every text normalized."""
    match value:
        case str():
            return clean(value)
        case dict():
            return {key: _each(item, clean) for key, item in value.items()}
        case list():
            return [_each(item, clean) for item in value]
    return value


def _field(record: Any, field: str) -> str:
    """The text of a field, `meta.text` inside another. Raises BadRecord."""
    value = record
    if isinstance(record, dict) and field not in record:
        for name in field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    elif isinstance(record, dict):
        value = record[field]
    if value is None:
        raise BadRecord("missing_field", f"no field {field!r}")
    if not isinstance(value, str):
        raise BadRecord("text_not_a_string", f"the field {field!r} is no text")
    return value


def _value(texts: Sequence[str], slot: int, ops: Ops) -> str:
    value: Any = texts[slot]
    for name, args, *which in ops:
        value = getattr(value, name)(*args)
        if which:
            value = value[which[0]]
    return str(value)


def _answers_alike(guards: list[tuple[int, Ops, str, tuple[Any, ...], Any]], texts: Sequence[str]) -> bool:
    """Whether a template that asked this of another conversation would be told the same."""
    try:
        for slot, ops, name, args, answer in guards:
            found = getattr(_value(texts, slot, ops) if ops else texts[slot], name)(*args)
            if (len(found) if type(found) in (list, tuple) else found) != answer:
                return False
    except (IndexError, ValueError):
        return False
    return True


def _pieces(bits: Sequence[Bit]) -> list[_Piece]:
    """Bits as pieces, what is the same in each document encoded and put together."""
    pieces = []
    data, spans = b"", list[int]()
    for bit in (*bits, Bit("", TEMPLATE, -1, -1, ())):
        encoded = bit.text.encode()
        if bit.slot >= 0:
            pieces.append(_Piece(data, spans, bit.kind, bit.slot, bit.ops))
            data, spans = b"", []
        elif encoded:
            data += encoded
            spans.append(pack(len(encoded), bit.kind, bit.marker))
    pieces.append(_Piece(data, spans, TEMPLATE, -1, ()))
    return pieces


def _fill(pieces: list[_Piece], texts: Sequence[str]) -> Document:
    parts: list[bytes] = []
    row: list[int] = []
    for data, spans, kind, slot, ops in pieces:
        parts.append(data)
        row += spans
        if slot >= 0:
            text = (_value(texts, slot, ops) if ops else texts[slot]).encode()
            parts.append(text)
            row.append(pack(len(text), kind))
    return parts, row


def _refuse_dropped(bits: Sequence[Bit], slots: Sequence[Slot], messages: Sequence[dict[str, Any]]) -> None:
    """BadRecord where nothing of a message is in the document: what is lost would be lost silently."""
    there = {slots[bit.slot].message for bit in bits if bit.slot >= 0}
    for number, message in enumerate(messages):
        if number not in there:
            raise BadRecord(
                "template_refused", f"the template leaves out message {number + 1} ({message['role']})"
            )
