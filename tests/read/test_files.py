"""Listing, recognising and decompressing inputs."""

import contextlib
import glob
import gzip
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pretok.base.errors import UsageError
from pretok.read.conversation import RecordFormat
from pretok.read.files import CorruptInputError, decompress, read_bytes, stamp, what_changed
from pretok.read.format import Piece
from pretok.read.paths import expand
from pretok.read.readers import read_piece
from pretok.read.recognise import list_inputs

LINES = b"".join(b'{"text":"riga %d"}\n' % i for i in range(5000))
SKIPPED = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
"""A skippable frame, as `pzstd` writes one before each frame."""


def compress(data: bytes, how: str, frames: int) -> bytes:
    """`data` as several zstd frames or gzip members, the same bytes at any time: names of tests are made of them."""
    step = -(-len(data) // frames) or 1
    parts = [data[i : i + step] for i in range(0, len(data), step)] or [b""]
    make = zstandard.ZstdCompressor().compress if how == "zstd" else partial(gzip.compress, mtime=0)
    return b"".join(make(part) for part in parts)


@pytest.mark.parametrize("how", ["zstd", "gzip"])
@given(data=st.binary(max_size=500), frames=st.integers(1, 4), block=st.integers(1, 64))
def test_any_frames_in_any_blocks(how, data, frames, block):
    packed = compress(data, how, frames)
    blocks = (packed[i : i + block] for i in range(0, len(packed), block))
    assert b"".join(decompress(blocks, how)) == data


@pytest.mark.parametrize("how", ["zstd", "gzip"])
@pytest.mark.parametrize("frames", [1, 3])
def test_truncation_is_told_after_everything_readable(how, frames):
    packed = compress(LINES, how, frames)
    for cut in (1, len(packed) // 2, len(packed) - 1):
        got: list[bytes] = []
        with pytest.raises(CorruptInputError, match="truncated"):
            got.extend(decompress(iter([packed[:cut]]), how))
        assert LINES.startswith(b"".join(got))
    if frames == 3:  # the whole frames before the cut are all there
        assert len(b"".join(got)) >= 2 * (len(LINES) // 3)


@pytest.mark.parametrize("zeros", [1, 600, (1 << 15) + 1, 200_000])
@pytest.mark.parametrize("block", [1 << 10, 7])
def test_gzip_padding_is_no_member(zeros, block):
    """Tape padding may be of any length, at the end or before another member; zeros in place of a file are damage."""

    def unpack(packed: bytes) -> bytes:
        return b"".join(decompress((packed[i : i + block] for i in range(0, len(packed), block)), "gzip"))

    member = gzip.compress(b"abc")
    assert unpack(member + bytes(zeros)) == b"abc"
    assert unpack(member + bytes(zeros) + member) == b"abcabc"
    with pytest.raises(CorruptInputError, match="other bytes stand behind the last frame of gzip"):
        unpack(member + bytes(zeros) + b"garbage!")
    with pytest.raises(CorruptInputError):
        unpack(bytes(zeros))


def test_long_windows(tmp_path):
    path = tmp_path / "long.zst"
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=30)
    path.write_bytes(zstandard.ZstdCompressor(compression_params=parameters).compress(LINES))
    assert b"".join(read_bytes(str(path), "zstd")) == LINES


def test_a_file_shorter_than_planned_is_told(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    assert b"".join(read_bytes(str(path), "", 3, 10)) == LINES[3:10]
    with pytest.raises(CorruptInputError, match="7 bytes shorter"):
        list(read_bytes(str(path), "", 0, len(LINES) + 7))


@pytest.mark.parametrize(
    ("name", "content", "file_format", "compression", "told"),
    [
        ("a.jsonl", LINES, "jsonl", "", False),
        ("a.jsonl.zst", compress(LINES, "zstd", 1), "jsonl", "zstd", False),
        ("a.jsonl.zst", SKIPPED + compress(LINES, "zstd", 1) + SKIPPED, "jsonl", "zstd", False),
        ("noname", SKIPPED + compress(LINES, "zstd", 1), "jsonl", "zstd", True),
        ("a.json.gz", compress(LINES, "gzip", 1), "jsonl", "gzip", False),
        ("a.jsonl", compress(LINES, "zstd", 1), "jsonl", "zstd", True),
        ("a.jsonl.zst", LINES, "jsonl", "", True),
        ("a.jsonl.gz", compress(LINES, "zstd", 1), "jsonl", "zstd", True),
        ("a.txt", b"ciao", "text", "", False),
        ("noname", LINES, "jsonl", "", False),
        ("noname", b"ciao", "text", "", False),
        ("noname", compress(LINES, "gzip", 1), "jsonl", "gzip", True),
        ("empty.jsonl", b"", "jsonl", "", True),
        ("empty.jsonl.zst", b"", "jsonl", "", True),
    ],
)
def test_formats_by_content(tmp_path, name, content, file_format, compression, told):
    (tmp_path / name).write_bytes(content)
    (file,), notices = list_inputs([str(tmp_path / name)], "auto")
    assert (file.format, file.compression, file.size) == (file_format, compression, len(content))
    assert bool(notices) == told
    if told:
        assert str(tmp_path / name) in notices[0]


def test_a_name_that_is_not_utf8_is_told_before_anything_is_read(tmp_path):
    name = os.fsdecode(b"caff\xe9.jsonl")
    (tmp_path / name).write_bytes(LINES)
    (tmp_path / "a.jsonl").write_bytes(LINES)
    for pattern in (f"{tmp_path}/*.jsonl", f"{tmp_path}/{name}"):
        with pytest.raises(
            UsageError, match=re.escape(r"caff\xe9.jsonl' is not UTF-8; rename the file")
        ) as told:
            list_inputs([pattern], "auto")
        str(told.value).encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv.gz", compress(b"text\tn\n", "gzip", 1), "is CSV; convert it"),
        ("a.json", b' [\n {"text": "a"}]', "one JSON array, not JSON Lines"),
        ("noname", b'[{"text": "a"}]', "one JSON array"),
        ("a.safetensors", b"\x08\0\0\0\0\0\0\0{}      ", "tensors"),
        ("weights.bin", b"\x08\0\0\0\0\0\0\0{}      ", "binary"),
        ("a.jsonl", b"\xfd7zXZ\0\0\4", "compressed by xz"),
        ("a.jsonl.gz", compress(random.Random(0).randbytes(900), "gzip", 1), "binary"),
        ("a.txt", "ciao".encode("utf-16"), "UTF-16; convert it"),
    ],
)
def test_what_holds_no_documents_is_refused_by_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        list_inputs([str(tmp_path / name)], "auto")
    assert str(tmp_path / name) in str(caught.value)
    assert list_inputs([str(tmp_path / name)], "text")[0][0].format == "text"  # whoever declares it means it


@pytest.mark.parametrize("content", [bytes(5000), b"ciao\n" * 9, b"PAR1" + bytes(99), SKIPPED[:3]])
@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.txt.gz", "a.parquet"])
def test_what_is_not_what_its_name_says_is_never_read_as_lines(tmp_path, name, content):
    """Nor does one such file keep the others from being read: it fails by name."""
    (tmp_path / name).write_bytes(content)
    (file,), _ = list_inputs([str(tmp_path / name)], "auto")
    with pytest.raises(CorruptInputError, match=r"damaged|truncated"):
        list(read_piece(Piece(file), 0, RecordFormat()))


def test_what_is_declared_as_lines_is_not_binary(tmp_path):
    (tmp_path / "a").write_bytes(bytes(5000))
    with pytest.raises(UsageError, match="binary"):
        list_inputs([str(tmp_path / "a")], "jsonl")
    for begins in (b"\0\n", b"\x87"):  # a damaged line, which is a reject
        (tmp_path / "a").write_bytes(begins + LINES)
        assert list_inputs([str(tmp_path / "a")], "jsonl")[0][0].format == "jsonl"


def test_a_glob_names_what_it_leaves_out(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "c.jsonl").symlink_to("c.jsonl")
    (tmp_path / "e.jsonl").mkdir()
    os.mkfifo(tmp_path / "d.jsonl")
    files, notices = list_inputs([f"{tmp_path}/*.jsonl"], "auto")
    assert [Path(file.path).name for file in files] == ["a.jsonl"]
    assert notices == [
        f"left out, a folder: {tmp_path}/e.jsonl",
        f"left out, a link that leads nowhere: {tmp_path}/b.jsonl, {tmp_path}/c.jsonl",
        f"left out, a pipe or device: {tmp_path}/d.jsonl",
    ]
    for path, what in (
        (f"{tmp_path}/b.jsonl", "a link that leads nowhere"),
        (f"{tmp_path}/[e].jsonl", "a folder"),
        ("/dev/zero", "a pipe or device"),
        (f"{tmp_path}/nothing*.jsonl", "nothing"),
    ):
        with pytest.raises(UsageError, match=what):
            list_inputs([path], "auto")


def test_one_file_by_two_paths_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(LINES)
    Path("link.jsonl").symlink_to("a.jsonl")
    os.link("a.jsonl", "hard.jsonl")
    for other in ("./a.jsonl", f"{tmp_path}/a.jsonl", "link.jsonl", "hard.jsonl"):
        with pytest.raises(UsageError, match="are the same file") as caught:
            list_inputs(["a.jsonl", other], "auto")
        assert other in str(caught.value)
    assert len(list_inputs(["a.jsonl", "a*.jsonl"], "auto")[0]) == 1


def test_a_circle_of_links_is_gone_around_once_and_a_name_with_signs_of_a_glob_is_a_name(tmp_path):
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a[1]" / "x[1].jsonl").write_bytes(LINES)
    (tmp_path / "a[1]" / "up").symlink_to("..")
    for pattern in (f"{tmp_path}/**/*.jsonl", f"{tmp_path}/a[1]/x[1].jsonl"):
        assert expand(pattern) == [f"{tmp_path}/a[1]/x[1].jsonl"]


names = st.sampled_from(["a", "b.jsonl", ".h", "x[1]", "sub"])
pieces = st.sampled_from(["*", "**", "a", "s*", "*.jsonl", ".*", "[ab]*", "?", "sub"])


@given(
    st.lists(st.lists(names, min_size=1, max_size=3), max_size=8),
    st.lists(pieces, min_size=1, max_size=3),
    st.booleans(),
)
def test_globs_match_what_the_standard_library_matches(tmp_path_factory, tree, parts, absolute):
    folder = tmp_path_factory.mktemp("glob")
    for path in tree:
        target = folder.joinpath(*path)
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.write_bytes(b"x")
    pattern = "/".join(parts)
    with contextlib.chdir(folder):
        pattern = f"{folder}/{pattern}" if absolute else pattern
        found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - the one that is compared with
        expected = sorted({p for p in found if p and not p.endswith("/")})
        if parts[-1] == "**" or parts[-2:] == ["**", "*"]:
            expected = [p for p in expected if Path(p).is_file()]  # folders are gone into
        try:
            assert expand(pattern) == expected
        except UsageError:
            assert expected == []


def test_a_user_without_permission_is_told_the_name(tmp_path):
    """Root may read everything: the listing then runs as another user."""
    data = Path(tempfile.mkdtemp(dir="/tmp"))  # every folder above pytest's own is closed to others
    try:
        data.chmod(0o755)
        (data / "locked").mkdir(mode=0o700 if os.getuid() == 0 else 0)
        (data / "a.jsonl").write_bytes(LINES)
        (data / "secret.jsonl").write_bytes(LINES)
        (data / "secret.jsonl").chmod(0o600 if os.getuid() == 0 else 0)
        code = (
            "import os, sys; from pretok.read.recognise import list_inputs\n"
            "if os.getuid() == 0: os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
            "for p in sys.argv[1:]:\n"
            "  try:\n"
            "    files, told = list_inputs([p], 'auto')\n"
            "    print(*[(f.format, f.identity) for f in files if f.format == 'unreadable'], told)\n"
            "  except Exception as e: print(type(e).__name__, e)\n"
        )
        patterns = [
            f"{data}/*.jsonl",
            f"{data}/**/*.jsonl",
            f"{data}/*/deep/*.jsonl",
        ]
        done = subprocess.run(
            [sys.executable, "-c", code, *patterns], capture_output=True, text=True, check=True
        )
    finally:
        shutil.rmtree(data)
    first, second, third = done.stdout.splitlines()
    assert first.startswith("('unreadable', 'Permission denied')")
    assert f"cannot be read, Permission denied: {data}/secret.jsonl" in first
    for line in (second, third):
        assert line.startswith(f"UsageError folder {data}/locked cannot be listed: Permission denied")


CHANGES = {
    "shrunk": lambda data: data[:-20],
    "grown": lambda data: data + data[:20],
    "begins otherwise": lambda data: b" " + data[1:],
    "in the middle": lambda data: data[: len(data) // 2] + b" " + data[len(data) // 2 + 1 :],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_is_noticed(tmp_path, change):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES * 10)
    (file,), _ = list_inputs([str(path)], "auto")
    before = stamp(file)
    assert what_changed(file, before) == ""
    os.utime(path, ns=(0, 0))
    assert what_changed(file, before) == "changed since it was planned: it was written to"
    path.write_bytes(CHANGES[change](LINES * 10))
    assert "changed" in what_changed(file, before)
    if change == "in the middle":  # the documented limit: before it is read, nothing tells it
        assert what_changed(file, stamp(file)) == ""
    else:
        assert "changed since it was planned" in what_changed(file, stamp(file))
    path.unlink()
    assert "changed since it was planned" in what_changed(file, before)


def test_urls_go_through_fsspec(tmp_path):
    import fsspec

    with fsspec.open("memory://corpus/a.jsonl", "wb") as file:
        file.write(LINES)
    (found,), _ = list_inputs(["memory://corpus/*.jsonl"], "auto")
    assert found.path == "memory:///corpus/a.jsonl"
    assert b"".join(read_bytes(found.path, "")) == LINES
