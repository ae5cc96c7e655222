# ruff: noqa: E501 - a row is a line
"""Every defect of every input format and what becomes of it: the lists of docs/inputs.md, row by row.

A row is tokenized by the command, and its exit code, its documents, its rejects and its message are as the row says;
then all that the shards say of themselves is added up. docs/inputs.md shows the rows.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from chatting import write_tokenizer
from reading import warc_record, wet
from support import ROOT

import pretok
from pretok.cli import run_command
from pretok.read.rejects import REASONS
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import Manifest, has_manifest, load_manifest
from pretok.shards.unfinished import unfinished

PAGE = ROOT / "docs" / "inputs.md"
MARK = "<!-- The rest of this page is made by tests/test_inputs.py. -->\n"
Make = bytes | Callable[[Path], object]
Rejects = dict[int, str]
BESIDE = "altrove"


LINES, PARQUET, WET, TEXT, SAVED, OTHER = "JSON Lines", "Parquet", "WET", "text", "`datasets`", ""
CHATS, FIELDS = "conversations", "`template`"
NAMES = {PARQUET: "a.parquet", TEXT: "a.txt", SAVED: "a", OTHER: "a"}
"""Format -> name of the file; a.jsonl for the others."""
TWO = ["uno", "tre"]


@dataclass(frozen=True)
class Row:
    """A defect."""

    format: str
    what: str
    """What the page calls it."""
    data: Make
    """The file, or a function that writes it."""
    texts: Sequence[str] = ()
    """The documents that result."""
    rejects: Rejects | None = None
    """Line or row -> reason."""
    says: str = ""
    """The message, in the rejects or on standard error."""
    code: int = 0
    note: str = ""
    """Of accepted inputs, what the page says."""
    settings: str = ""
    """Lines of the source's table."""
    alone: bool = False
    """Whether there is no good file next to it."""
    name: str = ""
    """Of the file, if not that of NAMES."""

    @property
    def file(self) -> str:
        """The path of the file."""
        return f"in/{self.name or NAMES.get(self.format, 'a.jsonl')}"

    @property
    def damages(self) -> bool:
        """Whether the file is named as one that could not be read to its end."""
        return self.code == 3 and not self.rejects and not self.alone


# JSON Lines ------------------------------------------------------------------------------------------------------------


def lines(*between: bytes) -> bytes:
    return b"".join(line + b"\n" for line in (b'{"text": "uno"}', *between, b'{"text": "tre"}'))


def bad_line(what: str, line: bytes, reason: str, says: str = "", **more: Any) -> Row:
    return Row(LINES, what, lines(line), TWO, {2: reason}, says, **more)


def good_line(what: str, line: bytes, note: str, says: str = "", **more: Any) -> Row:
    return Row(LINES, what, lines(line), ["uno", "due", "tre"], None, says, note=note, **more)


