"""The shards and the mix of a run -> copies on a faster part of the file system.

Input: `python -m pretok.stream.staging WORK FAST NODE NODES`, once on each node of a job. Output: each node's share of
FAST/shards, FAST/mix.json and its side files, and a line with what it cost. A file is there whole or not at all. Its
bytes are compared with the manifest while they are copied. A file that is there, as old and as large, is not copied
again, so the next link begins at once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pretok.base.errors import IntegrityError, MismatchError, PretokError
from pretok.base.lock import is_lock
from pretok.base.storage import TEMPORARY_SUFFIX, reading
from pretok.base.tree import TreeFile
from pretok.base.units import plural
from pretok.shards.manifest import has_manifest, load_manifest
from pretok.stream.tapes import FOLDER

BUFFER = 8 << 20


def stage(work: Path, fast: Path, node: int, nodes: int) -> tuple[int, int, int]:
    """Copy every `nodes`-th file from number `node` on; return (bytes copied, files copied, files there before).

    Raises MismatchError if FAST holds other shards, IntegrityError if a file of WORK is damaged, OutputError.
    """
    manifest = load_manifest(work / "shards")
    if has_manifest(fast / "shards"):
        there = load_manifest(fast / "shards", unfinished=False).fingerprint
        if manifest.was(there) is None:
            raise MismatchError(
                f"{fast / 'shards'} holds other shards than {manifest.folder}: name another folder as slurm.fast, or "
                "delete that one if no run reads it"
            )
    found = [path for name in ("shards", FOLDER) for path in (work / name).rglob("*") if path.is_file()]
    files = sorted(path for path in found if not is_lock(path) and path.suffix != TEMPORARY_SUFFIX)
    files += [path for path in (work / "mix.json",) if path.exists()]
    size = copied = 0
    for path in (mine := files[node::nodes]):
        to, state = fast / path.relative_to(work), path.stat()
        # Whole seconds: some file systems keep no finer time.
        if to.exists() and (to.stat().st_size, int(to.stat().st_mtime)) == (
            state.st_size,
            int(state.st_mtime),
        ):
            continue
        with TreeFile(to) as file:
            with reading(path), path.open("rb") as source:
                while data := source.read(BUFFER):
                    file.write(data)
            if path in manifest.roots and file.root != manifest.roots[path]:
                raise IntegrityError(f"{path} is damaged: run pretok verify {manifest.folder}")
            file.seal()
        # Last. A kill before it leaves a whole file with a newer time, which is copied again.
        os.utime(to, ns=(state.st_atime_ns, state.st_mtime_ns))
        size, copied = size + state.st_size, copied + 1
    return size, copied, len(mine) - copied


def main(arguments: Sequence[str]) -> int:
    """Copy this node's share, and print what it cost. Returns the exit code."""
    (work, fast), (node, nodes), began = map(Path, arguments[:2]), map(int, arguments[2:]), time.monotonic()
    try:
        size, copied, before = stage(work, fast, node, nodes)
    except PretokError as error:
        print(f"{os.uname().nodename}: {error}", file=sys.stderr)
        return error.exit_code
    print(
        f"{os.uname().nodename}: staged {plural(copied, 'file')}, {size / 1e9:.2f} GB, in {fast} in "
        f"{time.monotonic() - began:.1f} s; {before} were there"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
