"""The JSON of a record -> a checked conversation, and its strings with their kinds.

Input: JSON bytes: a list of messages as transformers takes them (`role`, `content`, and optionally `reasoning_content`
or `thinking`, `tool_calls`, `name`), or an object with fields. Output: checked messages, and the same with each string
wrapped by the caller, who gets its kind and the number of its message. BadRecord says why a record is not a
conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pretok.base.errors import UsageError
from pretok.base.storage import passes
from pretok.chat.spans import ANSWER, CALL, RESULT, SYSTEM, THINKING, USER

ROLES = {
    "system": SYSTEM,
    "developer": SYSTEM,
    "user": USER,
    "assistant": ANSWER,
    "tool": RESULT,
    "function": RESULT,
    "ipython": RESULT,
}
"""Role -> the kind of its text."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of an assistant's thinking. A template sees it under the first two, as in transformers."""
_KNOWN = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "type", "id", "function", "arguments", "text")
).union(REASONING)
"""Keys of the format. Any other key is written by the user and counts as content."""
_KINDS = dict.fromkeys(REASONING, THINKING) | {"tool_calls": CALL}


_LISTS = msgspec.json.Decoder(list[dict[str, str]])


class _TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Message(msgspec.Struct):
    """What a message must look like. Images and sounds are not supported."""

    role: str
    content: str | list[_TextPart] | None = None
    reasoning_content: str | None = None
    thinking: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class BadRecord(Exception):
    """A record cannot become a document: (reason, detail)."""


def decode(data: bytes) -> Any:
    """Decode JSON. Raises BadRecord. Records were parsed before; only half a surrogate pair can fail here."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise BadRecord("bad_messages", f"not JSON: {error}"[:200]) from None


def messages_of(data: bytes) -> list[dict[str, Any]]:
    """Check the messages of a record, and return them. Raises BadRecord."""
    messages: list[dict[str, Any]] = decode(data)
    try:
        checked = msgspec.convert(messages, list[_Message])
    except msgspec.ValidationError as error:
        raise BadRecord("bad_messages", str(error)) from None
    if not checked:
        raise BadRecord("bad_messages", "no messages")
    for number, message in enumerate(checked, 1):
        if problem := _problem(message):
            raise BadRecord("bad_messages", f"message {number} {problem}")
    return messages


def _problem(message: _Message) -> str:
    """Return what is wrong with a message; "" if nothing."""
    if message.role not in ROLES:
        return f"has the role {message.role!r:.60}; it must be one of {', '.join(ROLES)}"
    for call in message.tool_calls or ():
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return "has a tool call that names no function"
        if isinstance(arguments := function.get("arguments"), str):
            try:
                msgspec.json.decode(arguments)
            except (ValueError, RecursionError) as error:
                return f"has a tool call whose arguments are not JSON: {error}"
    thought = message.reasoning_content or message.thinking or message.reasoning
    if message.content or message.tool_calls or (thought and message.role == "assistant"):
        return ""
    return f"({message.role}) is empty"


Shape = tuple[tuple[str, ...], ...]
"""The role and the keys of each message. Conversations of one shape differ only in their texts."""


def texts_of(data: bytes) -> tuple[Shape, list[str]] | None:
    """Return (shape, texts in the order of `wrapped`) of a conversation of nonempty texts only, else None.

    It is not checked: a conversation of a shape that was checked is valid too.
    """
    try:
        messages = _LISTS.decode(data)
    except (ValueError, RecursionError):
        return None
    shape, texts = [], []
    for message in messages:
        if not message.keys() <= _KNOWN:
            return None
        shape.append((message.get("role", ""), *message))
        for key, text in message.items():
            if key != "role":
                if not text:
                    return None
                texts.append(text)
    return tuple(shape), texts


def wrapped(messages: Sequence[dict[str, Any]], text: Callable[[str, int, int], Any]) -> list[dict[str, Any]]:
    """Prepare messages for a template: each string is replaced by `text(string, kind, number of its message)`."""
    rows = []
    for number, message in enumerate(messages):

        def wrap(value: Any, kind: int, number: int = number) -> Any:
            match value:
                case str():
                    return text(value, kind, number)
                case dict():
                    return {k if k in _KNOWN else wrap(k, kind): wrap(v, kind) for k, v in value.items()}
                case list():
                    return [wrap(item, kind) for item in value]
            return value

        own = ROLES[message["role"]]
        row: dict[str, Any] = {}
        for key, value in message.items():
            name = key if key in _KNOWN else wrap(key, own)
            row[name] = value if key == "role" else wrap(value, _KINDS.get(key, own))
        thought = next((row[name] for name in REASONING if row.get(name) is not None), None)
        if thought is not None:  # as transformers does
            row = {"thinking": thought, **row, "reasoning_content": thought}
        rows.append(row)
    return rows


def load_tools(path: Path) -> list[Any]:
    """Load the tools in a JSON file: a list of objects. Raises UsageError."""
    try:
        tools = msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        if passes(error):
            raise
        raise UsageError(f"tools: {path} cannot be read as JSON: {error}") from None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(f"tools: {path} is not a list of objects, which a chat template expects")
    return tools
