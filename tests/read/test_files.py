# ruff: noqa: E501 - a row is a line
"""Listing, recognising and decompressing inputs, and noticing that they changed."""

import base64
import contextlib
import glob
import gzip
import os
import random
import re
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encrypting
import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st
from reading import inputs_of, read
from support import as_nobody, open_to_all

from pretok.base.errors import UsageError
from pretok.read.files import CorruptInputError, decompress, read_bytes, stamp, what_changed
from pretok.read.paths import expand, file_key
from pretok.read.recognise import list_inputs
from pretok.read.record_format import RecordFormat

WARC = b"WARC/1.0\r\nContent-Length: 0\r\nWARC-Type: "
LINES = b"".join(b'{"text":"riga %d"}\n' % i for i in range(5000))
TAR = b"a.jsonl".ljust(257, b"\0") + b"ustar\x0000" + bytes(248) + LINES
SKIPPED = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
"""A skippable frame, as `pzstd` writes one before each frame."""


def compress(data: bytes, how: str) -> bytes:
    """The same bytes at any time: names of tests are made of them."""
    return zstandard.ZstdCompressor().compress(data) if how == "zstd" else gzip.compress(data, mtime=0)


def unpacked(packed: bytes, how: str, block: int) -> bytes:
    return b"".join(decompress((packed[i : i + block] for i in range(0, len(packed), block)), how))


@pytest.mark.parametrize("how", ["zstd", "gzip"])
@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=4),
    st.integers(1, 64),
    st.floats(0, 1, exclude_max=True),
)
def test_any_frames_in_any_blocks_and_truncation_after_all_that_is_readable(how, parts, block, cut):
    frames = [compress(part, how) for part in parts]
    packed, borders = b"".join(frames), [*accumulate(map(len, frames), initial=0)]
    assert unpacked(packed, how, block) == b"".join(parts)
    size = int(cut * len(packed))
    got: list[bytes] = []
    with contextlib.nullcontext() if size in borders else pytest.raises(CorruptInputError, match="truncated"):
        got.extend(decompress(iter([packed[:size]]), how))
    whole = sum(border <= size for border in borders[1:])
    assert b"".join(got).startswith(b"".join(parts[:whole]))
    assert b"".join(parts).startswith(b"".join(got))


@pytest.mark.parametrize("zeros", [1, (1 << 15) + 1, 200_000])
@pytest.mark.parametrize("block", [1 << 10, 7])
def test_gzip_padding_is_no_member(zeros, block):
    """Tape padding may be of any length, at the end or before another member; zeros in place of a file are damage."""
    member = gzip.compress(b"abc")
    assert unpacked(member + bytes(zeros), "gzip", block) == b"abc"
    assert unpacked(member + bytes(zeros) + member, "gzip", block) == b"abcabc"
    with pytest.raises(CorruptInputError, match="other bytes follow the last frame of gzip"):
        unpacked(member + bytes(zeros) + b"garbage!", "gzip", block)
    with pytest.raises(CorruptInputError):
        unpacked(bytes(zeros), "gzip", block)


@pytest.mark.parametrize("how", ["zstd", "gzip"])
@pytest.mark.parametrize("stray", [b"\n", b"\n\n\n", b"garbage!"])
@pytest.mark.parametrize("block", [1, 2, 1 << 10])
def test_a_stray_byte_after_the_last_frame_is_no_truncated_frame(how, stray, block):
    with pytest.raises(CorruptInputError, match=f"other bytes follow the last frame of {how}"):
        unpacked(compress(b"abc", how) + stray, how, block)


def test_long_windows_and_a_file_shorter_than_planned(tmp_path):
    packed, plain = tmp_path / "long.zst", tmp_path / "a.jsonl"
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=30)
    packed.write_bytes(zstandard.ZstdCompressor(compression_params=parameters).compress(LINES))
    plain.write_bytes(LINES)
    assert b"".join(read_bytes(str(packed), "zstd")) == LINES
    assert b"".join(read_bytes(str(plain), "", 3, 10)) == LINES[3:10]
    with pytest.raises(CorruptInputError, match="7 bytes shorter"):
        list(read_bytes(str(plain), "", 0, len(LINES) + 7))


