"""Tables that unpack to much more than they are: what is in memory at a time stays bounded."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import inputs_of, read

from pretok.read.files import CorruptInputError
from pretok.read.format import Format, Piece
from pretok.read.formats import arrow, parquet, tables
from pretok.read.kept import KeptColumn
from pretok.read.record_format import RecordFormat

LARGE, ROWS, BATCH = 50_000, 3000, 1 << 20


@pytest.mark.parametrize("packed", ["text", "id"])
@pytest.mark.parametrize("form", [arrow, parquet])
def test_a_dictionary_is_unpacked_some_rows_at_a_time(tmp_path: Path, form: Format, packed: str) -> None:
    """150 MB in 100 kB: Arrow's own memory is measured, which counts whatever a reader holds at once."""
    values = pa.array(["breve", "x" * LARGE])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 40 + [1] * ROWS, pa.int32()), values)
    table = pa.table({"text": ["testo"] * len(column), "id": ["a"] * len(column)})
    table = table.set_column(table.schema.names.index(packed), packed, column)
    path = tmp_path / f"a{form.SUFFIXES[0]}"
    if form is parquet:
        pq.write_table(table, path, compression="zstd")
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    assert path.stat().st_size < 4 * LARGE
    before, most, records = pa.total_allocated_bytes(), 0, 0
    for some in form.read(
        Piece(inputs_of(path)[0]), None, RecordFormat(), [KeptColumn("id", "id", "text")], BATCH
    ):
        records += len(some.status)
        most = max(most, pa.total_allocated_bytes() - before)
    assert records == len(column)
    assert most < 8 * BATCH, most


def test_a_lack_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["uno"]}), path)

    def none_left(*_: object, **__: object) -> Callable[..., object]:
        raise pa.ArrowMemoryError("malloc of size 7 failed")

    monkeypatch.setattr(tables, "_binary", none_left)
    with pytest.raises(MemoryError, match=f"^{path}: malloc of size 7 failed"):
        [*parquet.read(Piece(inputs_of(path)[0]), None, RecordFormat(), (), BATCH)]
    assert not issubclass(MemoryError, CorruptInputError)


@pytest.mark.parametrize(
    ("new", "compression", "rows"),
    [
        (pa.ipc.new_file, None, [1]),
        (pa.ipc.new_stream, None, [2, 3, 4]),
        (pa.ipc.new_file, "lz4", [2, 3, 4]),
        (pa.ipc.new_stream, "zstd", [1]),
    ],
)
def test_planning_unpacks_no_record_batch(
    tmp_path: Path, new: Callable[..., object], compression: str | None, rows: list[int]
) -> None:
    """Its headers say what the batches hold: as many rows and bytes as Arrow finds when it reads them."""
    path, options = tmp_path / "a.arrow", pa.ipc.IpcWriteOptions(compression=compression)
    made = [pa.record_batch({"text": ["x" * LARGE, None][: count % 2 + 1] * count}) for count in rows]
    packed = [pa.record_batch({"text": batch.column(0).dictionary_encode()}) for batch in made]
    for batches in (made, packed):
        with new(path, batches[0].schema, options=options) as file:
            for batch in batches:
                file.write_batch(batch)
        before = pa.default_memory_pool().max_memory()
        headers, (file,) = [*arrow._headers(str(path))], inputs_of(path)
        assert arrow.probe(file, False).rows == tuple(map(len, batches))
        assert pa.default_memory_pool().max_memory() == before
        with pa.memory_map(str(path)) as stream:
            read = pa.ipc.open_file(stream) if new is pa.ipc.new_file else pa.ipc.open_stream(stream)
            for header, batch in zip(headers, read.read_all().to_batches(), strict=True):
                assert header.rows == len(batch)
                if batches is made:
                    assert header.bytes == sum(len(buffer) for buffer in batch.column(0).buffers() if buffer)


def test_a_record_batch_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.arrow"
    schema = pa.schema({"text": pa.string()})
    with pa.ipc.new_file(path, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        for count in (1, 100):
            file.write_batch(pa.record_batch({"text": ["x" * LARGE] * count}))
    monkeypatch.setattr(arrow, "MOST_UNPACKED", 2 * LARGE)
    found = read(path, RecordFormat())
    assert found.texts == {0: "x" * LARGE}
    assert found.error == (
        "record batch 1 unpacks to 5 MB, more than the 100 kB that one may; "
        "write the file again with smaller record batches"
    )


def test_a_footer_that_lists_other_batches_is_damage(tmp_path: Path) -> None:
    """The footer of one file behind the batches of another: it leaves out the third batch."""
    whole, short = io.BytesIO(), io.BytesIO()
    for sink, count in ((whole, 3), (short, 2)):
        with pa.ipc.new_file(sink, pa.schema({"text": pa.string()})) as file:
            for number in range(count):
                file.write_batch(pa.record_batch({"text": [f"testo {number}"]}))
    end = len(short.getvalue()) - 10 - int.from_bytes(short.getvalue()[-10:-6], "little")
    batches = len(whole.getvalue()) - 10 - int.from_bytes(whole.getvalue()[-10:-6], "little")
    path = tmp_path / "a.arrow"
    path.write_bytes(whole.getvalue()[:batches] + short.getvalue()[end:])
    found = read(path, RecordFormat())
    assert found.texts == {0: "testo 0", 1: "testo 1"}
    assert found.error == "damaged Arrow: the footer does not list record batch 2"


def test_dictionaries_inside_lists_are_unpacked_some_rows_at_a_time(tmp_path: Path) -> None:
    """Long and short conversations by turns: each is as long as its own values are, not as their mean."""
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1] * ROWS, pa.int32()), ["ciao", "x" * LARGE])
    turns = pa.StructArray.from_arrays([pa.array(["user", "assistant"] * ROWS), words], ["role", "content"])
    offsets = pa.array([*range(0, 2 * ROWS, 2), 2 * ROWS], pa.int32())
    rows = pa.record_batch({"messages": pa.ListArray.from_arrays(offsets, turns)})
    places = tables.ColumnPlaces(rows.schema, ["messages"], True)
    sizes = [columns[0].nbytes for columns in places.columns(rows, BATCH)]
    assert max(sizes) < 2 * BATCH
    assert sum(sizes) > ROWS * LARGE
