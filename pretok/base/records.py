"""Records: what a JSON file of ours holds, as frozen msgspec structs; read strictly, and written back.

Input: a value that `read_json` gave, and the record it must be. Output: that record, or an IntegrityError that names
the file and the key: an unknown or missing key, another type, a number out of range. Nothing is converted or defaulted,
so what was damaged, or written by another version, never passes for something else.

A field that may be missing has None as its default, in a class with `omit_defaults`; such a None is not written.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from pretok.base.errors import IntegrityError, MismatchError

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A whole number that counts something."""
Signed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Any whole number of 64 bits."""

_WANTED = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "a text",
}
"""What msgspec calls a kind of value -> what people do."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a record of ours inherits from."""


def read_record(kind: type[T], value: Any, where: Path | str) -> T:
    """`value` as a `kind`; `where` names the file in the IntegrityError that tells what is wrong with it."""
    try:
        made: T = msgspec.convert(value, kind)
        return made
    except msgspec.ValidationError as error:
        raise IntegrityError(
            f"{where}: {_describe(kind, value, error)}; the file was damaged, edited or made by another version"
        ) from None


def check_version(found: object, version: int, where: Path | str, remedy: str) -> None:
    """MismatchError unless a file is of the one version that is read; remedy: what to do, such as `make it again`."""
    if type(found) is not int or found != version:
        raise MismatchError(f"{where} has format version {found!r}, this program reads {version}: {remedy}")


def to_json(value: Any) -> Any:
    """The JSON of records, and of tables and lists of them: fields in their order."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_plain))


def _plain(value: Any) -> Any:
    """What libraries derive from Python's own kinds, such as numpy's float64 and the version of torch, a text."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r} of {type(value).__name__} is no JSON")


def replace(record: T, **changes: Any) -> T:
    """A record or dataclass with other values in some fields, as `copy.replace` of Python 3.13 gives it."""
    change: Any = msgspec.structs.replace if isinstance(record, msgspec.Struct) else dataclasses.replace
    changed: T = change(record, **changes)
    return changed


def _describe(kind: Any, value: Any, error: msgspec.ValidationError) -> str:
    """`shards[0].tokens: expected a whole number, found 'x'`, from what msgspec says of a value."""
    message, _, path = str(error).rpartition(" - at `$") if " - at `$" in str(error) else (str(error), "", "")
    key, found = "", value
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        step = name or (int(index) if index.isdigit() else _failing_key(kind, value, found, str(error)))
        key += f"[{step}]" if isinstance(step, int) else f".{step}"
        found = found[step]
    if missing := re.fullmatch(r"Object missing required field `(.*)`", message):
        told = f"lacks the key {missing[1]!r}"
    elif unknown := re.fullmatch(r"Object contains unknown field `(.*)`", message):
        told = f"has an unknown key {unknown[1]!r}"
    else:
        wanted = re.sub(r"`(.*?)`", lambda kinds: _wanted(kinds[1]), message.partition(", got ")[0])
        told = f"{wanted[0].lower()}{wanted[1:]}, found {_shown(found)}"
    return f"{key.removeprefix('.')}: {told}" if key else told


def _failing_key(kind: Any, value: Any, table: dict[str, Any], error: str) -> str:
    """The key of a dict[str, X] inside `value` at which reading fails; msgspec calls each of them `...`."""
    items = dict(table)
    try:
        for key, item in items.items():
            table.clear()
            table[key] = item
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError as again:
                if str(again) == error:
                    return key
    finally:
        table.clear()
        table.update(items)
    raise AssertionError(error)


def _wanted(kinds: str) -> str:
    return " or ".join(_WANTED.get(kind, kind) for kind in kinds.split(" | "))


def _shown(value: Any) -> str:
    """A value in a message, cut where it is long; how many digits a number has is not worth its digits."""
    if type(value) is int and abs(value) >= 2**64:
        return f"a number of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."
