"""The environment of a Python process of ours that another one starts.

Input: this process. Output: its environment, in which the child finds `pretok` and `train` where they are here,
whatever the working directory, installed or not.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])


def child_environment() -> dict[str, str]:
    """The variables of this process, with the folder of this code first in PYTHONPATH."""
    paths = [ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
