"""Spans of whole records: the same however blocks are cut, and no memory for what is too long."""

from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from reading import bounded, read

from pretok.read.files import CorruptInputError
from pretok.read.fill import copying
from pretok.read.record_format import RecordFormat
from pretok.read.whole_records import whole_records

LENGTHS = st.sampled_from([*range(30, 36), *range(38, 44), *range(98, 104)]).map(lambda size: b"x" * size)
"""Records that are about as long as the limits are."""
SEPARATORS = st.sampled_from([b"\n", b"=="])


def spans_of(blocks, separator: bytes, limit: int) -> list[bytes | None]:
    """Spans, of which one is dropped before the next one is made: their memory is used again."""
    spans: list[bytes | None] = []
    for span in whole_records(copying(iter(blocks)), separator, limit, 32):
        spans.append(None if span is None else bytes(span))
        del span
    return spans


@given(
    st.lists(st.binary(max_size=40) | st.binary(max_size=150) | LENGTHS),
    SEPARATORS,
    st.sampled_from([0, 40, 100, 1 << 20]),
    st.data(),
)
def test_spans_do_not_depend_on_how_blocks_are_cut(parts, separator, limit, data):
    """A file system may return short reads: the batches, and with them the ends of shards, stay the same."""
    whole = separator.join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    blocks = [whole[a:b] for a, b in pairwise([0, *cuts, len(whole)])]
    spans = spans_of(blocks, separator, limit)
    assert spans == spans_of([whole], separator, limit)
    assert spans == spans_of([whole[at : at + 1] for at in range(len(whole))], separator, limit)
    kept = list(whole_records(copying(iter(blocks)), separator, limit, 32))  # and memory in use is left alone
    assert spans == [None if span is None else bytes(span) for span in kept]
    found = [span for span in spans if span is not None]
    limit = max(limit, 32)
    records = whole.split(separator)
    # A last record without separator may exceed the limit by what a separator could still have been.
    long = [len(record) > limit for record in records]
    long[-1] = len(records[-1]) >= limit + len(separator)
    assert spans.count(None) == sum(long)
    wanted = [r + separator for r in records[:-1]] + [records[-1]]
    assert b"".join(found) == b"".join(r for r, skip in zip(wanted, long, strict=True) if not skip)
    assert all(span.endswith(separator) for span in found[:-1])
    assert all(len(span) <= 32 or separator not in span[: -len(separator)] for span in found[:-1])


def test_separators_that_an_earlier_span_left_in_memory_end_no_record():
    blocks = [b"a\n" * 100, *[b"y"] * 90, b"\nb\n"]
    assert spans_of(blocks, b"\n", 40) == [*[b"a\n" * 16] * 6, b"a\n" * 4, None, b"b\n"]


@pytest.mark.parametrize("marks", range(2, 9))
@pytest.mark.parametrize("before", range(24, 33))
def test_a_separator_that_overlaps_itself_is_found_as_in_the_whole_text(before, marks):
    """Several line ends in a row at the end of a batch: blank lines belong to the text that a split gives them."""
    text = b"a" * before + b"\n" * marks + b"b" * 34 + b"\n\nc"
    spans = spans_of([text], b"\n\n", 100)
    assert b"".join(spans) == text
    parts = [part for span in spans for part in span.removesuffix(b"\n\n").split(b"\n\n")]
    assert parts == text.split(b"\n\n")


def test_an_unfinished_record_of_a_damaged_file_is_left_out():
    def damaged():
        yield b"first==second=="
        yield b"third="
        raise CorruptInputError("cut")

    spans: list[bytes] = []
    with pytest.raises(CorruptInputError):
        spans.extend(map(bytes, whole_records(copying(damaged()), b"==", 0, 32)))
    assert spans == [b"first==second=="]


@pytest.mark.parametrize(
    ("name", "separator", "begin", "end", "texts"),
    [
        ("a.jsonl.zst", "", b'{"text":"a"}\n{"text":"', b'"}\n{"text":"b"}\n', {0: "a", 2: "b"}),
        ("a.txt.zst", "|", b"a|", b"|b|", {0: "a", 2: "b"}),
        ("a.txt.zst", "", b"", b"", {}),
    ],
)
def test_a_text_that_is_too_long_takes_no_memory(tmp_path, name, separator, begin, end, texts):
    """320 MiB in one record, out of a file of kilobytes, with a limit of 1 MiB. A step of zstd gives 32 MiB at most."""
    path, record = tmp_path / name, RecordFormat("text", separator, 1 << 20)
    path.write_bytes(zstandard.compress(begin + end))
    read(path, record)  # what is loaded for it counts for nothing
    path.write_bytes(zstandard.compress(begin + b"x" * (320 << 20) + end))
    assert path.stat().st_size < 40_000
    with bounded(200 << 20):
        found = read(path, record)
    assert found == (texts, {min(1, len(texts)): "too_long"}, "", [])
