"""The environment of a Python process that this one starts.

The child finds the same `pretok` and `train`, installed or not, whatever its working directory.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])


def child_environment() -> dict[str, str]:
    """Return the variables of this process, with the folder of this code first in PYTHONPATH."""
    # First: another pretok that is installed in the environment must not run in its place.
    paths = [ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
