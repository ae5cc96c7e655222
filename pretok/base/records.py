"""JSON of ours -> typed, frozen dataclasses, strictly; and back.

Enters: a value that `json` read, and the dataclass it must be. Leaves: that dataclass, or an IntegrityError that names
the file and the key: an unknown or missing key, another type, a number out of range. Nothing is converted or defaulted,
so what was damaged, or written by another version, never passes for something else. Standard library only.

Understood are str, int, bool, float, object, X | None, tuple[X, ...], dict[str, X], dataclasses of these. An int counts
something, so it is in 0..2**63-1 unless `Annotated` with another `Range`. A field may be missing if it has a default.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pretok.base.errors import IntegrityError, MismatchError

T = TypeVar("T")
_Reader = Callable[[Any], Any]

MAX_DEPTH = 32
"""How deep `object` may be nested: settings are tables of tables; beyond lies what ends in a RecursionError."""


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """Which whole numbers a field may hold, both ends included."""

    low: int = 0
    high: int = 2**63 - 1


Signed = Annotated[int, Range(-(2**63))]
"""Any whole number of 64 bits."""


class _WrongValueError(Exception):
    """`keys`: where the value is, from the outside in; filled in on the way out, so that right values cost nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.keys: list[str] = []


def read_record(kind: type[T], value: Any, where: Path | str) -> T:
    """`value` as a `kind`; `where` names the file in the IntegrityError that tells what is wrong with it."""
    try:
        hint: Any = kind
        return cast("T", _reader(hint)(value))
    except _WrongValueError as wrong:
        key = "".join(wrong.keys).removeprefix(".")
        raise IntegrityError(
            f"{where}: {f'{key}: ' if key else ''}{wrong}; the file was damaged, edited or made by another version"
        ) from None


def check_version(found: object, version: int, where: Path | str, remedy: str) -> None:
    """MismatchError unless a file is of the one version that is read; remedy: what to do, such as `make it again`."""
    if type(found) is not int or found != version:
        raise MismatchError(f"{where} has format version {found!r}, this program reads {version}: {remedy}")


def to_json(value: Any) -> Any:
    """The JSON of a record: fields in their order, without those that are None because nobody set them."""
    if isinstance(value, str | int):
        return value
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        made = {}
        for name, optional in _field_names(kind):
            item = getattr(value, name)
            if not (optional and item is None):
                made[name] = item if type(item) is str or type(item) is int else to_json(item)
        return made
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


@cache
def _field_names(kind: type) -> list[tuple[str, bool]]:
    """Each field and whether None is its default."""
    return [(field.name, field.default is None) for field in dataclasses.fields(kind)]


@cache
def _reader(hint: Any) -> _Reader:
    """What checks a value against a type hint and returns it, in tuples and dataclasses instead of lists and dicts."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in (Any, object):
        return _read_any
    if dataclasses.is_dataclass(hint):
        return _record_reader(cast("type", hint))
    if hint is int:
        return _int_reader(Range())
    if origin is Annotated:
        return _int_reader(arguments[1])
    if origin is tuple:
        return _list_reader(_reader(arguments[0]))
    if origin is dict:
        return _dict_reader(_reader(arguments[1]))
    if origin in (types.UnionType, Union):
        inner = _reader(next(argument for argument in arguments if argument is not types.NoneType))
        return lambda value: None if value is None else inner(value)
    return _plain_reader(hint)


def _record_reader(kind: type) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields}
    missing = dataclasses.MISSING
    required = {f.name for f in fields if f.default is missing and f.default_factory is missing}
    names, kinds = tuple(readers), tuple(hints[name] for name in readers)
    plain, counts = set(kinds) <= {str, int}, [at for at, hint in enumerate(kinds) if hint is int]

    def as_written(value: dict[str, Any]) -> bool:
        """Whether this is a record of texts and counts in the order that we write: most of a manifest's are."""
        values = tuple(value.values())
        if not plain or tuple(value) != names or tuple(map(type, values)) != kinds:
            return False
        numbers = [values[at] for at in counts]
        return min(numbers, default=0) >= 0 and max(numbers, default=0) < 2**63

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _WrongValueError(f"expected an object, found {_shown(value)}")
        if as_written(value):
            return kind(**value)
        if lacking := required - value.keys():
            raise _WrongValueError(f"lacks the key {min(lacking)!r}")
        if unknown := value.keys() - readers.keys():
            raise _WrongValueError(f"has an unknown key {min(unknown)!r}")
        return kind(**_read_items(value, readers))

    return read


def _read_items(value: dict[str, Any], readers: dict[str, _Reader]) -> dict[str, Any]:
    made = {}
    for key, item in value.items():
        try:
            made[key] = readers[key](item)
        except _WrongValueError as wrong:
            wrong.keys.insert(0, f".{key}")
            raise
    return made


def _list_reader(inner: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _WrongValueError(f"expected a list, found {_shown(value)}")
        made = []
        for number, item in enumerate(value):
            try:
                made.append(inner(item))
            except _WrongValueError as wrong:
                wrong.keys.insert(0, f"[{number}]")
                raise
        return tuple(made)

    return read


def _dict_reader(inner: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _WrongValueError(f"expected an object, found {_shown(value)}")
        return _read_items(value, dict.fromkeys(value, inner))

    return read


def _int_reader(bounds: Range) -> _Reader:
    low, high = bounds.low, bounds.high

    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:  # True is an int to Python, not to us
            raise _WrongValueError(f"expected a whole number from {low} to {high}, found {_shown(value)}")
        return value

    return read


def _plain_reader(kind: type) -> _Reader:
    name = {str: "a text", bool: "true or false", float: "a number"}[kind]

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _WrongValueError(f"expected {name}, found {_shown(value)}")
        return value

    return read


def _read_any(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Settings that others understand: any JSON of numbers that fit 64 bits, not nested without end."""
    if not depth:
        raise _WrongValueError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            if type(item) is not str or depth == 1:
                _read_any(item, depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise _WrongValueError(f"expected a finite number, found {value}")
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise _WrongValueError(f"expected a number of 64 bits, found {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A value in a message, cut where it is long; how many digits a number has is not worth its digits."""
    if type(value) is int and abs(value) >= 2**64:
        return f"a number of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."
