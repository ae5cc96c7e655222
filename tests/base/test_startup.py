"""A process of ours loads what it needs: no pandas, and no compiled code before it is called."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import ROOT

HIDE = """
import sys
from pretok.base.startup import without_pandas
without_pandas()
import numpy, pyarrow
column = pyarrow.array(numpy.arange(3))
assert pyarrow.scalar("x").as_py() == "x" and pyarrow.chunked_array([column]).to_numpy().sum() == 3
assert "pandas" not in sys.modules
assert column.to_pandas().tolist() == [0, 1, 2] and "pandas" in sys.modules
import pandas
assert pyarrow.Table.from_pandas(pandas.DataFrame({"a": [1]})).num_rows == 1
"""
TASKS = """
import sys
import pretok.vocab.counts.count_task, pretok.shards.tokenize_task
from pretok.kernels.compile import Kernel
from pretok.kernels.hashing import hash_bytes
assert isinstance(hash_bytes, Kernel)
loaded = [k for m in list(sys.modules.values()) for k in vars(m).values() if isinstance(k, Kernel) and k.loaded]
assert not loaded, loaded
assert not {"pandas", "datasets", "ray", "torch", "duckdb", "rich", "typer", "pydantic"} & set(sys.modules)
"""


@pytest.mark.parametrize("code", [HIDE, TASKS], ids=["arrow without pandas", "tasks"])
def test_a_process_loads_what_it_needs(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
