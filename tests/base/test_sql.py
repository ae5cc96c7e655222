"""DuckDB's errors as ours."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from pretok.base.sql import database


def test_ctrl_c_in_a_query_is_one(tmp_path: Path) -> None:
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), database(tmp_path / "sql", 1, 1 << 20) as connection:  # noqa: PT012
        timer.start()
        connection.execute("SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b")
    timer.join()
