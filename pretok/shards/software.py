"""Which versions of libraries made shards, and whether those that are here may go on with them.

Input: what part records and a manifest say of software. Output: the versions of this process; all that worked on a
folder; MismatchError where another engine would give other ids to the rest.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pretok.base.console import Console
from pretok.base.errors import MismatchError
from pretok.base.version import PRETOK_VERSION

PACKAGES = ("gigatoken", "tokenizers", "pyarrow", "numpy", "numba")
"""What could change a byte of the shards."""
ENGINES = PACKAGES[:2]
"""What decides ids. The others decide bytes of ledgers at most."""


@cache
def software() -> dict[str, str]:
    """The versions of this process."""
    return {
        "pretok": PRETOK_VERSION,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def all_software(used: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Every version that was used, of each package: `20.0.0`, or `20.0.0, 21.0.0`."""
    found: dict[str, set[str]] = {}
    for versions in used:
        for name, each in versions.items():
            found.setdefault(name, set()).update(each.split(", "))
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def refuse_other_engine(shards: Path, made: Mapping[str, str], console: Console) -> None:
    """MismatchError where an engine of another version made what is in `shards`; a notice of other packages."""
    now = software()
    others = [name for name in made if name in now and made[name] != now[name]]
    if engines := [name for name in others if name in ENGINES]:
        name = engines[0]
        raise MismatchError(
            f"{shards} holds ids of {name} {made[name]}, and {os.uname().nodename} has {name} {now[name]}, which may "
            f"give other ids to the same text: pip install {name}=={made[name].rpartition(', ')[2]}, or use another "
            "--out folder"
        )
    if others:
        told = ", ".join(f"{name} {made[name]} (now {now[name]})" for name in others)
        console.notice(
            f"what is in {shards} was made with {told}: ids are the same, bytes of ledgers may differ"
        )
