"""The output of a template -> parts: which bytes are a marker, and the kind of each.

Input: messages whose strings are `Text`. Output: the parts of the document, with template text cut at its markers.

The parts of a turn of the assistant are `inside`. If the template has generation tags, they say which parts these are.
Otherwise it is found out once, from its output for a few short conversations: an answer begins after the prompt that
the template writes for one (`add_generation_prompt`), and ends with the marker that ends an answer. Template text
inside a turn has the kind of what it surrounds: tags of thinking and of tool calls go with these, the end marker with
what it ends. All other template text is `template`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from os.path import commonprefix
from typing import Any

from jinja2.exceptions import TemplateError

from pretok.chat.messages import ROLES, wrapped
from pretok.chat.spans import ANSWER
from pretok.chat.template import ChatTemplate
from pretok.chat.text import Trace, TracedText, Unusable
from pretok.read.record_format import Conversation

Messages = Sequence[dict[str, Any]]


def _message(role: str, **more: object) -> dict[str, Any]:
    return {"role": role, "content": "x", **more}


_ID = "a00000000"  # of the form that Mistral's templates ask for
_CALL = _message(
    "assistant",
    tool_calls=[{"type": "function", "id": _ID, "function": {"name": "x", "arguments": {"x": "x"}}}],
)
_TOOL = _message("tool", name="x", tool_call_id=_ID)
_USER, _ANSWER, _SYSTEM = _message("user"), _message("assistant"), _message("system")
_OPENINGS = ([_USER], [_SYSTEM, _USER], [_USER, _CALL, _TOOL], [_USER, _ANSWER], [_SYSTEM])
"""Conversations after which an answer may begin."""
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


def open_template(how: Conversation) -> ChatTemplate:
    """Return the template of a source. Raises TemplateError."""
    variables = {**how.variables, **how.template_kwargs, "tools": how.tools or None}
    return ChatTemplate(how.template, variables, how.date)


def _run(template: ChatTemplate, messages: Messages, prompt: bool = False) -> tuple[TracedText, ...]:
    trace = Trace()
    return template.run(wrapped(messages, trace.text), trace, prompt)


def probed(
    template: ChatTemplate, conversations: Sequence[Messages] = PROBES, prompt: bool = False
) -> Iterator[tuple[Messages, tuple[TracedText, ...]]]:
    """Yield (messages, parts) of each conversation that the template accepts. Raises Unusable."""
    for messages in conversations:
        try:
            yield messages, _run(template, messages, prompt)
        except Unusable:
            raise
        except TemplateError:
            continue


def _gaps(parts: Iterable[TracedText]) -> list[tuple[TracedText | None, str, TracedText | None]]:
    """Return (content before, template text, content after) for all template text, from the beginning to the end."""
    gaps: list[tuple[TracedText | None, str, TracedText | None]] = []
    before, text = None, ""
    for part in (*parts, None):
        if part is None or part.source >= 0:
            gaps.append((before, text, part))
            before, text = part, ""
        else:
            text += part.text
    return gaps


class Turns:
    """How a template writes the turns of a conversation.

    Raises TemplateError if it accepts no conversation of a user and an assistant.
    """

    def __init__(self, how: Conversation) -> None:
        self.template = template = open_template(how)
        self._ids = how.markers
        # The longest marker at a place wins, as in `tokenizers`.
        names = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._openers: dict[str | None, str] = {}  # by role, the text between its message and an answer
        self._starters: set[str] = set()  # markers that begin other messages
        last = _gaps(_run(template, [_USER, _ANSWER]))[-1][1]
        self.closer = next((match[0] for match in self._pattern.finditer(last)), "")
        """The marker that ends an answer, "" if none does."""
        if template.generation:
            return
        for messages, parts in probed(template, _OPENINGS, prompt=True):
            self._openers.setdefault(messages[-1]["role"], _gaps(parts)[-1][1])
        for _, parts in probed(template):
            for before, text, behind in _gaps(parts):
                rest = text[self._closed(text) if before is not None else 0 :]
                self._starters |= set(self._pattern.findall(rest)) if behind is not None else set()
        # The closing marker may stand between messages, too, but it ends one and begins none.
        self._starters.discard(self.closer)

    def render(self, messages: list[dict[str, Any]], trace: Trace) -> list[TracedText]:
        """Render the parts of a document. messages: as `wrapped` gives them. Raises TemplateError."""
        output: Iterable[TracedText] = self.template.run(messages, trace)
        parts: list[TracedText] = []
        for inside, turn in groupby(
            output if self.template.generation else self._placed(output, messages),
            key=lambda part: part.inside,
        ):
            for before, text, behind in _gaps(turn):
                cut = self.cut(text)
                if inside:
                    split = _split(cut, before, behind)
                    for at, part in enumerate(cut):
                        near = before if at < split else behind
                        cut[at] = part._replace(kind=ANSWER if near is None else near.kind)
                parts += cut if behind is None else [*cut, behind]
        return parts

    def cut(self, text: str) -> list[TracedText]:
        """Cut template text at its markers."""
        parts, at = [], 0
        for match in self._pattern.finditer(text):
            if match.start() > at:
                parts.append(TracedText(text[at : match.start()]))
            parts.append(TracedText(match[0], marker=self._ids[match[0]]))
            at = match.end()
        return [*parts, TracedText(text[at:])] if at < len(text) else parts

    def _placed(self, output: Iterable[TracedText], messages: Messages) -> Iterator[TracedText]:
        """Yield the parts, with those of a turn marked as inside."""
        for before, text, behind in _gaps(output):
            last, following = (
                None if part is None else messages[part.message]["role"] for part in (before, behind)
            )
            spoke, speaks = (role is not None and ROLES[role] == ANSWER for role in (last, following))
            end, start = 0, len(text)
            if before is not None and behind is not None and before.message == behind.message:
                end = len(text) if spoke else 0
            else:
                end = self._ended(text) if spoke else 0
                start = self._begun(text, end, last, spoke) if speaks else len(text)
            for inside, piece in ((True, text[:end]), (False, text[end:start]), (True, text[start:])):
                if piece:
                    yield TracedText(piece, inside=inside)
            if behind is not None:
                yield behind._replace(inside=speaks)

    def _closed(self, text: str) -> int:
        """Return where the marker that ends an answer ends in a text; 0 if it has none."""
        return next((match.end() for match in self._pattern.finditer(text) if match[0] == self.closer), 0)

    def _ended(self, text: str) -> int:
        """Return where in a text the answer before it ends.

        It ends after its end marker, or after a first marker that begins no message.
        """
        first = self._pattern.match(text)
        other = first.end() if first and first[0] not in self._starters else 0
        return self._closed(text) or other

    def _begun(self, text: str, end: int, last: str | None, spoke: bool) -> int:
        """Return where in a text the answer after it begins.

        It begins after what the text has in common with the prompt for one.
        """
        opener = self._openers.get(last)
        if opener is not None and spoke:  # the end of the answer before is taken already
            opener = opener[self._ended(opener) :]
        if opener is None:
            return len(text)
        start = end + len(commonprefix([text[end:], opener]))  # noqa: RUF071 - of characters
        for match in self._pattern.finditer(text):  # a marker is not divided
            if match.start() < start < match.end():
                start = match.start()
        return len(text) if opener and start == end else start


def _split(cut: Sequence[TracedText], before: TracedText | None, behind: TracedText | None) -> int:
    """Return how many parts between two contents of a turn go with the first.

    Tags of thinking and of calls go with these; between two such contents, the last marker begins the second.
    """
    if behind is None or (before is not None and behind.kind in (before.kind, ANSWER)):
        return len(cut)
    markers = [at for at, part in enumerate(cut) if part.marker >= 0]
    return 0 if before is None or before.kind == ANSWER or len(markers) < 2 else markers[-1]
