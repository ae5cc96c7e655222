"""What a command holds in memory at most, in a control group of that size: the kernel ends a process that takes more.

Each of ROWS is a command, an input that is made for it, how large that is, and the bound. The libraries do not count,
because processes are forked from one that has loaded them. The ordinary run takes the first size. PRETOK_MEMORY=1 takes
the last, the largest that limits admit (half an hour, 10 GB of disk), and prints what each held and its processor time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from support import ROOT, write_recipe

from pretok.cli import run_command

MIB = 1 << 20
FULL = bool(os.environ.get("PRETOK_MEMORY"))
FORKED = """
import json, os, sys
import duckdb, pretok.vocab.counts.count_job, pretok.shards.tokenize_job, pretok.stream.mix_job
import pretok.documents.audit.verify_job
from pretok.base.execute import peak_bytes
from pretok.cli import run_command

def run(group, line, said):
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(1, 2)
    before = peak_bytes()
    with open(group + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    code = run_command(line)
    sys.stdout.flush()
    print(f"held {(peak_bytes() - before) >> 20} MiB, {sum(os.times()[:2]):.1f} s", flush=True)
    return code

for request in sys.stdin:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = run(*json.loads(request))
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def sentences(size: int) -> bytes:
    """So many bytes of text of real words."""
    lines = (b"La riga %d di %d, con parole e numeri.\n" % (n, n * 7919) for n in range(size // 38 + 1))
    return b"".join(lines)[:size]


def json_lines(at: Path, *texts: bytes) -> None:
    """Inputs of these texts behind a short one, which is the one that is compared of their shard."""
    with (at / "in.jsonl").open("wb") as file:
        for text in (b"Un testo breve.", *texts):
            file.write(b'{"id": "d", "text": "' + text.replace(b"\n", b"\\n") + b'"}\n')


def one_document(at: Path, size: int) -> None:
    json_lines(at, sentences(size))


def new_characters(at: Path, size: int) -> None:
    """`tokenizers` encodes it, as it holds a character that the engine may take differently."""
    json_lines(at, sentences(size) + "\u088f".encode())


def escaped(at: Path, size: int) -> None:
    json_lines(at, b"".join(b"\\u%04x" % byte for byte in sentences(size // 6)))


def accents(at: Path, size: int) -> None:
    """Text that NFC changes."""
    json_lines(at, "perche\u0301 e\u0323\u0302 ".encode() * (size // 15))
    (at / "recipe.toml").write_text(
        f'[sources.a]\ninputs = ["in.jsonl"]\n[vocab]\npath = "{at}"\n[normalize]\nunicode = "nfc"\n'
    )


def one_word(at: Path, size: int) -> None:
    json_lines(at, b"ab" * (size // 2))


def kept(at: Path, size: int) -> None:
    """As many documents as a ledger holds back, each with a long value, in a file that is not cut."""
    value = "x" * (size // 65_536 - 10)
    with (at / "in.jsonl.zst").open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as out:
        for n in range(65_536):
            out.write(f'{{"text": "a", "id": "{value}{n:010}"}}\n'.encode())


def parquet(at: Path, texts: pa.Array, **options: Any) -> None:
    pq.write_table(pa.table({"text": texts}), at / "in.parquet", row_group_size=1 << 30, **options)


def row_group(at: Path, size: int) -> None:
    text = sentences(4096).decode()
    texts = pa.array([f"{n}{text}" for n in range(size // 4096)], pa.large_string())
    parquet(at, texts, use_dictionary=False)


def sorted_rows(at: Path, size: int) -> None:
    """Half of the text in short rows, then half of it in long ones."""
    text = sentences(256 << 10).decode()
    short, long = size // 400, size // (512 << 10)
    texts = [f"{n}{text[:200]}" for n in range(short)] + [f"{n}{text}" for n in range(long)]
    parquet(at, pa.array(texts, pa.large_string()), use_dictionary=False, write_batch_size=16)


def one_page(at: Path, size: int) -> None:
    text = sentences(64 << 10).decode()
    texts = pa.array([f"{n}{text}" for n in range(size >> 16)], pa.large_string())
    parquet(at, texts, use_dictionary=False, data_page_size=2 * size, write_batch_size=1 << 20)


def repeated(at: Path, size: int) -> None:
    """Rows of 1 MiB each that are one in the file."""
    text = pa.array([sentences(MIB).decode()])
    parquet(at, pa.DictionaryArray.from_arrays(pa.array(np.zeros(size // MIB, np.int32)), text))


def dictionary(at: Path, size: int) -> None:
    """Rows of which all texts stand in the dictionary."""
    text = sentences(4096).decode()
    texts = pa.array([f"{n}{text}" for n in range(size // 4096)], pa.large_string())
    parquet(at, texts, dictionary_pagesize_limit=2 * size)


def window(at: Path, size: int) -> None:
    """A frame of zstd whose window is that large, and full."""
    how = zstandard.ZstdCompressionParameters.from_level(1, window_log=size.bit_length() - 1, enable_ldm=True)
    line = b'{"text": "' + b"ab " * (MIB // 3) + b'"}\n'
    compressor = zstandard.ZstdCompressor(compression_params=how)
    with (at / "in.jsonl.zst").open("wb") as file, compressor.stream_writer(file) as out:
        for _ in range(size // len(line) + 2):
            out.write(line)


def inputs(at: Path, count: int) -> None:
    for number in range(count):
        folder = at / "in" / f"{number // 1000}"
        if number % 1000 == 0:
            folder.mkdir(parents=True)
        (folder / f"{number}.jsonl").write_text(f'{{"text": "documento {number}"}}\n')


def shards(at: Path, count: int) -> None:
    """A source cut into so many shards, and a mix of them."""
    with (at / "in.jsonl").open("w") as file:
        file.writelines(f'{{"id": "d{n}", "text": "{f"documento {n} " * 12}"}}\n' for n in range(count))
    size = (at / "in.jsonl").stat().st_size
    one = {"size": size // (2 * count)}
    _tokenized(at, [write_recipe(at / "r.toml", {"a": f"{at}/in.jsonl"}, shards=one), "--keep", "id"])
    found = len(list((at / "shards" / "a").glob("*.bin")))
    assert 0.9 * count < found <= count, found


def sources(at: Path, count: int) -> None:
    """So many sources of one shard each, and a mix of them."""
    for n in range(count):
        (at / f"{n}.jsonl").write_text(f'{{"text": "{f"documento {n} " * 12}"}}\n')
    _tokenized(at, [f"s{n}={at}/{n}.jsonl" for n in range(count)])


def _tokenized(at: Path, line: list[str]) -> None:
    mix = ["mix", str(at / "shards"), "--out", str(at / "mix.json"), "--seq-len", "16"]
    for command in (["tokenize", *line, "--out", str(at), "--vocab", str(at), "--workers", "0"], mix):
        assert run_command(["--quiet", *command]) == 0


class Row(NamedTuple):
    """what: the input in words; most: MiB, and bytes for each of `size`; size: small, and the largest, bytes or number;
    make: the input in a folder; line: the command; slow: of the slow tests."""

    what: str
    most: tuple[int, float]
    size: tuple[int, int]
    make: Callable[[Path, int], None]
    line: tuple[str, ...]
    slow: bool = True


NEW = ("--out", "{new}", "--workers", "0")
TOKENIZE = ("tokenize", "a={at}/in.*", "--vocab", "{vocab}", *NEW)
COUNT = ("count", "a={at}/in.*", *NEW)
MIX = ("mix", "{at}/shards", "--seq-len", "16", "--out", "{new}.json")
TRACE = ("trace", "{at}/mix.json", "--shards", "{at}/shards", "--position", "3")
FILES = "a={at}/in/*/*.jsonl"
TOKENIZE_FILES = ("tokenize", FILES, "--vocab", "{vocab}", *NEW)
LONG, SLOWLY = (16 * MIB, 256 * MIB), (3 * MIB, 256 * MIB)
GROUP = (64 * MIB, 1024 * MIB)
SHARDS, SOURCES, FILES_READ = (200, 10_000), (100, 1000), (1000, 100_000)
ROWS = (
    Row("a document", (250, 5), LONG, one_document, TOKENIZE, slow=False),
    Row("a document", (220, 3), LONG, one_document, COUNT),
    Row("with characters of Unicode 17", (320, 12), SLOWLY, new_characters, TOKENIZE),
    Row("all of it `\\uXXXX`", (250, 3.5), (3 * LONG[0], 3 * LONG[1]), escaped, TOKENIZE),
    Row("that NFC changes", (250, 6), LONG, accents, ("tokenize", "{at}/recipe.toml", *NEW)),
    Row("one word of 16 MiB", (660, 0), (16 * MIB - 2, 16 * MIB - 2), one_word, TOKENIZE),
    Row("one word of 16 MiB", (360, 0), (16 * MIB - 2, 16 * MIB - 2), one_word, COUNT),
    Row("65,536 kept values", (290, 4.5), GROUP, kept, (*TOKENIZE, "--keep", "id")),
    Row("a row group", (290, 0), GROUP, row_group, COUNT),
    Row("sorted by length", (540, 0), GROUP, sorted_rows, COUNT),
    Row("one page", (260, 1.6), GROUP, one_page, COUNT),
    Row("one value, repeated", (280, 0), (192 * MIB, 64 << 30), repeated, COUNT),
    Row("a dictionary", (290, 2.5), GROUP, dictionary, COUNT),
    Row("a window", (240, 1.1), (64 * MIB, 2048 * MIB), window, COUNT),
    Row("input files", (240, 3_000), FILES_READ, inputs, ("count", FILES, *NEW)),
    Row("input files", (260, 6_000), FILES_READ, inputs, TOKENIZE_FILES, slow=False),
    Row("input files", (290, 2_000), FILES_READ, inputs, ("plan", FILES, "--out", "{new}")),
    Row("shards", (100, 20_000), SHARDS, shards, ("inspect", "{at}/shards", "--source", "a", "--doc", "150")),
    Row("shards", (220, 20_000), SHARDS, shards, ("verify", "{at}/shards", "--workers", "0")),
    Row("shards", (100, 15_000), SHARDS, shards, ("status", "{at}")),
    Row("shards", (190, 60_000), SHARDS, shards, ("query", "{at}", "select sum(tokens) from documents")),
    Row("shards", (100, 20_000), SHARDS, shards, ("export", "{at}/shards", "--to", "olmo", *NEW)),
    Row("shards", (100, 15_000), SHARDS, shards, MIX),
    Row("shards", (100, 20_000), SHARDS, shards, TRACE),
    Row("sources", (100, 20_000), SOURCES, sources, ("status", "{at}")),
    Row("sources", (100, 20_000), SOURCES, sources, MIX),
    Row("sources", (100, 60_000), SOURCES, sources, TRACE),
)


@contextmanager
def control_group(room: int) -> Iterator[Path]:
    """Make a control group of `room` bytes, page cache included (cgroups(7), version 2 or 1), and give its folder. A
    process joins when its id is written to `cgroup.procs` there. Raises OSError where the user may make none."""
    home, limit, version = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory"
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        home, limit, version = Path("/sys/fs/cgroup"), "memory.max", ""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    here = home / next(path for _, controllers, path in lines if controllers == version).strip("/")
    group = here / f"pretok-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(room))
        yield group
    finally:
        group.rmdir()


@pytest.fixture(scope="module")
def loaded() -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded the libraries, and forks for each command."""
    try:
        with control_group(MIB):
            pass
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FORKED], cwd=ROOT, text=True, **pipes) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Callable[[Row], Path]:
    """The folder with the input of a row, made once for all commands that read it."""

    @cache
    def make(how: Callable[[Path, int], None], size: int) -> Path:
        at = tmp_path_factory.mktemp(how.__name__)
        shutil.copy(vocab_dir / "tokenizer.json", at)
        how(at, size)
        return at

    return lambda row: make(row.make, row.size[FULL])


@pytest.mark.parametrize(
    "row", [pytest.param(r, id=f"{r.line[0]}, {r.what}", marks=[pytest.mark.slow] * r.slow) for r in ROWS]
)
def test_a_command_keeps_within_its_memory(row, loaded, made, tmp_path):
    at, (fixed, each) = made(row), row.most
    most = fixed * MIB + int(each * row.size[FULL])
    line = [part.format(at=at, new=tmp_path / "new", vocab=at) for part in row.line]
    with control_group(most) as group:
        loaded.stdin.write(json.dumps([str(group), line, str(tmp_path / "said")]) + "\n")
        loaded.stdin.flush()
        code = int(loaded.stdout.readline())
    said = (tmp_path / "said").read_text(errors="replace")
    print(f"{row.line[0]}, {row.what}, N = {row.size[FULL]:,}: {most >> 20} MiB, {said.splitlines()[-1:]}")
    assert code == 0, f"{'killed at' if code == -9 else f'code {code},'} {most >> 20} MiB: {said[-2000:]}"
