"""zstd straight into a buffer: the text and the errors of `decompress`, wherever a file is cut or damaged."""

import itertools

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pretok.read.files import COMPRESSED_STEP, CorruptInputError, decompress, in_memory
from pretok.read.fill import STEP, STEP_TEXT, copying, fill_from

SKIPPABLE = b"\x50\x2a\x4d\x18\x05\0\0\0hello"
HEAD = b"\x28\xb5\x2f\xfd\x20"
CONTENTS = (
    st.binary(max_size=300)
    | st.builds(lambda text, times: text * times, st.binary(min_size=1, max_size=9), st.integers(0, 60_000))
    | st.integers(0, 400_000).map(bytes)
)
FRAMES = st.just(SKIPPABLE) | st.builds(
    lambda text, **options: zstandard.ZstdCompressor(**options).compress(text),
    CONTENTS,
    level=st.sampled_from([-5, 1, 3, 19]),
    write_checksum=st.booleans(),
    write_content_size=st.booleans(),
)


def finely(data: bytes):
    """The Blocks of a file of steps so small that it has many."""
    return lambda size: in_memory(data)(size >> 8)


def text_of(fill) -> tuple[bytes, str]:
    """All text of a file, and the error that ends it. Its buffer is reused at times, as for spans."""
    buffer, at, parts = bytearray(), 0, []
    try:
        while (end := fill(buffer, at)) > at:
            parts.append(bytes(buffer[at:end]))
            at = 0 if len(parts) % 3 else end
    except CorruptInputError as error:
        return b"".join(parts), str(error)
    return b"".join(parts), ""


def by_frames(blocks) -> tuple[bytes, str]:
    return text_of(copying(decompress(blocks(COMPRESSED_STEP), "zstd")))


@given(st.lists(FRAMES, max_size=4), st.data())
def test_whole_cut_and_damaged_files_are_those_of_decompress(frames, data):
    whole = b"".join(frames)
    place = data.draw(st.integers(0, max(0, len(whole) - 1)))
    changed = bytearray(whole)
    if whole:
        changed[place] ^= data.draw(st.integers(1, 255))
    follows = data.draw(
        st.sampled_from([b"\0", b"\0" * 50, b"{"])
        | st.integers(1, 20).map(lambda size: (frames or [HEAD])[0][:size])
    )
    unpack = zstandard.ZstdDecompressor()
    text = b"".join(unpack.decompressobj().decompress(frame) for frame in frames if frame != SKIPPABLE)
    assert text_of(fill_from(finely(whole), "zstd")) == (text, "")
    for file in (whole[:place], bytes(changed), whole + follows):
        for blocks in (finely(file), in_memory(file)):
            assert text_of(fill_from(blocks, "zstd")) == by_frames(blocks)


@pytest.mark.parametrize("checksum", [False, True])
def test_a_file_cut_at_any_byte_is_truncated(checksum):
    """Among its blocks are a raw one, an RLE one and a compressed one."""
    pack = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=False)
    texts = b"".join(bytes([x * 7 % 256]) for x in range(90)), b"z" * 5000, b"mille e una notte " * 20
    ends = list(itertools.accumulate([len(pack.compress(text)) for text in texts], initial=0))
    whole = b"".join(map(pack.compress, texts))
    for size in range(len(whole) + 1):
        text, error = text_of(fill_from(finely(whole[:size]), "zstd"))
        assert (text, error) == by_frames(finely(whole[:size]))
        assert bool(error) == (size not in ends)


def test_no_part_of_a_damaged_step_is_given():
    """The checksum comes after text that fills a buffer several times."""
    whole = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(bytes(1 << 20)))
    whole[-1] ^= 1
    assert len(whole) < COMPRESSED_STEP
    text, error = text_of(fill_from(in_memory(bytes(whole)), "zstd"))
    assert text == b""
    assert error.startswith("damaged zstd data")


def test_a_read_that_fails_leaves_what_was_read_before():
    whole = zstandard.compress(b"".join(b"%d " % (n * n) for n in range(300_000)))

    def blocks(size):
        yield from in_memory(whole[: 10 * STEP + 5])(size)
        raise CorruptInputError("reading failed")

    text, error = text_of(fill_from(blocks, "zstd"))
    assert error == "reading failed"
    assert len(text) > 2 * STEP
    assert text == by_frames(blocks)[0]


def test_a_step_of_too_much_text_is_given_in_smaller_ones():
    """1 kB may stand for 32 MiB: no more of it lies in memory at once."""
    whole = zstandard.compress(bytes(3 * STEP_TEXT)) + zstandard.compress(b"end")
    fill, buffer, size, largest = fill_from(in_memory(whole), "zstd"), bytearray(), 0, 0
    while end := fill(buffer, 0):
        size, largest, last = size + end, max(largest, len(buffer)), bytes(buffer[end - 3 : end])
    assert (size, last) == (3 * STEP_TEXT + 3, b"end")
    assert largest <= STEP_TEXT + (5 << 20)
