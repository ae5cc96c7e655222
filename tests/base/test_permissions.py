"""Folders that may be written but not read, or not entered, by a user who is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UNPRIVILEGED = """
import os, sys
from pathlib import Path
from pretok.base.storage import write_bytes
from pretok.shards.manifest import load_manifest

def told():
    write_bytes(Path(sys.argv[1]) / "a", b"whole")
    try:
        load_manifest(Path(sys.argv[2]))
    except Exception as error:
        return f"{type(error).__name__} {error}"

if os.getuid() == 0:  # root may read everything
    told()  # loads all modules, which may lie where others must not look
    (Path(sys.argv[1]) / "a").unlink()
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
print(told())
"""


def test_a_folder_that_may_not_be_read_is_no_missing_and_no_failed_file() -> None:
    data = Path(tempfile.mkdtemp(dir="/tmp"))  # every folder above pytest's own is closed to others
    try:
        data.chmod(0o755)
        drop, locked = data / "drop", data / "locked"
        drop.mkdir()
        locked.mkdir()
        (locked / "manifest.json").write_text("{}")
        drop.chmod(0o733 if os.getuid() == 0 else 0o333)
        locked.chmod(0o700 if os.getuid() == 0 else 0)
        command = [sys.executable, "-c", UNPRIVILEGED, str(drop), str(locked)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        drop.chmod(0o755)
        assert [(file.name, file.read_bytes()) for file in drop.iterdir()] == [("a", b"whole")]
    finally:
        shutil.rmtree(data)
    assert told == f"PermissionError [Errno 13] Permission denied: '{locked}/manifest.json'\n"
