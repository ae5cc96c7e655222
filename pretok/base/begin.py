"""The first thing that our processes do: from here on a signal ends them with 75 and a sentence.

Input: SIGINT, SIGTERM and SIGUSR1 outside of a `StopFlag`: while a command loads, does short work, or ends. Output: a
KeyboardInterrupt, or, inside an import, the end of the process. It imports nothing that Python has not loaded.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def end_with_75() -> None:
    """Handle the signals from now on, unless the parent had them ignored, as shells do in the background.

    Call it only in a process of our own, before it imports anything else.
    """
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _on_signal)
    # Python drops the handlers before it frees its modules, 0.1 s before the end, when everything is done. Registered
    # first, this is called last, after all threads have ended.
    atexit.register(_ignore)


def interrupted() -> None:
    """Say that the process was interrupted and end it with 75; nothing of it is freed or written."""
    name = os.path.basename(sys.argv[0]).removesuffix(".py")  # noqa: PTH119 - pathlib takes 10 ms to load
    os.write(2, f"{name}: interrupted; run the same command again to continue\n".encode())
    os._exit(75)


def _on_signal(_: int, frame: FrameType | None) -> None:
    # Libraries and the callbacks of Python's import drop exceptions that are none of theirs. Nothing is under way that
    # a kill would harm.
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            interrupted()
        frame = frame.f_back
    raise KeyboardInterrupt


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
