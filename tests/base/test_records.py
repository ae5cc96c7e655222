"""Records: what is wrong in a file is named with its place, what is there and what is wanted."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest

import pretok
import train
from pretok.base.errors import IntegrityError
from pretok.base.records import (
    Checksum,
    Count,
    Digest,
    File,
    Inside,
    Name,
    Record,
    Root,
    Split,
    decode_many,
    read_record,
    to_json,
)


class Inner(Record, frozen=True, omit_defaults=True):
    count: Count
    text: str | None = None


class Outer(Record, frozen=True):
    rows: tuple[Inner, ...]
    rest: dict[str, Any]


GOOD: dict[str, Any] = {"rows": [{"count": 1}, {"count": 2, "text": "x"}], "rest": {"x": [1.5, None]}}


def test_a_record_is_written_as_it_was_read() -> None:
    assert to_json(read_record(Outer, GOOD, "file.json")) == GOOD
    version = type("Version", (str,), {})("2.11")  # libraries derive types from numbers and texts
    assert to_json([np.float64(0.5), version, (1, 2)]) == [0.5, "2.11", [1, 2]]
    with pytest.raises(TypeError, match="object is not JSON"):
        to_json(object())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            GOOD | {"rows": [{"count": 1}, {"count": -1}]},
            r"rows\[1\]\.count: Expected `int` >= 0; the file was",
        ),
        (GOOD | {"rows": [{"count": True}]}, r"rows\[0\]\.count: Expected `int`, got `bool`;"),
        (GOOD | {"rows": [{}]}, r"rows\[0\]: Object missing required field `count`;"),
        (GOOD | {"more": 1}, "Object contains unknown field `more`"),
    ],
)
def test_a_wrong_value_is_named(value: Any, message: str) -> None:
    with pytest.raises(IntegrityError, match=f"file.json: {message}"):
        read_record(Outer, value, "file.json")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Inside, ["a", "a/b.bin", "..a/b..", ".removal/0"],
         ["", "/a", "..", "a/../b", "a//b", "a/", "./a", "a\0", "a\n/.."]),
        (File, ["a", "..a", "model-00001.safetensors"], ["", "a/b", "/a", "..", ".", "a\0"]),
        (Name, ["it", "en-2", "città_1"], ["", "a/b", "..", "a.b", "-a", "a\0", "a\n"]),
        (Split, ["train", "val"], ["", "train/..", "val\n", "test"]),
        (Checksum, ["xxh3:" + "0a" * 16], ["", "0a" * 16, "xxh3:../x", "xxh3:" + "0a" * 16 + "\n"]),
        (Digest, ["0a" * 16], ["", "0A" * 16, "0a" * 16 + "\n", "../" + "0a" * 16, "0a" * 15]),
        (Root, ["0a" * 32], ["", "0A" * 32, "0a" * 32 + "\n", "../../OUTSIDE/it", "0a" * 16]),
    ],
)  # fmt: skip
def test_paths_and_digests_are_checked(kind: Any, good: list[str], bad: list[str]) -> None:
    for value in good:
        assert read_record(kind, value, "file.json") == value
    for value in bad:
        with pytest.raises(IntegrityError, match=r"file\.json"):
            read_record(kind, value, "file.json")


class Texts(Record, frozen=True):
    inside: Inside = "a"
    name: Name = "it"
    split: Split = "val"
    root: Root = "0a" * 32
    of: Name | None = None


def test_texts_are_checked_together_as_one_by_one() -> None:
    """Whichever of many records holds them, and wherever they lie."""
    paths = ["".join(parts) for length in range(5) for parts in product("./a\0\n", repeat=length)]
    paths += ["a/../b", "a/..a", "a/./a", "a//b/", "../../a", "a/b/..", "a/b/c", "..a/b.."]
    roots = ["0a" * 32, "0" * 63, "0" * 65, "0A" * 32, "g" * 64, "\u0661" * 64, "0" * 63 + "\n", "é" * 32, ""]
    names = ["it", "en-2", "città_1", "", "-a", "a/b", "a\0", "a\n", "_a", "a.b", "null"]
    splits = ["train", "val", "", "test", "val\n", "train\0", "Train", "trainval"]
    fields = {"inside": paths, "root": roots, "name": names, "of": [*names, None], "split": splits}
    for field, values in fields.items():
        for value in values:
            number = len(value or "") % 3
            rows = [{}] * number + [{field: value}, {}]
            raws = msgspec.json.decode(msgspec.json.encode(rows), type=list[msgspec.Raw])
            try:
                one_by_one, said = read_record(tuple[Texts, ...], rows, "file.json"), ""
            except IntegrityError as error:
                one_by_one, said = (), str(error)
            if not said:
                assert decode_many(Texts, raws) == one_by_one
                continue
            assert f"[{number}].{field}: not " in said
            with pytest.raises(ValueError, match=field):
                decode_many(Texts, raws)


@pytest.mark.parametrize(
    "row", [b'{"path": "x"}', b'{"inside": 1}', b'{"of": 1}', b"[]", b"1", b'{"name": "\xff"}', b"{"]
)
def test_many_records_with_a_wrong_one_are_refused(row: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expected|unknown|utf-8|UTF-8|truncated"):
        decode_many(Texts, [msgspec.Raw(b"{}"), msgspec.Raw(row)])


UNCHECKED = {
    "pretok.base.failures.LeftOut.file": "an input of the user, for messages",
    "pretok.read.files.InputFile.path": "an input of the user, anywhere",
    "pretok.vocab.report_file.VocabReport.sizes": "vocabularies by their number of entries",
    "train.checkpoint.export._Index.weight_map": "keys are names of tensors; the files are paths inside",
}
"""Fields with the name of a path or digest that are neither, or lie where the user says."""
NAMED = re.compile(
    r"(^|_)(path|file|files|root|digest|fingerprint|checksum|checksums|sizes|tape|manifest|stream|request|ledger|indexes|"
    r"weight_map|source|split|former|parts|members|leaves)$"
)
"""Names of fields that are used as paths, as parts of a file's name, or to compare files."""


def unchecked(kind: Any) -> bool:
    """Whether a type holds a str without a pattern."""
    if kind is str or get_origin(kind) is Annotated:
        return kind is str
    return any(map(unchecked, get_args(kind)))


def records(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from records(child)


def test_every_path_and_digest_of_a_record_has_a_type_that_is_checked() -> None:
    for package in (pretok, train):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "integrations" not in module.name:  # they need their trainers
                importlib.import_module(module.name)
    fields = {
        f"{kind.__module__}.{kind.__qualname__}.{name}": unchecked(hint)
        for kind in records(Record)
        if kind.__module__.startswith(("pretok.", "train."))
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if NAMED.search(name)
    }
    assert len(fields) > 40  # else the names are not those of the records any more
    assert {name for name, plain in fields.items() if plain} == UNCHECKED.keys()
