"""Inputs that several sources, or one source several times, read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pretok.base.errors import UsageError
from pretok.config.changes import shared_inputs
from pretok.read import files
from pretok.read.recognise import list_inputs

LONG = 3 * files.IDENTITY_BYTES
COPIES, SHARED = "warning: source it seems to read copies", "warning: sources it and en read the same text"


def otherwise(path: Path, at: int) -> None:
    """A copy of a.jsonl with another byte at a place."""
    data = bytearray(Path("a.jsonl").read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: shutil.copy("a.jsonl", path), True),
        (lambda path: otherwise(path, LONG // 2), True),
        (lambda path: otherwise(path, 9), False),
        (lambda path: otherwise(path, LONG - 3), False),
        (lambda path: path.write_bytes(Path("a.jsonl").read_bytes() + b"\n"), False),
    ],
)
def test_files_that_may_be_copies_are_a_notice(
    make: Callable[[Path], object], says: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By size, beginning and end: in one list, in an append and in another source."""
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(b'{"text": "%s"}' % (b"a" * (LONG - 12)))
    make(Path("b.jsonl"))
    both, one, other = (
        list_inputs(names, "auto") for names in (["a.jsonl", "b.jsonl"], ["a.jsonl"], ["b.jsonl"])
    )
    for sources, begins in (
        ({"it": [both]}, COPIES),
        ({"it": [one, other]}, COPIES),
        ({"it": [one], "en": [other]}, SHARED),
    ):
        assert [begins in text and "a.jsonl = b.jsonl" in text for text in shared_inputs(sources)] == [
            True
        ] * says


def test_one_file_in_two_sources_is_a_notice_and_twice_in_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text("{}\n")
    Path("b.jsonl").symlink_to("a.jsonl")
    one, other = (list_inputs([name], "auto") for name in ("a.jsonl", "b.jsonl"))
    assert shared_inputs({"it": [one], "en": [other]}) == [f"{SHARED}: a.jsonl = b.jsonl"]
    assert shared_inputs({"it": [one], "en": [one]}) == [f"{SHARED}: a.jsonl"]
    with pytest.raises(
        UsageError, match=r"append 1 of it names files that it contains already: a.jsonl = b.jsonl"
    ):
        shared_inputs({"it": [one, other]})
