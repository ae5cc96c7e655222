"""What a command holds in memory at most, in a control group of that size: the kernel ends a process that takes more.

Each of ROWS is a command, an input that is made for it, and how large; the bound stands in the table of docs/scaling.md
and is read from there. It is beside the libraries, as processes are forked from one that has loaded them. The ordinary
run takes the first size; PRETOK_MEMORY=1 takes the last, the largest that limits admit (half an hour, 10 GB of disk),
and prints what each held and its processor time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from support import ROOT, make_shards
from mixing import write_ledgers

from benchmarks.cold import control_group
from pretok.cli import run_command

MIB = 1 << 20
FULL = bool(os.environ.get("PRETOK_MEMORY"))
FORKED = """
import json, os, sys
import duckdb, pretok.counts.job, pretok.shards.job, pretok.stream.mix_job, pretok.audit.verify_job
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
    text = b"".join(b"La riga %d di %d, con parole e numeri.\n" % (n, n * 7919) for n in range(size // 38 + 1))
    return text[:size]


def json_lines(at: Path, *texts: bytes) -> None:
    """Inputs of these texts behind a short one, which is the one that is compared of their shard."""
    with (at / "in.jsonl").open("wb") as file:
        for text in (b"Un testo breve.", *texts):
            file.write(b'{"id": "d", "text": "' + text.replace(b"\n", b"\\n") + b'"}\n')


def one_document(at: Path, size: int) -> None:
    json_lines(at, sentences(size))


def two_documents(at: Path, size: int) -> None:
    json_lines(at, sentences(size), sentences(size))


def alone(at: Path, size: int) -> None:
    (at / "in.txt").write_bytes(sentences(size))


def new_characters(at: Path, size: int) -> None:
    """`tokenizers` encodes it, as it holds a character that the engine may take differently."""
    json_lines(at, sentences(size) + "\u088f".encode())


def escaped(at: Path, size: int) -> None:
    json_lines(at, b"".join(b"\\u%04x" % byte for byte in sentences(size // 6)))


def accents(at: Path, size: int) -> None:
    """Text that NFC changes."""
    json_lines(at, "perche\u0301 e\u0323\u0302 ".encode() * (size // 15))
    (at / "recipe.toml").write_text(
        f'out = "new"\n[sources.a]\ninputs = ["in.jsonl"]\n[vocab]\npath = "{at.parent}/vocab"\n[normalize]\nunicode = "nfc"\n'
    )


def one_word(at: Path, size: int) -> None:
    json_lines(at, b"ab" * (size // 2))


def kept(at: Path, size: int) -> None:
    """As many documents as a ledger holds back, each with a long value."""
    value = "x" * (size // 65_536 - 10)
    with (at / "in.jsonl").open("w") as file:
        file.writelines(f'{{"text": "a", "id": "{value}{n:010}"}}\n' for n in range(65_536))


def parquet(at: Path, texts: pa.Array, **options: Any) -> None:
    pq.write_table(pa.table({"text": texts}), at / "in.parquet", row_group_size=1 << 30, **options)


def row_group(at: Path, size: int) -> None:
    text = sentences(4096).decode()
    parquet(at, pa.array([f"{n}{text}" for n in range(size // 4096)], pa.large_string()), use_dictionary=False)


def sorted_rows(at: Path, size: int) -> None:
    """Half of the text in short rows, then half of it in long ones."""
    text = sentences(256 << 10).decode()
    short, long = size // 400, size // (512 << 10)
    texts = [f"{n}{text[:200]}" for n in range(short)] + [f"{n}{text}" for n in range(long)]
    parquet(at, pa.array(texts, pa.large_string()), use_dictionary=False, write_batch_size=16)


def one_page(at: Path, size: int) -> None:
    text = sentences(4096).decode()
    texts = pa.array([f"{n}{text}" for n in range(size // 4096)], pa.large_string())
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
    (at / "in").mkdir()
    for number in range(count):
        if number % 1000 == 0:
            (folder := at / "in" / f"{number // 1000}").mkdir()
        (folder / f"{number}.jsonl").write_text(f'{{"text": "documento {number}"}}\n')


def shards(at: Path, count: int) -> None:
    make_shards(at / "shards", {"a": [[n % 900 + 1] * 20 for n in range(count)]}, documents_per_shard=1)
    write_ledgers(at / "shards")


def sources(at: Path, count: int) -> None:
    make_shards(at / "shards", {f"s{n:04}": [[n % 900 + 1] * 20] for n in range(count)})
    write_ledgers(at / "shards")


def a_mix(at: Path, count: int, make: Callable[[Path, int], None]) -> None:
    make(at, count)
    assert run_command(["mix", str(at / "shards"), "--out", str(at / "mix.json"), "--seq-len", "16"]) == 0


class Row(NamedTuple):
    """what, and the command: as in the table; small, large: sizes; make: the input in a folder; line: of the command."""

    what: str
    small: int
    large: int
    make: Callable[[Path, int], None]
    line: tuple[str, ...]


NEW = ("--out", "{at}/new", "--workers", "0")
TOKENIZE = ("tokenize", "a={at}/in*", "--vocab", "{vocab}", *NEW)
COUNT = ("count", "a={at}/in*", *NEW)
MIX = ("mix", "{at}/shards", "--seq-len", "16", "--out", "{at}/new.json")
LONG = (16 * MIB, 256 * MIB)
ROWS = (
    Row("a document", *LONG, one_document, TOKENIZE),
    Row("a document", *LONG, one_document, COUNT),
    Row("two documents", *LONG, two_documents, TOKENIZE),
    Row("alone", 4*MIB, 256*MIB, alone, TOKENIZE),
    Row("new characters", 4*MIB, 256*MIB, new_characters, TOKENIZE),
    Row("escaped", 3*16*MIB, 3*256*MIB, escaped, TOKENIZE),
    Row("nfc", *LONG, accents, ("run", "{at}/recipe.toml", "--workers", "0")),
    Row("one word", 16*MIB-2, 16*MIB-2, one_word, TOKENIZE),
    Row("one word", 16*MIB-2, 16*MIB-2, one_word, COUNT),
    Row("kept", 64*MIB, 1024*MIB, kept, (*TOKENIZE, "--keep", "id")),
    Row("row group", 64*MIB, 1024*MIB, row_group, COUNT),
    Row("sorted rows", 64*MIB, 1024*MIB, sorted_rows, COUNT),
    Row("one page", 32*MIB, 1024*MIB, one_page, COUNT),
    Row("repeated", 256*MIB, 64*1024*MIB, repeated, COUNT),
    Row("dictionary", 32*MIB, 1024*MIB, dictionary, COUNT),
    Row("window", 128*MIB, 2048*MIB, window, COUNT),
    Row("inputs", 1000, 100_000, inputs, ("count", "a={at}/in/*/*.jsonl", *NEW)),
    Row("inputs", 1000, 100_000, inputs, ("tokenize", "a={at}/in/*/*.jsonl", "--vocab", "{vocab}", *NEW)),
    Row("inputs", 1000, 100_000, inputs, ("plan", "a={at}/in/*/*.jsonl", "--vocab", "{vocab}")),
    Row("shards", 300, 10_000, shards, ("stats", "{at}/shards")),
    Row("shards", 300, 10_000, shards, ("inspect", "{at}/shards", "--doc", "200")),
    Row("shards", 300, 10_000, shards, ("verify", "{at}/shards", "--workers", "0", "--sample", "0")),
    Row("shards", 300, 10_000, shards, ("status", "{at}")),
    Row("shards", 300, 10_000, shards, MIX),
    Row("shards", 300, 10_000, partial(a_mix, make=shards), ("trace", "{at}/mix.json", "--shards", "{at}/shards", "--position", "3")),
    Row("sources", 100, 1000, sources, MIX),
    Row("sources", 100, 1000, sources, ("stats", "{at}/shards")),
    Row("sources", 100, 1000, partial(a_mix, make=sources), ("trace", "{at}/mix.json", "--shards", "{at}/shards", "--position", "3")),
)


@pytest.fixture(scope="module")
def loaded() -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded the libraries, and forks for each command."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "POLARS_MAX_THREADS": "2"}
    command = [sys.executable, "-c", FORKED]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def bound(row: Row, size: int) -> int:
    """Bytes, from the table."""
    return 1<<30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.line[0]} {row.what}")
def test_a_command_keeps_within_its_memory(row, loaded, tmp_path, vocab_dir):
    size = row.large if FULL else row.small
    row.make(tmp_path, size)
    line = [part.format(at=tmp_path, vocab=vocab_dir) for part in row.line]
    most = bound(row, size)
    with control_group(most) as group:
        loaded.stdin.write(json.dumps([str(group), line, str(tmp_path / "said")]) + "\n")
        loaded.stdin.flush()
        code = int(loaded.stdout.readline())
    said = (tmp_path / "said").read_text()
    print(f"{row.line[0]}, {row.what} of {size:,}: {said.splitlines()[-1:]}, bound {most >> 20} MiB")
    assert code == 0, f"{'killed at' if code == -9 else 'code'} {most >> 20} MiB: {said}"