KEEP = 'keep = ["n:integer"]'
DEEP = b'{"text": "due", "o": ' + b"[" * 5000 + b"]" * 5000 + b"}"
BAD_LINES = [
    bad_line("a truncated line", b'{"text": "du', "malformed_json", "Unterminated string starting at character 10"),
    bad_line("more than 1,000 nested lists or objects", DEEP, "malformed_json", "nested more than 1,000 deep"),
    bad_line("a line that is not an object", b'"due"', "not_an_object", '"due"'),
    bad_line("no such field", b'{"id": 2, "meta": {"body": "due"}}', "missing_field", "there is id, meta.body"),
    bad_line("the field is null", b'{"text": null}', "null_text", '{"text": null}'),
    bad_line("the field is not a string", b'{"text": ["due"]}', "text_not_a_string", '{"text": ["due"]}'),
    bad_line("the field is empty", b'{"text": ""}', "empty_text"),
    bad_line("text that is not UTF-8", b'{"text": "\xff"}', "invalid_utf8", "byte 0xff at 0: invalid start byte; convert the file, from Latin-1 by iconv"),
    bad_line("half a surrogate pair", b'{"text": "\\ud800"}', "lone_surrogate", '{"text": "\\ud800"}'),
    bad_line("16 MiB or more of letters, digits or spaces in a row (at some places 8 MiB)", b'{"text": "' + b"x" * (17 << 20) + b'"}', "unencodable", "8,388,608 bytes or more of letters, digits, spaces or other characters in a row"),
]  # fmt: skip
LIMITED = [
    bad_line("a text longer than `max_document`", b'{"text": "' + b"x" * 101 + b'"}', "too_long", "more than 100 bytes", settings="max_document = 100"),
]  # fmt: skip
GOOD_LINES = [
    Row(LINES, "a blank line", lines(b"", b" \t\r"), TWO, note="not a record"),
    good_line("a kept value of another type", b'{"text": "due", "n": 1e30}', "becomes null; the manifest counts it", "1 value of n of another type, null in the ledger", settings=KEEP),
    good_line("the same key twice", b'{"text": "uno", "text": "due"}', "the last one counts"),
    good_line("invalid UTF-8 in a field that is not kept", b'{"text": "due", "o": "\xff\\ud800"}', "ignored"),
]  # fmt: skip
PRETTY = b'{\n "text": "uno"\n}\n'
FILES_OF_LINES = [
    Row(LINES, "a BOM at the beginning", b"\xef\xbb\xbf" + lines(), TWO, note="removed"),
    Row(LINES, "the file is cut where a line ends", lines()[:16], ["uno"], note="not detected: compare the counts with the source"),
    Row(LINES, "one object over several lines", PRETTY, says="none of its records was accepted; record 1: malformed_json (Expecting property name enclosed in double quotes at character 2)", code=3),
    Row(LINES, "line ends of CR alone", lines().replace(b"\n", b"\r"), says="none of its records was accepted; record 1: malformed_json (Extra data at character ", code=3),
    Row(LINES, "an HTML page under another name", b"404<br>\n" * 9, says="none of its records was accepted; record 1: malformed_json", code=3),
    Row(LINES, "no file has the field", b'{"body": "uno"}\n', says="no field 'text' in in/a.jsonl; text fields: body; choose one with --field", code=2, alone=True),
    Row(LINES, "no such field in one file of several", b'{"body": "uno"}\n', says="none of its records was accepted; record 1: missing_field (there is body)", code=3),
    Row(LINES, "an empty file", b"", says="empty: in/a.jsonl", note="a notice names the file"),
    Row(LINES, "one array", b'[{"text": "uno"}]\n', says="in/a.jsonl is one JSON array, not JSON Lines; write an object a line, as jq -c '.[]' does", code=2),
    Row(LINES, "conversations, read as text", b'{"messages": []}\n', says="in/a.jsonl holds conversations: write messages = 'messages' in the table of the source", code=2, alone=True),
]  # fmt: skip

# gzip and zstd ---------------------------------------------------------------------------------------------------------

NUMBERED = [f"documento numero {n}" for n in range(80)]


def pack(kind: str, data: bytes) -> bytes:
    if kind == "zst":
        return zstandard.ZstdCompressor(write_checksum=True).compress(data)
    return gzip.compress(data, mtime=0)


def numbered(start: int, stop: int) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in NUMBERED[start:stop])


def flip(data: bytes, at: int) -> bytes:
    return bytes(byte ^ 0x10 if n == at % len(data) else byte for n, byte in enumerate(data))


def of_compression(kind: str) -> Iterator[Row]:
    name, file = {"gz": "gzip", "zst": "zstd"}[kind], f"a.jsonl.{kind}"
    first, second = (pack(kind, numbered(start, start + 40)) for start in (0, 40))
    whole, half = first + second, NUMBERED[:40]
    flipped = "data check" if kind == "gz" else "checksum"
    for what, data, texts, says, code, note in (
        ("a truncated frame", whole[:-9], NUMBERED if kind == "gz" else half, f"the {name} stream ends in the middle of a frame: the file is truncated", 3, ""),
        ("cut where a frame ends", first, half, "", 0, "not detected"),
        ("a wrong checksum", flip(whole, -6 if kind == "gz" else -2), half, flipped, 3, ""),
        ("other bytes after the last frame", whole + b"garbage", NUMBERED, f"other bytes follow the last frame of {name}", 3, ""),
        ("uncompressed JSON Lines", numbered(0, 2), NUMBERED[:2], f"read as jsonl, which is not what its name says: in/{file}", 0, "read"),
        ("neither compressed nor JSON Lines", b"what is this", (), f"damaged {name} data: ", 3, ""),
    ):  # fmt: skip
        yield Row("compressed", f"{what} (`.{kind}`)", data, texts, None, says, code, note, name=file)


