"""Compilation of the hot loops: the decorator, and the folder where compiled code is cached.

Input: a signature. Output: a compiled function, cached on disk. Every function has exactly one signature: Numba names
a cached variant by counting the variants it sees, so two processes that start together and compile *different*
variants of one function could read each other's code. If several processes start together, one compiles a function and
the others wait and load it; on a file system without locks each writes the same file, atomically.

A function is loaded or compiled when it is first called, not when its module is imported: a worker calls a few of them,
and these contain the code of those they call. Loading all of them took each worker longer than importing Numba.

The name of the cache folder depends on the sources of all compiled modules, because Numba checks only the file of a
function and not those of the functions it calls. The folder is made in the first of these that can be written to:
NUMBA_CACHE_DIR, the package's own `__pycache__`, the user's cache folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.core.registry import cpu_target
from numba.extending import typeof_impl

from pretok.base.errors import OutputError, UsageError

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).parents[1]
FOLDERS = ("chat", "kernels", "read", "screen", "tokenizer", "vocab")
"""Folders with compiled functions. Every worker reads the sources in these, not in all folders."""


def source_digest() -> str:
    """Return 16 hexadecimal digits that depend on all modules that mention this one, for functions or constants."""
    digest = hashlib.blake2b(digest_size=8)
    # Sorted, and with its name: the digest depends on nothing but the files.
    for path in sorted(path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py")):
        source = path.read_bytes()
        if b"pretok.kernels.compile" in source:
            digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + source)
    return digest.hexdigest()


def _candidates() -> Iterator[Path]:
    if configured := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(configured)
    yield PACKAGE / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "pretok"


def cache_folder() -> Path:
    """Return the folder for compiled code, made if needed. Raises OutputError if none can be written to."""
    name = f"numba-{source_digest()}"
    refusals = []
    for base in _candidates():
        folder = base / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A file that is really made shows what permission bits do not: a full disk or a used-up quota.
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            refusals.append(str(error))
    raise OutputError(
        "no folder for compiled code can be written; set NUMBA_CACHE_DIR: " + "; ".join(refusals)
    )


# Numba looks at this when a function gets its cache, which is in `Kernel.compiled`, after every import.
numba.config.CACHE_DIR = str(cache_folder())


def _read_only(dtype: Any, dimensions: int = 1) -> Any:
    return types.Array(dtype, dimensions, "C", readonly=True)


U8 = _read_only(types.uint8)
"""A contiguous uint8 array that is only read; writable arrays are accepted too. I64 and U64 likewise."""
I64 = _read_only(types.int64)
U64 = _read_only(types.uint64)
BYTES = types.CPointer(types.uint8)
"""The data of a uint8 array (`array.ctypes` in compiled code), indexed in the same way. Functions that are called for
each byte or word take it, because an array as argument costs two atomic reference counts per call."""


_LOADING = threading.RLock()
"""Held while a function is loaded, which may load others. Several threads may call functions for the first time."""


def load_registries() -> None:
    """Load Numba's registries before its first function: a quarter of a second, which forked workers then share."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


COMPILING = "compiling, once on this machine"


def start_note() -> str:
    """Return what a step does before its first document, for its progress."""
    return "starting" if any(Path(numba.config.CACHE_DIR).glob("*/*.nbc")) else COMPILING


@contextlib.contextmanager
def _alone(function: Callable[..., Any]) -> Iterator[None]:
    """Lock a function so that one process compiles it at a time; nothing is locked if its code is cached."""
    folder, name = (
        Path(numba.config.CACHE_DIR),
        f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}",
    )
    with contextlib.ExitStack() as stack:
        # The lock file stays: once deleted, one process could wait for it while another locks a new one.
        if not any(folder.glob(f"*/{name}-*.nbc")):
            with contextlib.suppress(OSError):
                lock = stack.enter_context((folder / f"{name}.lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Kernel:
    """A function that is compiled for its one signature when Python or another kernel first calls it."""

    def __init__(self, function: Callable[..., Any], signature: Any, inline: bool) -> None:
        self.py_func = function
        self._signature = signature
        # NumPy's error model raises nothing on a division by zero, so the loops contain no check for it.
        self._options = {"nogil": True, "error_model": "numpy", "forceinline": inline}
        self.loaded: dict[bool, Any] = {}

    def compiled(self, part: bool = False) -> Any:
        """Return Numba's function, for the types of the signature only.

        part: as called by another kernel. That kernel contains its code, so it is neither cached by itself nor gets a
        wrapper for Python, which is most of what a small function takes to compile.
        """
        # Asked twice: most calls need no lock, and a thread that waited for it may find the function loaded.
        if part not in self.loaded:
            if numba.config.DISABLE_JIT:
                raise UsageError(
                    "NUMBA_DISABLE_JIT is set, but the loops of pretok must be compiled: unset it"
                )
            with _LOADING:
                if part not in self.loaded:
                    options = (
                        {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} if part else {"cache": True}
                    )
                    function: Any = numba.njit(**self._options, **options)(self.py_func)
                    with contextlib.nullcontext() if part else _alone(self.py_func):
                        function.compile(self._signature)
                    # From here on other types are an error, and not a second variant, see the module.
                    function.disable_compile()
                    self.loaded[part] = function
        return self.loaded[part]

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled()(*arguments)


def _type_of(kernel: Kernel, _context: Any) -> Any:
    """Return the Numba type of a kernel that another one calls."""
    return types.Dispatcher(kernel.compiled(part=True))


typeof_impl.register(Kernel)(_type_of)


def njit(signature: Any, inline: bool = False) -> Callable[[F], F]:
    """Compile for `signature`, or load it from the cache. The compiled code releases the GIL.

    inline: copy the code into every caller, because a call costs as much as scanning several bytes.
    """

    def decorate(function: F) -> F:
        return cast("F", Kernel(function, signature, inline))

    return decorate
