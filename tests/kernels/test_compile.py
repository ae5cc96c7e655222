"""Compiled code is cached where it can be, and shared by processes that start together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from pretok.base.errors import OutputError
from pretok.kernels import compile as _numba


@pytest.fixture
def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the way of the package's cache; it stands for a read-only folder, which does not stop root."""
    path = tmp_path / "file"
    path.touch()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(_numba, "PACKAGE", path)
    return path


def test_the_first_folder_that_can_be_written_is_taken(
    blocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert _numba.cache_folder().parent == tmp_path / "home" / "pretok"
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(OutputError, match="set NUMBA_CACHE_DIR"):
        _numba.cache_folder()


@pytest.mark.parametrize("name", ["hashing.py", "unicode.py", "compile.py"])
def test_another_source_takes_another_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _numba.source_digest()
    for path in _numba.PACKAGE.rglob("*.py"):
        copy = tmp_path / path.relative_to(_numba.PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(_numba, "PACKAGE", tmp_path)
    assert _numba.source_digest() == before
    with (tmp_path / "kernels" / name).open("a") as file:
        file.write("# changed\n")
    assert _numba.source_digest() != before


def test_all_folders_with_compiled_functions_are_looked_at() -> None:
    # Those two compile nothing.
    uses = re.compile(rb"from pretok.kernels.compile import (?!load_registries\n|start_note\n)")
    found = {path for path in _numba.PACKAGE.rglob("*.py") if uses.search(path.read_bytes())}
    assert {path.relative_to(_numba.PACKAGE).parts[0] for path in found} == set(_numba.FOLDERS)


COMPILES = """
import threading
from concurrent.futures import ThreadPoolExecutor
from numpy import array, uint8, zeros
from numba.core import event
from pretok.kernels.hashing import hash_documents
events = event.RecordingListener()
event.register("numba:compile", events)
together = threading.Barrier(8)
def first(_):
    together.wait()
    return int(hash_documents(zeros(9, uint8), array([0, 9]), 1)[0])
with ThreadPoolExecutor(8) as pool:
    assert len(set(pool.map(first, range(8)))) == 1
print(bool(events.buffer))
"""


def test_one_process_compiles_and_the_others_load_what_it_kept(tmp_path: Path) -> None:
    """Though each has eight threads that call the function first at once."""
    env, command = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, [sys.executable, "-c", COMPILES]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env) for _ in range(2)
    ]
    assert sorted(process.communicate()[0].strip() for process in processes) == ["False", "True"]
    [folder] = tmp_path.iterdir()
    assert folder.name == f"numba-{_numba.source_digest()}"