DICTIONARY = zstandard.train_dictionary(512, [text.encode() for text in NUMBERED] * 9)
OF_ZSTD = [
    Row("compressed", "compressed with a dictionary (`.zst`)", zstandard.ZstdCompressor(dict_data=DICTIONARY).compress(numbered(0, 9)), says="damaged zstd data: zstd decompressor error: Dictionary mismatch", code=3, name="a.jsonl.zst"),
    Row("compressed", "twice", gzip.compress(gzip.compress(numbered(0, 9))), says="in/a.jsonl.gz is compressed twice, by gzip and then by gzip; decompress it once", code=2, name="a.jsonl.gz"),
    Row("compressed", "xz, bzip2, lz4 or brotli", b"\xfd7zXZ\0\0", says="in/a.xz is compressed by xz; compress it by zstd or gzip", code=2, name="a.xz"),
]  # fmt: skip

# Parquet ---------------------------------------------------------------------------------------------------------------

DAMAGED = "damaged Parquet: "


def table(columns: Any, **options: Any) -> bytes:
    data = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), data, **options)
    return data.getvalue()


def texts(values: Any, kind: pa.DataType | None = None, **options: Any) -> bytes:
    return table({"text": pa.array(values, kind)}, **options)


def groups(**options: Any) -> tuple[bytes, Any]:
    """Three row groups of ten; and the text column of the second."""
    data = texts(NUMBERED[:30], row_group_size=10, **options)
    return data, pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1).column(0)


def over(data: bytes, at: int, put: bytes) -> bytes:
    return data[:at] + put + data[at + len(put) :]


def damaged_group() -> bytes:
    data, column = groups()
    return over(data, column.dictionary_page_offset, b"\xff" * 8)


def changed_value(checksums: bool) -> bytes:
    data, _ = groups(compression="none", use_dictionary=False, write_page_checksum=checksums)
    return over(data, data.index(b"documento numero 15"), b"D")


UNO = texts(["uno", "tre"])
parquet = partial(Row, PARQUET)
OF_PARQUET = [
    parquet("a null", texts(["uno", None, "tre"]), TWO, {2: "null_text"}),
    parquet("a column of nulls without a type", table({"text": pa.nulls(1)}), [], {1: "null_text"}),
    parquet("no file has the column", table({"body": ["uno"]}), says="no field 'text' in in/a.parquet; text fields: body; choose one with --field", code=2, alone=True),
    parquet("no such column in one file of several", table({"body": ["uno"]}), says="no column 'text'; the columns are body", code=3),
    parquet("the column has another type", texts([1, 2]), says="the text column has type int64, not string or binary", code=3),
    parquet("a kept value of another type", table({"text": TWO, "n": ["x", None]}), TWO, None, "1 value of n of another type, null in the ledger", note="becomes null; the manifest counts it", settings=KEEP),
    parquet("a truncated footer", UNO[:-9], says=f"{DAMAGED}Parquet magic bytes not found in footer", code=3),
    parquet("a damaged row group", damaged_group(), NUMBERED[:10], says=f"{DAMAGED}Couldn't deserialize thrift", code=3),
    parquet("a changed byte in a page with a checksum", changed_value(True), NUMBERED[:10], says=f"{DAMAGED}could not verify page integrity, CRC checksum verification failed", code=3),
    parquet("a changed byte in a page without a checksum", changed_value(False), [text.replace("d", "D", n == 15) for n, text in enumerate(NUMBERED[:30])], note="not detected"),
    parquet("a file with another ending", UNO, TWO, says="read as parquet, which is not what its name says: in/a.jsonl", note="read", name="a.jsonl"),
]  # fmt: skip

# WET -------------------------------------------------------------------------------------------------------------------

CRAWLED = wet(["uno", "tre"])
KEEP_HEADERS = 'keep = ["WARC-Target-URI", "WARC-Date", "uuid=WARC-Record-ID"]'
of_wet = partial(Row, WET, name="a.warc.wet.gz", settings=KEEP_HEADERS)
OF_WET = [
    of_wet("a text that is not UTF-8", gzip.compress(CRAWLED.replace(b"tre", b"tr\xe8"), mtime=0), ["uno"], {2: "invalid_utf8"}),
    of_wet("an empty text", wet(["uno", "", "tre"], gzip.compress), TWO, {2: "empty_text"}),
    of_wet("a record with a wrong length", CRAWLED.replace(b"tre", b"trenta"), says="damaged WET: record 3 is longer or shorter than its Content-Length", code=3, name="a.wet"),
    of_wet("a truncated frame", wet(TWO, gzip.compress)[:-20], says="the gzip stream ends in the middle of a frame", code=3),
    of_wet("a record of another type than `conversion`", CRAWLED + warc_record("metadata", b"due"), TWO, note="not a document", name="a.wet"),
]  # fmt: skip

