"""The version of the program, as files and logs name it, and what it was tried with of packages that decide results.

Input: the name of a package. Output: nothing, or UsageError where a version is installed that nobody tried.
"""

from __future__ import annotations

import os
from importlib.metadata import version

from pretok.base.errors import UsageError

PRETOK_VERSION = "0.1.0"
"""pyproject.toml takes it from here."""


def refuse_untried(package: str, *known: str) -> None:
    """UsageError where the installed version begins with none of the known ones."""
    found = version(package)
    if not any(f"{found}.".startswith(f"{one}.") for one in known):
        raise UsageError(
            f"{package} {found} on {os.uname().nodename} is not known to work with this version of pretok; known are "
            f"{', '.join(f'{one}.*' for one in known)}: pip install '{package}=={known[-1]}.*'"
        )
