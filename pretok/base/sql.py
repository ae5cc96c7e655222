"""DuckDB in a share of a machine: what fits no memory goes to files beside what is written, never to /tmp.

Input: a folder for these files, and how many workers share the machine. Output: a connection; its errors as ours. Rows
come in no order but that of an ORDER BY.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pretok.base.memory import free_memory
from pretok.base.storage import FULL, PASSING

SHARE = 2
"""One part in so many of a worker's memory is DuckDB's: Arrow and Python take from the rest."""
LEAST_MEMORY = 64 << 20
"""Bytes below which DuckDB cannot work."""
ENDED = ("failed to offload", "could not allocate", "failed to pin")
"""How DuckDB says that a block found no room in its folder, or in memory."""


@contextmanager
def database(folder: Path, workers: int, most: int, memory: int = 1 << 62) -> Iterator[Any]:
    """An empty database in memory, on one core, for one of `workers` that share the machine.

    folder: its own, new, where it puts at most `most` bytes that fit no memory; removed at the end. memory: the most
    bytes of memory that it takes.
    """
    import duckdb

    workers = max(1, min(workers, len(os.sched_getaffinity(0))))
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": f"{min(memory, max(LEAST_MEMORY, free_memory() // workers // SHARE))}B",
        "temp_directory": str(folder),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "arrow_large_buffer_size": True,
    }
    try:
        with errors(), duckdb.connect(config=settings) as connection:
            # DuckDB keeps to this limit only if it is set when the database is open.
            connection.execute(f"SET max_temp_directory_size = '{most}B'; SET enable_progress_bar = false")
            yield connection
    except (duckdb.OutOfMemoryException, duckdb.TransactionException) as error:
        # Memory and room that end while a commit writes what is held are told as an error of the transaction.
        if isinstance(error, duckdb.TransactionException) and not any(words in str(error) for words in ENDED):
            raise
        raise MemoryError(str(error)) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def errors() -> Iterator[None]:
    """Turn an error of DuckDB, of which only the words are left, into the OSError of a file behind it, or into
    KeyboardInterrupt."""
    import duckdb

    try:
        yield
    except duckdb.IOException as error:
        for number in PASSING | FULL:
            if os.strerror(number) in str(error):
                raise OSError(number, str(error)) from None
        raise
    except RuntimeError as error:
        # The handler of a signal raised meanwhile: DuckDB ends the query, but drops the exception.
        if "Query interrupted" in str(error):
            raise KeyboardInterrupt from None
        raise


def told(error: Exception) -> str:
    """What DuckDB says of a query, without the name that it has for this kind of error."""
    return re.sub(r"^[A-Z][A-Za-z ]* Error: ", "", str(error))


def parquet(paths: Iterable[Path], options: str = "") -> str:
    """What reads Parquet files in SQL; a folder called `lang=it` gives no column."""
    return f"read_parquet({path_list(paths)}, hive_partitioning = false{options and f', {options}'})"


def path_list(paths: Iterable[Path]) -> str:
    """Paths as DuckDB takes them, in which `*`, `?` and `[` mean themselves."""
    texts = [re.sub(r"([*?\[])", r"[\1]", str(path)) for path in paths]
    return f"[{', '.join(map(quoted, texts))}]"


def quoted(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"
