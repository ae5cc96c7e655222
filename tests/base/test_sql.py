"""DuckDB's errors as ours."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

import duckdb
import pytest

from pretok.base.errors import Stopped
from pretok.base.sql import database


def test_a_signal_whose_handler_raises_ends_a_query(tmp_path: Path) -> None:
    """With a handler of its own: a process in the background ignores SIGINT, and the time limit is a signal too."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Stopped("enough")

    before = signal.signal(signal.SIGUSR1, stop)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        with pytest.raises(KeyboardInterrupt), database(tmp_path / "sql", 1, 1 << 20) as connection:  # noqa: PT012
            timer.start()
            connection.execute("SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b")
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("words", "kind"), [("failed to offload", MemoryError), ("conflict on", duckdb.TransactionException)]
)
def test_memory_that_ends_at_a_commit_is_no_bug(
    tmp_path: Path, words: str, kind: type[BaseException]
) -> None:
    """DuckDB reports it as an error of the transaction."""
    with pytest.raises(kind, match=words), database(tmp_path / "sql", 1, 1 << 20):
        raise duckdb.TransactionException(f"TransactionContext Error: Failed to commit: {words} data block")