@pytest.mark.parametrize(
    ("name", "content", "file_format", "compression", "is_noticed"),
    [
        ("a.jsonl.zst", compress(LINES, "zstd"), "jsonl", "zstd", False),
        ("a.jsonl.zst", SKIPPED + compress(LINES, "zstd") + SKIPPED, "jsonl", "zstd", False),
        ("a.jsonl", compress(LINES, "zstd"), "jsonl", "zstd", True),
        ("a.jsonl.zst", LINES, "jsonl", "", True),
        ("a.jsonl.gz", compress(LINES, "zstd"), "jsonl", "zstd", True),
        ("noname", LINES, "jsonl", "", False),
        ("a.md", b"ciao", "text", "", False),
        ("a.txt", b"<p>ciao</p>\0\n", "text", "", False),
        ("a.wet", WARC + b"conversion\r\n", "wet", "", False),
        ("a.warc.wet.gz", compress(WARC + b"warcinfo\r\n", "gzip") + compress(WARC + b"conversion\r\n", "gzip"), "wet", "gzip", False),
        ("a.jsonl", WARC + b"conversion\r\n", "wet", "", True),
        ("two.jsonl.zst", compress(b"{\0\n" + LINES[:14], "zstd") + compress(LINES, "zstd"), "jsonl", "zstd", False),
        ("hole.jsonl", LINES[:9000] + bytes(40_000) + LINES[9000:], "jsonl", "", False),
        ("noname", b"", "text", "", True),
        ("noname", compress(LINES, "gzip"), "jsonl", "gzip", True),
        ("empty.jsonl.zst", b"", "jsonl", "", True),
    ],
)  # fmt: skip
def test_formats_by_content(tmp_path, name, content, file_format, compression, is_noticed):
    (tmp_path / name).write_bytes(content)
    (file,), notices, _ = list_inputs([str(tmp_path / name)], "auto")
    assert (file.format, file.compression, file.size) == (file_format, compression, len(content))
    assert [str(tmp_path / name) in notice for notice in notices] == [True] * is_noticed


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv.gz", compress(b"text\tn\n", "gzip"), "CSV; convert it"),
        ("noname", b'[{"text": "a"}]', "one JSON array"),
        ("noname", b"ciao", 'of no known format: neither JSON Lines, Parquet, Arrow nor WET; if it is plain text, name it .txt'),
        ("a.py.gz", compress(b"ciao", "gzip"), "of no known format"),
        ("a.safetensors", b"\x08\0\0\0\0\0\0\0{}      ", "tensors"),
        ("weights.bin", b"\x08\0\0\0\0\0\0\0{}      ", "binary"),
        ("a.jsonl.gz", compress(random.Random(0).randbytes(900), "gzip"), "binary"),
        ("a.txt", random.Random(0).randbytes(900), "binary"),
        ("a.jsonl", bytes(900), "binary"),
        ("a.txt", "ciao".encode("utf-16"), "UTF-16; convert it"),
        ("a.txt", "ciao".encode("utf-32"), "UTF-32; convert it: iconv -f UTF-32 -t UTF-8"),
        ("a.jsonl", b"\0\0\xfe\xff" + "ciao".encode("utf-32-be"), "UTF-32; convert it"),
        ("a.warc.gz", compress(WARC + b"warcinfo\r\n", "gzip") + compress(WARC + b"response\r\n", "gzip"), "WARC of other records than text (WET); extract the text first"),
        ("a.txt", WARC + b"metadata\r\n", "WARC of other records"),
        ("a.xml", b'<?xml version="1.0"?><a/>', "XML; extract the text first"),
        ("a.jsonl", b"\n<!DOCTYPE html><p>404", "an HTML page; extract the text first"),
        ("a.parquet", b"<html><p>404", "an HTML page"),
        ("wiki", b'<mediawiki xmlns="x">', "XML"),
        ("a.tar", TAR, "a tar archive; unpack it"),
        ("a.jsonl.gz", compress(TAR, "gzip"), "a tar archive; unpack it"),
        ("a.jsonl.lz4", b"\x04\x22\x4d\x18" + LINES, "compressed by lz4; compress it by zstd or gzip"),
        ("a.jsonl.br", b"\x1b\x0e\0\xf8%", "compressed by brotli; compress it by zstd or gzip"),
        ("a.jsonl.gz", compress(compress(LINES, "gzip"), "gzip"), "compressed twice, by gzip and then by gzip; decompress it once"),
        ("a.jsonl.gz", compress(compress(LINES, "zstd"), "gzip"), "compressed twice, by zstd and then by gzip"),
        ("a.msgpack.gz", compress(b"\x81\xa4text\xa4ciao" * 99, "gzip"), "MessagePack; convert it to Parquet or JSON Lines"),
        ("a.pdf", b"%PDF-1.7", "PDF; extract the text first"),
    ],
)  # fmt: skip
def test_what_holds_no_documents_is_refused_by_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=rf"{re.escape(str(tmp_path / name))} is .*?{re.escape(message)}"):
        inputs_of(tmp_path / name)
    (file,) = inputs_of(tmp_path / name, declared="text")  # whoever declares it means it
    assert file.format == "text"


