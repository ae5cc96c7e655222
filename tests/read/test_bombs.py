"""Tables that unpack to much more than they are: what is in memory at a time stays bounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import inputs_of

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
