"""How to find the documents in records: the field, or what makes a document of several texts.

Input: the recipe, and the tokenizer if it is known. Output: a `RecordFormat`, which is a part of the settings that the
shards of a source are compared with.
"""

from __future__ import annotations

import string
from functools import lru_cache
from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from pretok.base.records import Count, Digest, Record

FormatName = Literal["parquet", "arrow", "wet", "jsonl", "tokens", "text"]
"""The names of `read.formats`, here because a recipe is checked before anything heavy is loaded."""


class Conversation(Record, frozen=True, kw_only=True):
    """Messages through a chat template, or fields through a plain one; what has no line below is as in the recipe."""

    fields: bool
    """Whether the template consists of `{field}`s."""
    template: str
    """Its source, "" until a tokenizer is known (then a document is the contents alone)."""
    content_only: bool = True
    """Whether a document is the contents alone until a tokenizer is known, for fields."""
    chat_template: str = ""
    """Its name in the recipe, "" for the tokenizer's own."""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    tools: list[Any] = field(default_factory=list)
    date: str = ""
    learned: tuple[str, ...] = ()
    """Fields that are answers."""
    markers: dict[str, Count] = field(default_factory=dict)
    """Name -> id of each added token that the template can write."""
    variables: dict[str, str] = field(default_factory=dict)
    """Values that the tokenizer gives the template, such as bos_token."""


class TokenFiles(Record, frozen=True):
    """How to read files of tokens."""

    tokenizer: str
    """Path of the tokenizer.json that made them."""
    fingerprint: Digest
    """Of the tokenizer."""
    eod: Count
    """Id at the end of each document."""
    bos: Count | None = None
    """Id that may begin one, None for none."""
    dtype: str = ""
    """Of an id, "" where an index says it."""


class RecordFormat(Record, frozen=True):
    """How to find documents."""

    field: str = "text"
    """Name of the text field or column, such as `meta.text` inside `meta`."""
    separator: str = ""
    """The end of a document in a plain text file, "" for one document per file."""
    max_document: Count = 256 << 20
    """Bytes of the longest text that is accepted, before normalization."""
    conversation: Conversation | UnsetType = UNSET
    """How the value of the field, or with "" the whole record, becomes text, if it is not text itself."""
    fields: tuple[str, ...] | UnsetType = UNSET
    """Several names, if files differ, of which a file's is the first that it has."""
    tokens: TokenFiles | UnsetType = UNSET
    """How ids become text, if the files hold ids."""

    @property
    def max_line(self) -> int:
        """Bytes of the longest line of JSON Lines that is parsed; a longer one is rejected as too long without parsing.

        A text takes three times its bytes if all its letters are escaped; 1 MiB is for other fields.
        """
        return 3 * self.max_document + (1 << 20)


@lru_cache
def fields_of(template: str) -> tuple[tuple[str, str], ...]:
    """Return the pieces of a template of fields: (text, "") or ("", field).

    `{{` and `}}` are braces. Raises ValueError.
    """
    pieces: list[tuple[str, str]] = []
    for text, name, form, conversion in string.Formatter().parse(template):
        if text:
            pieces.append((text, ""))
        if name is None:
            continue
        if not name or form or conversion:
            raise ValueError(f"{{{name}}} names no field; write {{question}}, or {{{{ and }}}} for braces")
        pieces.append(("", name))
    if not any(name for _, name in pieces):
        raise ValueError("it names no field; write them in braces, such as {question}")
    return tuple(pieces)