@pytest.mark.parametrize("declared", ["auto", "text", "jsonl"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.txt", "a.csv", "noname"])
def test_pointers_of_git_lfs_are_refused_under_every_name(tmp_path, name, declared):
    (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(UsageError, match="a Git LFS pointer in place of the file; run git lfs pull"):
        inputs_of(tmp_path / name, declared=declared)


TABLE = pa.table({"text": ["uno"]})


@pytest.mark.parametrize(
    ("name", "how", "says"),
    [
        ("a.parquet.zst", "zstd", "is Parquet compressed by zstd; decompress it"),
        ("a.arrow.gz", "gzip", "is Arrow compressed by gzip; decompress it"),
        ("noname", "gzip", "is Arrow compressed by gzip; decompress it"),
        ("a.parquet", "encryption", "is encrypted Parquet; decrypt it"),
    ],
)
def test_tables_are_read_as_they_are(tmp_path, name, how, says):
    table, secret = pa.BufferOutputStream(), encryption(how == "encryption")
    is_arrow = "arrow" in name or name == "noname"
    with (
        pa.ipc.new_file(table, TABLE.schema)
        if is_arrow
        else pq.ParquetWriter(table, TABLE.schema, encryption_properties=secret)
    ) as writer:
        writer.write_table(TABLE)
    data = table.getvalue().to_pybytes()
    (tmp_path / name).write_bytes(data if how == "encryption" else compress(data, how))
    with pytest.raises(UsageError, match=rf"{re.escape(str(tmp_path / name))} {says}"):
        inputs_of(tmp_path / name)


def encryption(wanted, plaintext_footer=False):
    """Properties of pyarrow for an encrypted file, None if it is not wanted."""
    if not wanted:
        return None

    class Keys(encrypting.KmsClient):
        def __init__(self, _):
            super().__init__()

        def wrap_key(self, key, _):
            return base64.b64encode(key)

    how = encrypting.EncryptionConfiguration(
        "k", column_keys={"k": ["text"]}, plaintext_footer=plaintext_footer
    )
    return encrypting.CryptoFactory(Keys).file_encryption_properties(encrypting.KmsConnectionConfig(), how)


def test_an_encrypted_column_is_no_damage(tmp_path):
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=encryption(True, True)) as writer:
        writer.write_table(TABLE)
    assert read(path, RecordFormat()).error.startswith("encrypted Parquet: Cannot decrypt ColumnMetadata")


@pytest.mark.parametrize(("begins", "binary"), [(bytes(5000), True), (b"\0\n", False), (b"\x87", False)])
def test_what_is_declared_as_lines_is_not_binary(tmp_path, begins, binary):
    """But a damaged line is a reject."""
    (tmp_path / "a").write_bytes(begins + LINES * (not binary))
    with pytest.raises(UsageError, match="binary") if binary else contextlib.nullcontext():
        assert inputs_of(tmp_path / "a", declared="jsonl")[0].format == "jsonl"


def test_a_glob_names_what_it_leaves_out(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "c.jsonl").symlink_to("c.jsonl")
    (tmp_path / "e.jsonl").mkdir()
    os.mkfifo(tmp_path / "d.jsonl")
    files, notices, _ = list_inputs([f"{tmp_path}/*.jsonl"], "auto")
    assert [Path(file.path).name for file in files] == ["a.jsonl"]
    assert notices == [
        f"left out, a folder: {tmp_path}/e.jsonl",
        f"left out, a link that leads nowhere: {tmp_path}/b.jsonl, {tmp_path}/c.jsonl",
        f"left out, a pipe or device: {tmp_path}/d.jsonl",
    ]
    for name, what in (
        ("b.jsonl", "a link that leads nowhere"),
        ("[e].jsonl", "folders alone"),
        ("no*.jsonl", "no input"),
    ):
        with pytest.raises(UsageError, match=what):
            inputs_of(tmp_path / name)


def test_a_folder_stands_for_the_files_below_it(tmp_path):
    """By name order, with what other programs leave there passed over, and what is not read said once."""
    (tmp_path / "in" / "b" / "deep").mkdir(parents=True)
    names = ["a.jsonl", "b/c.jsonl.zst", "b/deep/d.json", "e.parquet"]
    table = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["uno"]}), table)
    data = {".zst": zstandard.compress(LINES), ".parquet": table.getvalue().to_pybytes()}
    passed_over = ["_SUCCESS", "_metadata", ".hidden.jsonl", "b/_temporary.jsonl"]
    for name in (*names, *passed_over, "x.csv", "y.csv", "b/z.pdf", "README"):
        (tmp_path / "in" / name).write_bytes(data.get(Path(name).suffix, LINES))
    files, notices, _ = list_inputs([f"{tmp_path}/in"], "auto")
    assert [file.path for file in files] == [f"{tmp_path}/in/{name}" for name in names]
    what = "left out, as their endings are of no format that is read"
    assert notices == [f"{what}: .csv (2), .pdf (1), no ending (1)"]
    left = ["x.csv", "y*", "README", "*.parquet"]
    (only,) = list_inputs([f"{tmp_path}/in/*"], "jsonl", left)[0]
    assert only.path == f"{tmp_path}/in/a.jsonl"
    (only,) = list_inputs([f"{tmp_path}/in"], "parquet")[0]
    assert only.path.endswith("e.parquet")
    says = r"in/\*/deep matches folders alone; name .*/in itself, or '.*/in/\*\*/\*\.jsonl'"
    with pytest.raises(UsageError, match=says):
        list_inputs([f"{tmp_path}/in/*/deep"], "auto")
    with pytest.raises(UsageError, match=r"in/b: left out by .* left out, as their endings .*: \.pdf \(1\)"):
        list_inputs([f"{tmp_path}/in/b"], "auto", ["c.jsonl.zst", "deep/*"])