# Plain text ------------------------------------------------------------------------------------------------------------

text = partial(Row, TEXT)
PIPE = 'separator = "|"'
OF_TEXT = [
    text("a BOM at the beginning, and a separator", b"\xef\xbb\xbfuno|tre", TWO, note="removed", settings=PIPE, alone=True),
    text("not UTF-8", "perché".encode("latin-1"), says="none of its records was accepted; record 1: invalid_utf8 (byte 0xe9 at 5: unexpected end of data; convert the file, from Latin-1 by iconv", code=3),
    text("nothing between two separators", b"uno||tre|", TWO, {2: "empty_text"}, settings=PIPE, alone=True),
    text("a NUL", b"u\0no", ["u\0no"], note="kept"),
    text('a line of text, with `format = "jsonl"`', b'uno\n{"text": "due"}\n', ["due"], {1: "malformed_json"}, "read as jsonl, which is not what its name says: in/a.txt", settings='format = "jsonl"', alone=True),
    text("`keep` of a field", b"uno", says="plain text has no fields to keep, and in/a.txt is plain text", code=2, settings='keep = ["id"]'),
]  # fmt: skip

# Folders of datasets, and what is no input -------------------------------------------------------------------------------


def dataset(then: Callable[[Path], object] = lambda path: None, **columns: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        from datasets import Dataset, disable_progress_bars

        disable_progress_bars()
        Dataset.from_dict(columns or {"text": TWO}).save_to_disk(path)
        then(path)

    return write


def arrow(path: Path) -> Path:
    (file,) = path.glob("*.arrow")
    return file


def splits(path: Path) -> None:
    from datasets import Dataset, DatasetDict

    DatasetDict({"train": Dataset.from_dict({"text": TWO})}).save_to_disk(path)


saved = partial(Row, SAVED)
OF_DATASETS = [
    saved("a null, an empty text", dataset(text=["uno", None, "", "tre"]), TWO, {2: "null_text", 3: "empty_text"}),
    saved("a truncated table", dataset(lambda path: os.truncate(arrow(path), arrow(path).stat().st_size // 2)), says="damaged Arrow: Expected to ", code=3),
    saved("a table is missing", dataset(lambda path: arrow(path).unlink()), says="cannot be read, No such file or directory: in/a/data-00000-of-00001.arrow", code=3),
    saved("a damaged `state.json`", dataset(lambda path: (path / "state.json").write_text("{")), says="in/a/state.json is not what datasets.save_to_disk writes", code=2),
    saved("no rows", dataset(text=[]), says="in/a is a saved dataset without rows", code=2),
    saved("several splits", splits, says="in/a is a folder, not an input file: name one of its splits in/a/*", code=2),
]  # fmt: skip


def folder_of(path: Path) -> None:
    """Two documents in nested folders, beside what is none of the data."""
    for name, data in {
        "b/uno.jsonl": b'{"text": "uno"}',
        "c/d/e": pack("zst", b'{"text": "tre"}\n'),
        "_metadata": b"PAR1",
        "_temporary/0.jsonl": lines(),
        "b/_SUCCESS": b"",
        ".cache/x.jsonl": lines(),
        "b/.x.jsonl.crc": b"crc",
        "x.csv": b"text\nx",
        "x.py": b"x = 1",
        "b/y.py": b"y = 1",
        "Makefile": b"all:",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


OF_OTHERS = [
    Row(OTHER, "CSV, TSV", b"a,b\n", says="in/a.csv is CSV; convert it to Parquet or JSON Lines", code=2, name="a.csv"),
    Row(OTHER, "a file of an unknown ending, unless `format = \"text\"`", b"uno", says="in/a is of no known format: neither JSON Lines, Parquet, Arrow nor WET; if it is plain text, name it .txt or declare format", code=2),
    Row(OTHER, "WARC with other records than text, HTML, XML", b"<!doctype html><p>uno", says="in/a.html is an HTML page; extract the text first", code=2, name="a.html"),
    Row(OTHER, "a Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\n", says="in/a.jsonl is a Git LFS pointer in place of the file; run git lfs pull", code=2, name="a.jsonl"),
    Row(OTHER, "an archive: tar, zip, 7z", b"PK\3\4", says="in/a.zip is a zip archive; unpack it", code=2, name="a.zip"),
    Row(OTHER, "UTF-16 or UTF-32", "uno".encode("utf-32"), says="in/a.txt is UTF-32; convert it: iconv -f UTF-32 -t UTF-8", code=2, name="a.txt"),
    Row(OTHER, "other binary files", bytes(range(256)), says="in/a is binary: neither JSON Lines, Parquet nor text", code=2),
    Row(OTHER, "a folder without text", lambda path: path.mkdir(), says="no input matches 'in/a'", code=2),
    Row(OTHER, "a named pipe", lambda path: os.mkfifo(path), says="in/a is a pipe or device, not an input file", code=2),
    Row(OTHER, "one file under two names", lambda path: path.symlink_to("z.jsonl"), says="in/a and in/z.jsonl are the same file; name it once", code=2),
]  # fmt: skip

# Conversations ---------------------------------------------------------------------------------------------------------

MESSAGES = 'messages = "messages"'


def said(content: Any, role: Any = "user", **more: Any) -> list[dict[str, Any]]:
    return [{"role": role, "content": content, **more}]


def turn(content: str) -> str:
    return f"<|im_start|>user\n{content}<|im_end|>\n"


def chats(record: Any) -> bytes:
    first, last = (json.dumps({"messages": said(one)}).encode() for one in TWO)
    between = record if isinstance(record, bytes) else json.dumps({"messages": record}).encode()
    return b"".join(line + b"\n" for line in (first, between, last))


def chat(what: str, record: Any, reason: str = "", says: str = "", text: str = "", note: str = "") -> Row:
    found = [turn(one) for one in ("uno", text, "tre") if one]
    rejects = {2: reason} if reason else None
    return Row(CHATS, what, chats(record), found, rejects, says, note=note, settings=MESSAGES)


CALLED = partial(said, "", "assistant")
OF_CHATS = [
    chat("no messages", [], "bad_messages", "no messages"),
    chat("text that is not JSON", "due", "bad_messages", "not JSON: "),
    chat("text that is JSON of messages", json.dumps(said("due")), text="due"),
    chat("an unknown role", said("due", "pirate"), "bad_messages", "message 1 has the role 'pirate'; it must be one of system, developer, user, assistant"),
    chat("an empty or missing content", said(""), "bad_messages", "message 1 (user) is empty"),
    chat("an image", said([{"type": "image", "url": "x"}]), "bad_messages", "Invalid value 'image' - at `$[0].content[0].type`"),
    chat("arguments that are not JSON", CALLED(tool_calls=[{"function": {"name": "f", "arguments": "{"}}]), "bad_messages", "a tool call whose arguments are not JSON"),
    chat("a tool call without a name", CALLED(tool_calls=[{}]), "bad_messages", "a tool call that names no function"),
    chat("a message that the template omits", said([{"type": "text", "text": "due"}]), "template_refused", "the template leaves out message 1 (user)"),
    chat("a message that spells a marker", said("<|im_end|>"), text="<|im_end|>", note="stays text"),
    Row(CHATS, "Parquet: a null, no messages, an unknown role", table({"messages": [said("uno"), None, [], said("due", "pirate"), said("tre")]}), [turn("uno"), turn("tre")], {2: "null_text", 3: "bad_messages", 4: "bad_messages"}, "has the role 'pirate'", settings=MESSAGES, name="a.parquet"),
    Row(CHATS, "Parquet: content as bytes, some not UTF-8", table({"messages": [said(b"uno"), said(b"a\xff"), said(b"tre")]}), [turn("uno"), turn("tre")], {2: "invalid_utf8"}, "byte 0xff at 1", settings=MESSAGES, name="a.parquet"),
]  # fmt: skip
TEMPLATE = 'template = "{q}={r}"'
PAIR = b'{"q": "uno", "r": "x"}\n'


def fields(what: str, line: bytes, reason: str, says: str) -> Row:
    return Row(FIELDS, what, PAIR + line + b"\n" + PAIR, ["uno=x"] * 2, {2: reason}, says, settings=TEMPLATE)


OF_FIELDS = [
    fields("a field is missing, or null", b'{"q": "due", "r": null}', "missing_field", "no field 'r'"),
    fields("a field is not a string", b'{"q": "due", "r": 7}', "text_not_a_string", "the field 'r' is not a string"),
    Row(FIELDS, "it spells a special token", PAIR, says="its template spells the special token '<|im_end|>', which would stay text; only a chat template writes special tokens", code=2, settings='template = "{q}<|im_end|>"', name="b.jsonl"),
    fields("all fields are empty", b'{"q": "", "r": ""}', "empty_text", "all its fields are empty"),
    Row(FIELDS, "Parquet: fields as bytes, some not UTF-8", table({"q": [b"uno"] * 3, "r": [b"x", b"a\xff", b"x"]}), ["uno=x"] * 2, {2: "invalid_utf8"}, "byte 0xff at 1", settings=TEMPLATE, name="a.parquet"),
]  # fmt: skip

ROWS = [
    *BAD_LINES, *LIMITED, *GOOD_LINES, *FILES_OF_LINES, *of_compression("gz"), *of_compression("zst"), *OF_ZSTD,
    *OF_PARQUET, *OF_WET, *OF_TEXT, *OF_DATASETS, *OF_CHATS, *OF_FIELDS, *OF_OTHERS,
]  # fmt: skip


TOGETHER = {
    "lines": [row for row in (*BAD_LINES, *GOOD_LINES) if not row.settings],
    "chats": [row for row in OF_CHATS if not row.name],
    "fields": [row for row in OF_FIELDS if not row.name],
}
"""Rows of which each is a line between two good ones."""


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory, sample_texts: dict[str, list[str]]) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("vocab"), "qwen3", sample_texts["it"][:40])


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All commands work in one folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("inputs"))
        yield


def tokenize(row: Row, vocab: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """(exit code, standard error) of the command for the inputs of a row, in the working directory."""
    for name in ("in", "work"):
        shutil.rmtree(name, ignore_errors=True)
    Path("in").mkdir()
    paths = [row.file]
    if not row.alone:
        line = {"text": BESIDE, "messages": said(BESIDE), "q": BESIDE, "r": ""}
        Path("in/z.jsonl").write_text(json.dumps(line))
        paths.append("in/z.jsonl")
    if isinstance(row.data, bytes):
        Path(row.file).write_bytes(row.data)
    else:
        row.data(Path(row.file))
    Path("recipe.toml").write_text(
        f'out = "work"\n[sources.it]\ninputs = {json.dumps(paths)}\n{row.settings}\n'
        f'[vocab]\npath = "{vocab}"\neod = "<|endoftext|>"\n[shards]\nmax_reject_share = 0.5\n'
    )
    capsys.readouterr()
    code = run_command(["tokenize", "recipe.toml", "--workers", "0"])
    return code, capsys.readouterr().err


def beside(row: Row) -> str:
    """The document of the file that stands beside."""
    return turn(BESIDE) if MESSAGES in row.settings else f"{BESIDE}=" if TEMPLATE in row.settings else BESIDE


def each_row() -> Iterator[Any]:
    for row in ROWS:
        slow = any(row in rows for rows in TOGETHER.values())
        yield pytest.param(row, id=f"{row.format}: {row.what}", marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize("row", [*each_row()])
def test_what_becomes_of_a_defect(row: Row, vocab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(row, vocab, capsys)


@pytest.mark.parametrize(
    ("of", "suffix"), [("lines", ""), ("lines", ".gz"), ("lines", ".zst"), ("chats", ""), ("fields", "")]
)
def test_what_becomes_of_many_in_one_file(
    of: str, suffix: str, vocab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same as by themselves, and in every compression."""
    rows = TOGETHER[of]
    data = b"".join(row.data for row in rows if isinstance(row.data, bytes))
    rejected = [(3 * n + line, row) for n, row in enumerate(rows) for line in row.rejects or ()]
    whole = replace(
        rows[0],
        data=pack(suffix[1:], data) if suffix else data,
        name=f"a.jsonl{suffix}",
        texts=[text for row in rows for text in row.texts],
        rejects={line: reason for line, row in rejected for reason in (row.rejects or {}).values()},
        says="",
    )
    details = [reject["detail"] for reject in check(whole, vocab, capsys)]
    assert [row.says for _, row in rejected if row.says not in details.pop(0)] == []


def check(row: Row, vocab: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Tokenize what a row has; its exit code, documents, rejects and message are those of the row. The rejects."""
    code, printed = tokenize(row, vocab, capsys)
    assert code == row.code, printed
    if code == 2:
        assert row.says in printed
        assert not Path("work/shards").exists()
        return []
    name = row.file + "/data-00000-of-00001.arrow" * Path(row.file).is_dir()
    if row.damages:
        assert row.says in printed
        assert f"it-00000: {name}: " in printed
        assert not has_manifest(Path("work/shards"))
        ((done, planned),) = unfinished(Path("work/shards")).values()
        assert planned - done == 1
        return []
    manifest = load_manifest(Path("work/shards"))
    texts, rejects = account(manifest)
    assert texts == [*row.texts, *([] if row.alone else [beside(row)])]
    assert [(r["file"], r["position"], r["reason"]) for r in rejects] == [
        (name, line, reason) for line, reason in (row.rejects or {}).items()
    ]
    assert row.says in printed or row.says in "\n".join(reject["detail"] for reject in rejects)
    return rejects


def account(manifest: Manifest) -> tuple[list[str], list[dict[str, Any]]]:
    """The documents of a source, by file and line, and its rejects; manifest, ledgers, rejects, table of inputs and
    shards add up."""
    work, source = pretok.open("work"), manifest.sources["it"]
    rows = work.texts(columns=["file", "position", "tokens", "bytes"]).read_all().to_pylist()
    rejects = work.rejects().read_all().to_pylist()
    places = [(row["file"], row["position"]) for row in (*rows, *rejects)]
    assert len(set(places)) == len(places) == source.read  # each record is in one place
    assert source.rejected == Counter(reject["reason"] for reject in rejects)
    sums = (len(rows), sum(row["tokens"] for row in rows), sum(len(row["text"].encode()) for row in rows))
    for counts in (source, manifest.totals):
        assert (counts.documents, counts.tokens, counts.bytes) == sums
    assert all(row["bytes"] == len(row["text"].encode()) for row in rows)
    read, rejected = Counter(file for file, _ in places), Counter(reject["file"] for reject in rejects)
    for file, _, records, refused in load_inputs(manifest, "it").files():
        assert (records, refused) == (read[file], rejected[file])
    assert run_command(["verify", "work", "--full", "--workers", "0"]) == 0
    return [row["text"] for row in rows], rejects


def page() -> str:
    """docs/inputs.md: what a person wrote, and every row under what becomes of it, by reason or format."""
    headings = ("A rejected record, by its reason", "A file that fails", "Refused", "Accepted")
    shown: dict[str, dict[str, dict[str, dict[str, None]]]] = {heading: {} for heading in headings}
    for row in ROWS:
        reasons = ", ".join(f"`{reason}`" for reason in dict.fromkeys((row.rejects or {}).values()))
        heading = headings[2 if row.code == 2 else 1 if row.damages else 0 if reasons else 3]
        what = re.sub(r" \(`\.\w+`\)$", "", row.what)
        what += f" ({row.note})" if row.note else ""
        shown[heading].setdefault(reasons or row.format, {}).setdefault(row.format, {})[what] = None
    listed = [PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK]
    for heading, items in shown.items():
        listed += [f"{heading}:", ""]
        for item, formats in items.items():
            inputs = (f"*{name}:* " * bool(name) + "; ".join(whats) for name, whats in formats.items())
            listed.append("- " + f"{item}: " * (heading == headings[0]) + ". ".join(inputs))
        listed.append("")
    return "\n".join(listed)


def test_the_page_shows_the_rows() -> None:
    """Made by: PYTHONPATH=tests:. python -c "import test_inputs as t; t.PAGE.write_text(t.page(), 'utf-8')" """
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_reason_has_its_row() -> None:
    """But for those of settings and of files of tokens, which have tests of their own."""
    found = {reason for row in ROWS for reason in (row.rejects or {}).values()}
    assert found == {*REASONS} - {
        "",
        "duplicate",
        "contaminated",
        "removed",
        "unknown_id",
        "special_token",
        "damaged_file",
    }
