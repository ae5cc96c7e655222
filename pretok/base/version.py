"""The version of the program, and a check of the versions of packages that decide results."""

from __future__ import annotations

import os
from importlib.metadata import version

from pretok.base.errors import UsageError

PRETOK_VERSION = "1.0.0rc1"
"""pyproject.toml reads it from here."""


def refuse_untried(package: str, *known: str) -> None:
    """Raise UsageError if the installed version begins with none of the known ones."""
    found = version(package)
    if not any(f"{found}.".startswith(f"{release}.") for release in known):
        raise UsageError(
            f"{package} {found} on {os.uname().nodename} is not known to work with this version of pretok; known are "
            f"{', '.join(f'{release}.*' for release in known)}: pip install '{package}=={known[-1]}.*'"
        )