@pytest.mark.parametrize(
    ("pattern", "out"),
    [
        ("**/part-0731*", ["x/part-0731.jsonl", "x/y/part-07312.jsonl"]),
        ("part-0731.jsonl", ["x/part-0731.jsonl"]),
        ("x/*", ["x/part-0731.jsonl", "x/part-1.jsonl"]),
        ("x/**", ["x/part-0731.jsonl", "x/part-1.jsonl", "x/y/part-07312.jsonl"]),
        ("part-?.jsonl", ["x/part-1.jsonl"]),
        ("part-0731", []),
    ],
)
def test_files_are_excluded_by_globs(tmp_path, pattern, out):
    names = ["x/part-0731.jsonl", "x/part-1.jsonl", "x/y/part-07312.jsonl", "z.jsonl"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(LINES)
    files, notices, _ = list_inputs([str(tmp_path)], "auto", [pattern])
    assert [file.path for file in files] == [str(tmp_path / name) for name in names if name not in out]
    left = ", ".join(str(tmp_path / name) for name in out)
    unmatched = f"exclude = {pattern!r} matches no file: {tmp_path}"
    assert notices == [f"left out by exclude = {pattern!r}: {left}" if out else unmatched]


def test_names_of_files(tmp_path, monkeypatch):
    """One file by two paths, a name that is not UTF-8, a circle of links, a name with the signs of a glob."""
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(LINES)
    Path("link.jsonl").symlink_to("a.jsonl")
    os.link("a.jsonl", "hard.jsonl")
    whole = f"{tmp_path}/a.jsonl"
    for other in ("./a.jsonl", whole, "link.jsonl", "hard.jsonl", f"file://{whole}"):
        with pytest.raises(UsageError, match=rf"{re.escape(other)}.* the same file"):
            inputs_of("a.jsonl", other)
    assert len(inputs_of("a.jsonl", "a*.jsonl")) == 1
    Path("a[1]").mkdir()
    Path("a[1]/x[1].jsonl").write_bytes(LINES)
    Path("a[1]/up").symlink_to("..")
    for pattern in ("a[[]1]/**/*.jsonl", "a[1]/x[1].jsonl"):
        assert "a[1]/x[1].jsonl" in expand(pattern)
        assert len(expand(pattern)) == 1
    Path(name := os.fsdecode(b"caff\xe9.jsonl")).write_bytes(LINES)
    for pattern in ("*.jsonl", name):
        with pytest.raises(UsageError, match=r"caff\\xe9.jsonl' is not UTF-8; rename the file") as error:
            inputs_of(pattern)
        str(error.value).encode()
    Path("one\nerror: two.jsonl").write_bytes(LINES)
    with pytest.raises(UsageError, match=r"'one\\nerror: two.jsonl' has more than one line; rename the file"):
        inputs_of("*two.jsonl")


@pytest.mark.parametrize(
    ("protocol", "one", "other", "same"),
    [
        ("https", "HOST/a", "host:443/b/../a", True),
        ("http", "u:p@host", "host:80/", True),
        ("http", "host/a?n=1", "host/a?n=2", False),
        ("http", "host:8080/a", "host/a", False),
        ("http", "host/a", "host/A", False),
        ("far", "bucket/a", "bucket/b/../a", False),
        ("memory", "a", "/a", True),
    ],
)
def test_spellings_of_a_url(monkeypatch, protocol, one, other, same):
    """Dots count in the keys of objects, not in the paths of a web server."""
    if protocol != "memory":  # `fsspec` leaves the others as they are
        as_it_is = SimpleNamespace(unstrip_protocol=lambda path: path)
        monkeypatch.setattr("pretok.read.paths.server_of", lambda url: (as_it_is, url))
    keys = [file_key(f"{protocol}://{url}", None) for url in (one, other)]
    assert (keys[0] == keys[1]) == same


def test_a_file_system_without_inodes(tmp_path):
    path, link = tmp_path / "a", tmp_path / "b"
    path.touch()
    link.symlink_to(path)
    without = os.stat_result((*path.stat()[:1], 0, *path.stat()[2:]))
    assert file_key(str(link), without) == file_key(str(path), without) == str(path)


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
        assume(not Path(pattern).is_dir())  # which stands for all files below it
        found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - the one that is compared with
        expected = sorted({p for p in found if p and not p.endswith("/")})
        if parts[-1] == "**" or parts[-2:] == ["**", "*"]:
            expected = [p for p in expected if Path(p).is_file()]  # folders are gone into
        try:
            assert expand(pattern) == expected
        except UsageError:
            assert expected == []


LIST = """
for pattern in sys.argv[1:]:
    try:
        files, notices, _ = list_inputs([pattern], "auto")
        print(*[(f.format, f.identity) for f in files if f.format == "unreadable"], notices)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_file_without_permission_is_named():
    root = os.getuid() == 0
    with open_to_all() as data:
        (data / "locked").mkdir(mode=0o700 if root else 0)
        (data / "a.jsonl").write_bytes(LINES)
        (data / "secret.jsonl").write_bytes(LINES)
        (data / "secret.jsonl").chmod(0o600 if root else 0)
        names = ("*.jsonl", "**/*.jsonl", "*/deep/*.jsonl", "locked/a.jsonl")
        setup = "import sys; from pretok.read.recognise import list_inputs"
        told = as_nobody(setup, LIST, *(data / name for name in names))
    first, *others = told.splitlines()
    assert first.startswith("('unreadable', 'Permission denied')")
    assert f"cannot be read, Permission denied: {data}/secret.jsonl" in first
    assert len(others) == 3
    assert f"UsageError {data}/locked/a.jsonl is in a folder that may not be entered" in others.pop()
    refused = f"UsageError folder {data}/locked cannot be listed: Permission denied"
    assert all(refused in line for line in others)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:-20], "it had"),
        (lambda data: data + data[:20], "it had"),
        (lambda data: b" " + data[1:], "it begins or ends otherwise"),
        (lambda data: data[: len(data) // 2] + b" " + data[len(data) // 2 + 1 :], "it was written to"),
    ],
)
def test_a_file_that_changes_is_noticed(tmp_path, change, says):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES * 10)
    (file,) = inputs_of(path)
    before = stamp(file)
    assert what_changed(file, before) == ""
    path.write_bytes(change(LINES * 10))
    os.utime(path, ns=(0, 0))
    assert says in what_changed(file, before)
    # The documented limit: nothing tells of a change in the middle that came before `stamp`.
    assert (what_changed(file, stamp(file)) == "") == (says == "it was written to")
    path.unlink()
    assert "changed since it was planned" in what_changed(file, before)
