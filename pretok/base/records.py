"""Records: the contents of our JSON files as frozen msgspec structs, read strictly and written back.

Input: a value from `read_json`, and the type of the record. Output: the record, or an IntegrityError that names the
file and the key: unknown, missing, of another type or out of range. Nothing is converted or defaulted, so a damaged
file, or one of another version, is never read as something else.

An optional field has the default None, in a class with `omit_defaults`; such a None is not written.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import starmap
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.storage import atomic_open, not_json

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A whole number, 0 or more, of at most 63 bits."""
Signed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number of 64 bits with a sign."""
# All patterns end with \Z: a $ would let a line feed at the end pass.
_PART = r"(?!\.\.?(?:/|\Z))[^/\0]+"
_PATTERNS = {
    "a path inside the folder": rf"\A{_PART}(?:/{_PART})*\Z",
    "the name of a file": rf"\A{_PART}\Z",
    "the name of a source": r"\A[^\W_][\w-]*\Z",
    "train or val": r"\A(?:train|val)\Z",
    "32 hexadecimal digits": r"\A[0-9a-f]{32}\Z",
    "64 hexadecimal digits": r"\A[0-9a-f]{64}\Z",
    "a checksum": r"\Axxh3:[0-9a-f]{32}\Z",
}
Inside = Annotated[str, msgspec.Meta(pattern=_PATTERNS["a path inside the folder"])]
"""A path inside the folder of its file: relative, without `..`, NUL or an empty part."""
File = Annotated[str, msgspec.Meta(pattern=_PATTERNS["the name of a file"])]
"""The name of a file in the folder of its file, in no folder below it."""
Name = Annotated[str, msgspec.Meta(pattern=_PATTERNS["the name of a source"])]
"""The name of a source, which is a part of the names of files."""
Split = Annotated[str, msgspec.Meta(pattern=_PATTERNS["train or val"])]
"""Which part of a source a shard belongs to; also a part of the names of files."""
Digest = Annotated[str, msgspec.Meta(pattern=_PATTERNS["32 hexadecimal digits"])]
"""128 bits: a fingerprint, or the name of a side file."""
Root = Annotated[str, msgspec.Meta(pattern=_PATTERNS["64 hexadecimal digits"])]
"""The root of a hash tree over a file."""
Checksum = Annotated[str, msgspec.Meta(pattern=_PATTERNS["a checksum"])]
"""What `pretok.base.storage.checksum` gives for a file."""

MANY = 1 << 10
"""Records that are decoded at once: few enough for the caches of a processor."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of our records."""


def read_record(kind: type[T], value: Any, where: Path | str) -> T:
    """Return `value` as a `kind`. Raises IntegrityError with the file `where` and what is wrong."""
    with _refused(where):
        record: T = msgspec.convert(value, kind)
        return record


def decode_record(kind: type[T], data: bytes, where: Path | str) -> T:
    """Return the JSON `data` as a `kind`, as `read_record` of its value, but without making that."""
    try:
        with _refused(where):
            record: T = msgspec.json.decode(data, type=kind)
            return record
    except (ValueError, RecursionError) as error:
        raise not_json(where, error) from None


def decode_many(kind: type[T], raws: Sequence[msgspec.Raw]) -> tuple[T, ...]:
    """Return many records of a kind from their JSON. To match each text with its pattern would take twice as long.

    Raises ValueError if one is wrong; `decode_record` of the whole file says what is wrong, and where.
    """
    fields: Any = msgspec.structs.fields(kind)  # type: ignore[arg-type]
    loose = [(field.name, _LOOSE.get(field.type, [field.type])[0], field.default) for field in fields]
    row: Any = msgspec.defstruct(kind.__name__, loose, forbid_unknown_fields=True, gc=False)
    texts = [(field.name, *_LOOSE[field.type][1:]) for field in fields if field.type in _LOOSE]
    decoder = msgspec.json.Decoder(list[row])
    records, known = list[T](), dict[Any, Any]()
    for at in range(0, len(raws), MANY):
        rows = decoder.decode(b"[" + b",".join(raws[at : at + MANY]) + b"]")
        for name, are_right, often in texts:
            column = list(map(attrgetter(name), rows))
            if not are_right(column):
                raise ValueError(name)
            if often:  # one object for all that are equal
                for row, text in zip(rows, column, strict=True):
                    msgspec.structs.force_setattr(row, name, known.setdefault(text, text))
        records += starmap(kind, map(msgspec.structs.astuple, rows))
    return tuple(records)


def _are_inside(texts: Sequence[str]) -> bool:
    joined = "/".join(["", *texts, ""])
    return not any(wrong in joined for wrong in ("//", "/./", "/../", "\0"))


def _are_roots(texts: Sequence[str]) -> bool:
    digits = "".join(texts).encode(errors="replace")
    return {*map(len, texts)} <= {64} and not digits.translate(None, b"0123456789abcdef")


def _are_names(texts: Sequence[str | None]) -> bool:
    return all(re.search(_PATTERNS["the name of a source"], text) for text in {*texts} if text is not None)


_LOOSE: dict[Any, tuple[Any, Callable[[Sequence[Any]], bool], bool]] = {
    Inside: (str, _are_inside, False),
    Root: (str, _are_roots, False),
    Name: (str, _are_names, True),
    Name | None: (str | None, _are_names, True),
    Split: (str, lambda texts: {*texts} <= {"train", "val"}, True),
}
"""Type of a text -> the type without its pattern; whether the pattern matches all of many texts; whether few differ."""


@contextmanager
def _refused(where: Path | str) -> Iterator[None]:
    try:
        yield
    except msgspec.ValidationError as error:
        raise IntegrityError(
            f"{where}: {_describe(error)}; the file was damaged, edited or made by another version"
        ) from None


def write_record(path: Path, record: Record) -> None:
    """Write what `write_json` writes of `to_json` of a record, without making that.

    Of a plan of 100,000 files it is 100 MB.
    """
    with atomic_open(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(record, enc_hook=_plain), indent=1))
        file.write(b"\n")


def check_version(found: object, version: int, where: Path | str, remedy: str) -> None:
    """Raise MismatchError unless a file has the version that is read; remedy: what to do, such as `make it again`."""
    if type(found) is not int or found != version:
        raise MismatchError(f"{where} has format version {found!r}, this program reads {version}: {remedy}")


def to_json(value: Any) -> Any:
    """Convert records, or dicts and lists of them, to JSON values, with fields in their order."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_plain))


def _plain(value: Any) -> Any:
    """Convert subclasses of Python's types, such as numpy's float64 and the str that is torch's version."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r} of {type(value).__name__} is not JSON")


def replace(record: T, **changes: Any) -> T:
    """Return a copy of a record or dataclass with changed fields, as `copy.replace` of Python 3.13."""
    change: Any = msgspec.structs.replace if isinstance(record, msgspec.Struct) else dataclasses.replace
    changed: T = change(record, **changes)
    return changed


def _describe(error: msgspec.ValidationError) -> str:
    """Describe a mistake with its place: `shards[0].tokens: Expected `int`, got `str``."""
    problem, _, path = str(error).partition(" - at `$")
    for kind, pattern in _PATTERNS.items():
        problem = problem.replace(f"Expected `str` matching regex {pattern!r}", f"not {kind}")
    key = path.rstrip("`").removeprefix(".")
    return f"{key}: {problem}" if key else problem
