"""Folders that may be written but not read, or not entered, by a user who is not root."""

from __future__ import annotations

import os

from support import as_nobody, open_to_all

SETUP = """
import sys
from pathlib import Path
from pretok.base.storage import write_bytes
from pretok.shards.manifest import load_manifest

def told():
    write_bytes(Path(sys.argv[1]) / "a", b"whole")
    try:
        load_manifest(Path(sys.argv[2]))
    except Exception as error:
        return f"{type(error).__name__} {error}"

told()  # loads all modules, which may lie where others must not look
(Path(sys.argv[1]) / "a").unlink()
"""


def test_a_folder_that_may_not_be_read_is_no_missing_and_no_failed_file() -> None:
    root = os.getuid() == 0
    with open_to_all() as data:
        drop, locked = data / "drop", data / "locked"
        drop.mkdir()
        locked.mkdir()
        (locked / "manifest.json").write_text("{}")
        drop.chmod(0o733 if root else 0o333)
        locked.chmod(0o700 if root else 0)
        told = as_nobody(SETUP, "print(told())", drop, locked)
        drop.chmod(0o755)
        assert [(file.name, file.read_bytes()) for file in drop.iterdir()] == [("a", b"whole")]
    assert told == f"PermissionError [Errno 13] Permission denied: '{locked}/manifest.json'\n"
