"""What a template gave -> spans: which bytes are a marker, and of which kind each is.

Input: the pieces of a run of a template. Output: `Bit`s in a row, template text cut at the markers in it.

Where a turn of the assistant begins is what the template itself says: it is what follows the prompt that it writes for
an answer (`add_generation_prompt`). `Habits` are learned once, from a few conversations of known words: what stands
behind a message of each role before an answer, and which marker ends an answer. Where the template has generation
tags, they say it. Template text inside of a turn is of the kind of what it is around: tags of thinking and of tool
calls go with these, the end marker with what it ends. All other template text is `template`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jinja2.exceptions import TemplateError

from pretok.chat.records import ROLES, Slot, wrapped
from pretok.chat.spans import ANSWER, CALL, TEMPLATE, THINKING
from pretok.chat.template import ChatTemplate
from pretok.chat.text import Border, Ops, Part, Piece, Trace, Unusable

_ASSISTANT = (ANSWER, THINKING, CALL)
_SPLIT_THINKING = ("split", ("</think>",), 0)
"""What a template does to content to find what was thought in it."""


class Bit(NamedTuple):
    """A piece of a document. marker: id of the added token that it is, -1 for none; slot, ops: of content, slot -1 for
    what the template put."""

    text: str
    kind: int
    marker: int
    slot: int
    ops: Ops


class Markers:
    """Finds markers in template text: the earliest, of those the longest, as `tokenizers` does.

    ids: name -> id; lefts, rights: those that take the white space before or after them.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = dict(ids)
        names = sorted(self.ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def cut(self, text: str) -> list[Bit]:
        """A text of the template as bits."""
        bits, at = [], 0
        for found in self._pattern.finditer(text):
            if found.start() > at:
                bits.append(Bit(text[at : found.start()], TEMPLATE, -1, -1, ()))
            bits.append(Bit(found[0], TEMPLATE, self.ids[found[0]], -1, ()))
            at = found.end()
        if at < len(text):
            bits.append(Bit(text[at:], TEMPLATE, -1, -1, ()))
        return bits


@dataclass(slots=True)
class Habits:
    """How a template opens and closes answers. openers: role before -> what stands between that message and an answer;
    closer: the marker that ends an answer, -1 where there is none; starters: markers that begin other messages."""

    openers: dict[str, list[Bit]] = field(default_factory=dict)
    closer: int = -1
    starters: frozenset[int] = frozenset()


def _message(role: str, **more: object) -> dict[str, object]:
    return {"role": role, "content": "x", **more}


_ID = "a00000000"  # of the form that Mistral's templates ask for
_CALL = _message(
    "assistant",
    tool_calls=[{"type": "function", "id": _ID, "function": {"name": "x", "arguments": {"x": "x"}}}],
)
_TOOL = _message("tool", name="x", tool_call_id=_ID)
_USER, _ANSWER, _SYSTEM = _message("user"), _message("assistant"), _message("system")
PROBES = (
    [_USER],
    [_USER, _ANSWER],
    [_USER, _ANSWER, _USER, _ANSWER],
    [_SYSTEM, _USER, _ANSWER],
    [_USER, _message("assistant", reasoning_content="x")],
    [_USER, _CALL, _TOOL, _ANSWER],
    [_USER, {**_CALL, "content": ""}, _TOOL],
)
"""Conversations that show what a template does. No template takes all of them."""


def probe(
    template: ChatTemplate, messages: Sequence[Mapping[str, object]], prompt: bool = False
) -> tuple[tuple[Piece, ...], list[Slot]]:
    """A run on known messages: (pieces, slots). Raises TemplateError."""
    trace = Trace()
    made, slots = wrapped([dict(message) for message in messages], trace)
    return template.run(made, trace, prompt), slots


def probed(
    template: ChatTemplate,
    conversations: Sequence[Sequence[Mapping[str, object]]] = PROBES,
    prompt: bool = False,
) -> Iterator[tuple[Sequence[Mapping[str, object]], tuple[Piece, ...]]]:
    """(messages, pieces) of each conversation that the template takes. Raises Unusable."""
    for messages in conversations:
        try:
            pieces, _ = probe(template, messages, prompt)
        except Unusable:
            raise
        except TemplateError:
            continue
        yield messages, pieces


def learn_habits(template: ChatTemplate, markers: Markers) -> Habits:
    """What the probes show. Raises TemplateError where no conversation of a user and an assistant is taken."""
    habits = Habits()
    openings = ([_USER], [_SYSTEM, _USER], [_USER, _CALL, _TOOL], [_USER, _ANSWER], [_SYSTEM])
    for messages, pieces in probed(template, openings, prompt=True):
        habits.openers.setdefault(str(messages[-1]["role"]), _last_gap(pieces, markers))
    pieces, _ = probe(template, [_USER, _ANSWER])
    habits.closer = next((bit.marker for bit in _last_gap(pieces, markers) if bit.marker >= 0), -1)
    starters = set()
    for _, pieces in probed(template):
        for (before, after), bits in gaps(pieces, markers):
            if after is not None:
                ends = [
                    at for at, bit in enumerate(bits, 1) if before is not None and bit.marker == habits.closer
                ]
                starters |= {bit.marker for bit in bits[ends[0] if ends else 0 :]}
    habits.starters = frozenset(starters - {-1, habits.closer})
    return habits


_Between = tuple[Part | None, Part | None]
_BEFORE, _OUTSIDE, _BEHIND = range(3)
_Gap = tuple[Part | None, Part | None, list[tuple[int, Bit]]]
"""The content before and behind, and the template text between: of the turn before, of none, or of the one behind."""


def gaps(pieces: Sequence[Piece], markers: Markers) -> list[tuple[_Between, list[Bit]]]:
    """The template text between content: ((the content before, behind), its bits)."""
    gaps: list[tuple[_Between, list[Bit]]] = []
    text, before = "", None
    for piece in (*pieces, None):
        if type(piece) is str:
            text += piece
        elif type(piece) is Part or piece is None:
            gaps.append(((before, piece), markers.cut(text)))
            text, before = "", piece
    return gaps


def _last_gap(pieces: Sequence[Piece], markers: Markers) -> list[Bit]:
    return gaps(pieces, markers)[-1][1]


def bits_of(
    pieces: Sequence[Piece],
    slots: Sequence[Slot],
    roles: Sequence[str],
    markers: Markers,
    habits: Habits | None,
) -> list[Bit]:
    """The bits of a document, in order. roles: of its messages; habits: None where the template has generation tags."""
    bits: list[Bit] = []
    places = _tagged(pieces, markers) if habits is None else _placed(pieces, slots, roles, markers, habits)
    for before, behind, placed in places:
        kind, next_kind = (
            ANSWER if part is None else _kind(part, slots[part.slot]) for part in (before, behind)
        )
        if {kind, next_kind} <= set(_ASSISTANT) and all(place != _OUTSIDE for place, _ in placed):
            split = _shared([bit for _, bit in placed], kind, next_kind)
            placed = [(_BEFORE if at < split else _BEHIND, bit) for at, (_, bit) in enumerate(placed)]
        kinds = {_BEFORE: kind, _OUTSIDE: TEMPLATE, _BEHIND: next_kind}
        bits += [bit._replace(kind=kinds[place]) for place, bit in placed]
        if behind is not None:
            bits.append(Bit(behind.text, next_kind, -1, behind.slot, behind.ops))
    return bits


def _kind(part: Part, slot: Slot) -> int:
    return THINKING if slot.kind == ANSWER and _SPLIT_THINKING in part.ops else slot.kind


def _placed(
    pieces: Sequence[Piece], slots: Sequence[Slot], roles: Sequence[str], markers: Markers, habits: Habits
) -> Iterator[_Gap]:
    """The gaps by what the template does elsewhere."""
    for (before, behind), gap in gaps(pieces, markers):
        last = None if before is None else slots[before.slot].message
        following = None if behind is None else slots[behind.slot].message
        spoke, speaks = (
            number is not None and ROLES[roles[number]] == ANSWER for number in (last, following)
        )
        if last is not None and last == following:
            yield before, behind, [(_BEFORE if spoke else _OUTSIDE, bit) for bit in gap]
            continue
        end, start = _closed(gap, habits) if spoke else 0, len(gap)
        if speaks:
            opener = habits.openers.get("" if last is None else roles[last])
            gap, start = _opened(gap, end, opener, habits if spoke else None)
        places = [_BEFORE if at < end else _BEHIND if at >= start else _OUTSIDE for at in range(len(gap))]
        yield before, behind, list(zip(places, gap, strict=True))


def _closed(gap: list[Bit], habits: Habits) -> int:
    """How many bits of a gap the answer before it has: to its end marker, or to a marker that begins no message."""
    for at, bit in enumerate(gap):
        if bit.marker >= 0 and bit.marker == habits.closer:
            return at + 1
    return int(bool(gap) and gap[0].marker >= 0 and gap[0].marker not in habits.starters)


def _opened(
    gap: list[Bit], end: int, opener: list[Bit] | None, closed: Habits | None
) -> tuple[list[Bit], int]:
    """A gap before an answer, and where in it the answer begins: behind what it shares with the prompt for one."""
    if (
        opener is not None and closed is not None
    ):  # of a prompt after an answer, what closes that one is taken already
        opener = opener[_closed(opener, closed) :]
    if opener is None:
        return gap, len(gap)
    prompt, own = _common(gap[end:], opener)
    if opener and not prompt:
        return gap, len(gap)
    return [*gap[:end], *prompt, *own], end + len(prompt)


def _common(rest: list[Bit], opener: list[Bit]) -> tuple[list[Bit], list[Bit]]:
    """What a gap begins with as the opener does, and what follows."""
    prompt: list[Bit] = []
    for at, bit in enumerate(rest):
        wanted = opener[at] if at < len(opener) else None
        if wanted is not None and bit == wanted:
            prompt.append(bit)
            continue
        if wanted is not None and bit.marker < 0 and wanted.marker < 0:
            same = len(_prefix(bit.text, wanted.text))
            if same > 0:
                prompt.append(bit._replace(text=bit.text[:same]))
                own = [bit._replace(text=bit.text[same:])] if same < len(bit.text) else []
                return prompt, own + rest[at + 1 :]
        return prompt, rest[at:]
    return prompt, []


def _prefix(a: str, b: str) -> str:
    size = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:size]


def _shared(bits: list[Bit], kind: int, next_kind: int) -> int:
    """How many bits between two contents of a turn are of the first: tags of thinking and of calls go with these;
    between two such, the last marker begins the second."""
    if kind == next_kind or next_kind == ANSWER:
        return len(bits)
    found = [at for at, bit in enumerate(bits) if bit.marker >= 0]
    return 0 if kind == ANSWER or len(found) < 2 else found[-1]


def _tagged(pieces: Sequence[Piece], markers: Markers) -> Iterator[_Gap]:
    """The gaps by the generation tags."""
    before: Part | None = None
    placed: list[tuple[int, Bit]] = []
    place, text = _OUTSIDE, ""
    for piece in (*pieces, None):
        if type(piece) is str:
            text += piece
            continue
        placed += [(place, bit) for bit in markers.cut(text)]
        text = ""
        if type(piece) is Border:
            place = _BEHIND if piece.begins else _OUTSIDE
            continue
        yield before, piece, placed  # type: ignore[misc]
        before, placed = piece, []  # type: ignore[assignment]
        place = _BEFORE if place != _OUTSIDE else place
