"""Records: what a JSON file of ours holds, as frozen msgspec structs; read strictly, and written back.

Input: a value that `read_json` gave, and the record it must be. Output: that record, or an IntegrityError that names
the file and the key: an unknown or missing key, another type, a number out of range. Nothing is converted or defaulted,
so what was damaged, or written by another version, never passes for something else.

A field that may be missing has None as its default, in a class with `omit_defaults`; such a None is not written.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from pretok.base.errors import IntegrityError, MismatchError

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A whole number that counts something."""
Signed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Any whole number of 64 bits."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a record of ours inherits from."""


def read_record(kind: type[T], value: Any, where: Path | str) -> T:
    """`value` as a `kind`; `where` names the file in the IntegrityError that tells what is wrong with it."""
    try:
        made: T = msgspec.convert(value, kind)
        return made
    except msgspec.ValidationError as error:
        raise IntegrityError(
            f"{where}: {_describe(error)}; the file was damaged, edited or made by another version"
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


def _describe(error: msgspec.ValidationError) -> str:
    """`shards[0].tokens: Expected `int`, got `str``."""
    told, _, path = str(error).partition(" - at `$")
    key = path.rstrip("`").removeprefix(".")
    return f"{key}: {told}" if key else told
