"""DuckDB in a share of a machine: data that does not fit memory goes to files next to the output, never to /tmp.

Input: a folder for these files, and how many workers share the machine. Output: a connection, and its errors as ours.
Rows have no order without ORDER BY.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pretok.base.errors import IntegrityError
from pretok.base.memory import free_memory
from pretok.base.storage import FULL, PASSING

SHARE = 2
"""DuckDB gets 1 / SHARE of a worker's memory; Arrow and Python need the rest."""
LEAST_MEMORY = 64 << 20
"""Bytes below which DuckDB cannot work."""
ENDED = ("failed to offload", "could not allocate", "failed to pin")
"""What DuckDB says of a block that fits neither its folder nor memory."""


@contextmanager
def database(folder: Path, workers: int, most: int, memory: int = 1 << 62) -> Iterator[Any]:
    """Open an empty database in memory, on one core, for one of `workers` that share the machine.

    folder: new, for at most `most` bytes that do not fit memory; removed at the end. memory: bytes of memory that it
    may take. Raises what `errors` raises.
    """
    import duckdb

    workers = max(1, min(workers, len(os.sched_getaffinity(0))))
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": f"{min(memory, max(LEAST_MEMORY, free_memory() // workers // SHARE))}B",
        "temp_directory": str(folder),
        "preserve_insertion_order": False,
        # It would download them, and pretok opens no connection.
        "autoinstall_known_extensions": False,
        # large_string, as everywhere here: 32-bit offsets end at 2 GiB of text.
        "arrow_large_buffer_size": True,
    }
    try:
        with errors(), duckdb.connect(config=settings) as connection:
            # DuckDB keeps to this limit only if it is set when the database is open.
            connection.execute(f"SET max_temp_directory_size = '{most}B'; SET enable_progress_bar = false")
            yield connection
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def errors() -> Iterator[None]:
    """Turn DuckDB's errors into ours.

    A lack of memory becomes a MemoryError, an error of a file, of which DuckDB keeps only the words, an OSError or
    IntegrityError, an interrupt a KeyboardInterrupt.
    """
    import duckdb

    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.TransactionException) as error:
        # If memory or disk runs out during a commit, DuckDB reports an error of the transaction.
        if isinstance(error, duckdb.TransactionException) and not any(words in str(error) for words in ENDED):
            raise
        raise MemoryError(str(error)) from None
    except duckdb.IOException as error:
        for number in PASSING | FULL:
            if os.strerror(number) in str(error):
                raise OSError(number, str(error)) from None
        raise IntegrityError(duckdb_message(error)) from None  # it names the file
    except RuntimeError as error:
        # A signal handler raised an exception: DuckDB ends the query, but drops the exception.
        if "Query interrupted" in str(error):
            raise KeyboardInterrupt from None
        raise


def duckdb_message(error: Exception) -> str:
    """Return DuckDB's message about a query, without its name of the error."""
    return re.sub(r"^[A-Z][A-Za-z ]* Error: ", "", str(error))


def parquet(paths: Iterable[Path], options: str = "") -> str:
    """Return the SQL that reads Parquet files; a folder called `lang=it` does not become a column."""
    return f"read_parquet({path_list(paths)}, hive_partitioning = false{options and f', {options}'})"


def path_list(paths: Iterable[Path]) -> str:
    """Quote paths for DuckDB, with `*`, `?` and `[` taken literally."""
    texts = [re.sub(r"([*?\[])", r"[\1]", str(path)) for path in paths]
    return f"[{', '.join(map(quoted, texts))}]"


def quoted(text: str) -> str:
    """Quote a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
