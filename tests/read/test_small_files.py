"""Small files are read side by side, ahead of their turn; what comes of them is what came of one after another."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from msgspec import UNSET
from reading import inputs_of, lines_of, wet
from serving import serve
from support import until

from pretok.read import files, readers
from pretok.read.files import SMALL, InputFile, stamp
from pretok.read.format import Piece
from pretok.read.partition import Partition
from pretok.read.readers import TOGETHER, Damage, read_partition
from pretok.read.record_format import RecordFormat

AT_ONCE = 8
FORMATS: dict[str, Callable[[list[str]], bytes]] = {
    "jsonl": lines_of,
    "jsonl.zst": lambda texts: zstandard.compress(lines_of(texts)),
    "txt": lambda texts: "".join(texts).encode(),
    "warc.wet.gz": lambda texts: wet(texts, gzip.compress),
    "parquet": lambda texts: table(texts, pq.write_table),
    "arrow": lambda texts: table(texts, write_arrow),
}


def table(texts: list[str], write: Callable[[pa.Table, Any], object]) -> bytes:
    write(pa.table({"text": texts}), sink := pa.BufferOutputStream())
    return bytes(sink.getvalue())


def write_arrow(rows: pa.Table, sink: Any) -> None:
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)


def partition_of(inputs: list[InputFile]) -> Partition:
    return Partition("it", 0, tuple(map(Piece, inputs)), 0, tuple(map(stamp, inputs)))


def found(partition: Partition, *fields: str) -> list[tuple[int, list[str] | str]]:
    """(piece, texts of a batch or error)."""
    return [
        (one.piece, one.error if isinstance(one, Damage) else one.texts.to_pylist())
        for one in read_partition(partition, RecordFormat(fields=fields or UNSET), lambda batch: batch)
    ]


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_files_of_every_format_are_opened_side_by_side(
    name: str, far: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits until as many others are opened, which one after another would not be."""
    together, slow = threading.Barrier(AT_ONCE), False

    def wait(path: Path | str, then: Callable[[], Any]) -> Any:
        if slow and int(Path(path).name.partition(".")[0]) % TOGETHER == 0:
            together.wait(20)
        return then()

    serve("side", lambda path, start, end: wait(path, lambda: path.read_bytes()[start:end]))

    def opened(path: Path | str, *how: Any, **more: Any) -> Any:
        return wait(path, lambda: Path(path).open(*how, **more))

    monkeypatch.setattr(files, "open", opened, False)
    texts = [
        [f"Il documento {n} del file {number}. " for n in range(3)] for number in range(AT_ONCE * TOGETHER)
    ]
    for number, of_file in enumerate(texts):
        (tmp_path / f"{number:03}.{name}").write_bytes(FORMATS[name](of_file))
    partition = partition_of(inputs_of(*(f"{'side://' * far}{path}" for path in tmp_path.iterdir())))
    slow = True
    batches = found(partition)
    assert batches == [
        (n, ["".join(of) for of in [one]] if name == "txt" else one) for n, one in enumerate(texts)
    ]


def test_a_file_that_cannot_be_opened_has_its_error_at_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.jsonl").write_bytes(lines_of([f"file {number}"]))
    partition = partition_of(inputs_of(f"{tmp_path}/*"))

    def refusing(path: Path | str, *how: Any, **more: Any) -> Any:
        if Path(path).name == "17.jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return Path(path).open(*how, **more)

    monkeypatch.setattr(files, "open", refusing, False)
    expected: list[tuple[int, Any]] = [(n, [f"file {n}"]) for n in range(40)]
    why = f"[Errno 13] Permission denied: '{tmp_path}/17.jsonl'"
    expected[17] = (17, f"changed since it was planned: {why}")
    assert found(partition) == expected


@pytest.mark.parametrize("size", [1000, 3 * files.IDENTITY_BYTES, SMALL + 1000])
def test_a_change_in_the_middle_is_noticed_whatever_the_size(size: int, tmp_path: Path) -> None:
    """By the identity, or the time that the plan noted."""
    path = tmp_path / "1.jsonl"
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(lines_of(["x" * size]))
    partition = partition_of(inputs_of(f"{tmp_path}/*"))
    data = path.read_bytes()
    path.write_bytes(data[: size // 2] + b"y" + data[size // 2 + 1 :])
    os.utime(path, ns=(1, 1))
    assert [(piece, error[:29]) for piece, error in found(partition) if isinstance(error, str)] == [
        (1, "changed since it was planned:")
    ]


def test_who_stops_early_leaves_no_thread_and_nothing_open(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"{number:03}.jsonl").write_bytes(lines_of([f"file {number}"]))
    partition = partition_of(inputs_of(f"{tmp_path}/*"))
    before = set(Path("/proc/self/fd").iterdir())
    batches = read_partition(partition, RecordFormat(), lambda batch: batch)
    next(iter(batches))
    del batches
    until(lambda: not any(thread.name.startswith("read-ahead") for thread in threading.enumerate()))
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_the_field_of_a_file_is_found_ahead_too(tmp_path: Path) -> None:
    for number in range(40):
        name = "text" if number % 3 else "content"
        (tmp_path / f"{number:02}.jsonl").write_bytes(b'{"%s": "file %d"}\n' % (name.encode(), number))
    partition = partition_of(inputs_of(f"{tmp_path}/*"))
    assert found(partition, "content", "text") == [(n, [f"file {n}"]) for n in range(40)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1] * (TOGETHER + 1), [TOGETHER, 1]),
        ([SMALL, 1, SMALL - 1, 1], [1, 2, 1]),
        ([5 * SMALL, 1, 5 * SMALL], [1, 1, 1]),
        ([0] * 3, [3]),
    ],
)
def test_what_a_thread_takes_at_once_is_bounded(sizes: list[int], expected: list[int]) -> None:
    pieces = [Piece(InputFile("a", "jsonl", "", size, "")) for size in sizes]
    taken = list(readers._together(pieces))
    assert list(map(len, taken)) == expected
    assert [number for some in taken for number in some] == list(range(len(sizes)))
