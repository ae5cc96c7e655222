"""The conversations of a recipe and a tokenizer -> the template, its markers and variables.

Input: the record format of a source, and a Vocabulary. Output: the format with everything that decides its documents,
so that it can be compared with the one that shards were made from. Raises UsageError before anything is written: for no
template, or one that fails on every conversation, asks for a date that is not given, ends documents in the middle, or
has markers that are not tokens; for a template of fields that spells a special token.

A marker is an added token that the template can write: a special one, or one that the template spells. White space is
not a marker, so that the tokens for spaces of some vocabularies stay words.
"""

from __future__ import annotations

from pathlib import Path

from jinja2.exceptions import TemplateError

from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.storage import passes
from pretok.chat.limits import LIMITS, OverLimit, TemplateLimits, limited
from pretok.chat.template import ChatTemplate, DateNeeded
from pretok.chat.turns import Turns, open_template, probed
from pretok.read.record_format import Conversation, RecordFormat, fields_of
from pretok.tokenizer.kinds import MARKERS
from pretok.tokenizer.tokenizer_file import to_characters
from pretok.tokenizer.vocabulary import CONFIG_FILE, OWN_TEMPLATE, TEMPLATE_FILE, Vocabulary

CHATML = "chatml"
"""Name of the template that ships with the package."""
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _outputs(template: ChatTemplate, *, prompt: bool) -> list[str]:
    """Return what a template writes around the contents of the probe conversations."""
    return [
        "".join(part.text if part.source < 0 else "\0" for part in parts)
        for _, parts in probed(template, prompt=prompt)
    ]


def resolve(
    record: RecordFormat, vocab: Vocabulary, source: str, limits: TemplateLimits = LIMITS
) -> RecordFormat:
    """Return the record format with its checked template. source: its name, for messages. Raises UsageError."""
    how = record.conversation
    if not isinstance(how, Conversation):
        return record
    if how.fields:
        texts = [text for text, _ in fields_of(how.template)]
        for token in vocab.added:
            if token["special"] and any(token["content"] in text for text in texts):
                raise UsageError(
                    f"source {source}: its template spells the special token {token['content']!r}, which would stay "
                    "text; only a chat template writes special tokens"
                )
        return replace(record, conversation=replace(how, content_only=False))
    where = f"source {source}: the chat template"
    text, name = _template(how.chat_template, vocab, source)
    variables = {key: value for key in _TOKENS if (value := vocab.role(key))}
    how = replace(how, template=text, content_only=False, variables=variables)
    added = {token["content"]: token for token in vocab.added}
    try:
        with limited(limits.seconds, limits.memory):
            template = open_template(how)
            whole = _outputs(template, prompt=False)
            outputs = "\0".join((*whole, *_outputs(template, prompt=True)))
        values = [
            value for value in (*variables.values(), *how.template_kwargs.values()) if isinstance(value, str)
        ]
        # Where a template can take a token from: its own text, its variables, or what it wrote for the probes. NUL
        # keeps two pieces from spelling a token together.
        spelled = "\0".join((text, *values, outputs))
        markers = {n: t["id"] for n, t in added.items() if n.strip() and (t["special"] or n in spelled)}
        how = replace(how, markers=dict(sorted(markers.items())))
        with limited(limits.seconds, limits.memory):
            turns = Turns(how)
    except OverLimit as error:
        raise UsageError(
            f"{where} ({name}): {error}; name another, or raise template_seconds or template_memory of the source"
        ) from None
    except DateNeeded:
        raise UsageError(
            f'{where} ({name}) asks for the date; write date = "2026-01-31" in its table'
        ) from None
    except TemplateError as error:
        raise UsageError(f"{where} ({name}) cannot be used: {str(error)[:300]}") from None
    if how.chat_template == CHATML and (lacks := [n for n in MARKERS[:2] if n not in markers]):
        raise UsageError(
            f"{where} ({name}) needs the tokens {', '.join(lacks)}, and {vocab.path} has none: train a vocabulary with "
            "this source in the recipe, which reserves them, or name another template"
        )
    for marker in how.markers:
        if marker in outputs and any(added[marker][flag] for flag in ("single_word", "lstrip", "rstrip")):
            raise UsageError(
                f"{where} ({name}): its marker {marker!r} strips or needs a border, which is not supported"
            )
    for text in whole:
        for part in turns.cut(text)[:-1]:
            if part.marker == vocab.eod_id:  # readers would see two documents
                raise UsageError(
                    f"{where} puts {part.text}, the end-of-document token, inside of a conversation: name another "
                    "token with --eod, or as eod under [vocab]"
                )
    names = {to_characters(marker.encode()) for marker in markers}
    for left, right in vocab.merges:
        if left + right in names:  # text could become a marker
            raise UsageError(
                f"{where}: the vocabulary has a merge that makes its marker {left + right!r} of text"
            )
    return replace(record, conversation=how)


def _template(chosen: str, vocab: Vocabulary, source: str) -> tuple[str, str]:
    """Return (source of the template, its name for messages)."""
    path = vocab.path.with_name(TEMPLATE_FILE)
    if chosen:
        path = OWN_TEMPLATE if chosen == CHATML else Path(chosen)
    if chosen or path.exists():
        try:
            return path.read_text("utf-8"), chosen or str(path)
        except (OSError, UnicodeDecodeError) as error:
            if passes(error):
                raise
            raise UsageError(f"source {source}: the chat template {path} cannot be read: {error}") from None
    template = vocab.config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if isinstance(template, str):
        return template, str(vocab.path.with_name(CONFIG_FILE))
    raise UsageError(
        f"source {source} has conversations, and the tokenizer {vocab.path} has no chat template: write "
        f'chat_template = "FILE.jinja" in its table, or chat_template = "{CHATML}" for the one of pretok'
    )
