"""Commands under strace, which kills them at a call of the system or lets such a call fail.

Each runs in a process that a server forks which has loaded the libraries and done nothing else: a new process takes
longer to load them than all the rest, and a fork of the tests' own process, which has run threads, may crash.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import walk_packages

from support import TASK_PATH, freeze

import pretok.base.lock
import pretok.base.storage
import pretok.documents.removal.remove_job
import pretok.kernels.hashing
import pretok.vocab.counts.buckets
import pretok.vocab.counts.count_job
from pretok.cli import run_command

CHANGES = (
    "write,pwrite64,writev,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,mkdir,mkdirat,fsync"
)
"""Calls between which files stand otherwise."""
CALL = re.compile(r"^(\d+) +(\w+)\((.*)", re.MULTILINE)
PATH = re.compile(r"(?<=[<\"])/[^\">]*")
"""In what strace shows of a call's arguments; a name in a folder that is open follows the folder's."""
NUMBER = re.compile(r"[0-9a-f]{8,}|\d+")


def can_trace() -> str:
    """Why strace cannot be used here, or an empty string."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        ["strace", "-f", "-o", os.devnull, "true"], capture_output=True, text=True, check=False
    )
    return f"strace may not trace here: {tried.stderr.strip()}" if tried.returncode else ""


def _serve() -> None:
    """For each command line that comes in, fork a process for it, which stops itself, and tell its id; for each id, how
    it ended."""
    for module in walk_packages(pretok.__path__, "pretok."):
        if not module.name.startswith("pretok.integrations"):  # packages of others, which load for seconds
            importlib.import_module(module.name)
    pretok.vocab.counts.buckets.BUCKET_BITS = 2  # as the fixture few_buckets of tests/conftest.py
    pretok.vocab.counts.buckets.BUCKETS = pretok.vocab.counts.count_job.BUCKETS = 4
    pretok.kernels.hashing._hash_documents.compiled()  # Numba loads half of itself with the first function
    for request in map(json.loads, sys.stdin):
        if isinstance(request, int):
            print(os.waitstatus_to_exitcode(os.waitpid(request, 0)[1]), flush=True)
            continue
        if request["line"][0] == "train":
            _load_train()
        child = os.fork()
        if child == 0:
            _run(**request)
        os.waitpid(child, os.WUNTRACED)
        print(child, flush=True)


@functools.cache
def _load_train() -> None:
    """Seconds of imports, and what a run asks of git, for the commands that want them alone."""
    for name in ("train.loop", "train.checkpoint.export", "torch._dynamo"):
        importlib.import_module(name)
    freeze()
    importlib.import_module("train.metrics").provenance()


def _train(arguments: list[str]) -> int:
    try:
        importlib.import_module("train.__main__").main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _run(line: list[str], said: str, heartbeat: float) -> None:
    code = 99
    try:
        for descriptor, path in enumerate((os.devnull, said, said)):
            os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), descriptor)
        pretok.base.storage.WAITS = (0.0, 0.0, 0.0)  # as in tests/conftest.py
        pretok.base.lock.HEARTBEAT = heartbeat
        pretok.documents.removal.remove_job._now = lambda manifest: "2026-01-01T00:00:00.000Z"
        faulthandler.enable(2)
        os.kill(os.getpid(), signal.SIGSTOP)
        code = _train(line[1:]) if line[0] == "train" else run_command(line)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": TASK_PATH},
    )
    atexit.register(server.communicate)
    return server


def _ask(request: object) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps(request), file=server.stdin, flush=True)
    return int(server.stdout.readline())


def traced(
    line: list[str], options: list[str] | None = None, meanwhile: Callable[[], None] | None = None
) -> tuple[int, str]:
    """Run a command line of pretok or train, under strace if there are options for it; its exit code, or minus its
    signal, and what it said. meanwhile: what is done when strace has stopped it, before it goes on."""
    heartbeat = pretok.base.lock.HEARTBEAT if meanwhile is None else 0.05  # as if it had stood still for long
    with tempfile.NamedTemporaryFile("r") as said:
        child = _ask({"line": line, "said": said.name, "heartbeat": heartbeat})
        with contextlib.ExitStack() as stack:
            told = iter(()) if options is None else stack.enter_context(_attached(child, options))
            os.kill(child, signal.SIGCONT)
            arrived, stopped = False, 0
            for text in told:
                if "--- SIGSTOP {" in text:
                    arrived, stopped = True, 0
                stopped += "--- stopped by SIGSTOP" in text
                if arrived and stopped >= len(list(Path(f"/proc/{child}/task").iterdir())):  # all its threads
                    if meanwhile is not None:
                        meanwhile()
                    arrived, meanwhile = False, None  # should it come to another thread, too
                    os.kill(child, signal.SIGCONT)
        return _ask(child), said.read()


@contextlib.contextmanager
def _attached(child: int, options: list[str]) -> Iterator[Iterator[str]]:
    """What strace tells of a process until its end."""
    with subprocess.Popen(
        ["strace", "-f", "-y", "-p", str(child), *options], stderr=subprocess.PIPE, text=True
    ) as tracer:
        assert tracer.stderr is not None
        while "attached" not in (told := tracer.stderr.readline()):
            assert told, "strace ended"
        yield iter(tracer.stderr)


def injected(line: list[str], paths: set[str], faults: tuple[tuple[str, str, str], ...]) -> tuple[int, str]:
    """The same, with errors of calls on these paths: (calls, error, at which of them)."""
    options = ["-o", os.devnull, "-e", f"trace={','.join(calls for calls, *_ in faults)}"]
    options += [part for path in paths for part in ("-P", path)]
    for calls, error, when in faults:
        options += ["-e", f"inject={calls}:error={error}:when={when}"]
    return traced(line, options)


def kill_points(line: list[str], folder: Path, most: int) -> list[tuple[str, int]]:
    """The calls that change files below a folder, each with its number among those of its name in its thread, as strace
    counts. Of calls that do the same to files whose names differ in numbers alone, `most`: the first, the last and
    some between them."""
    trace = folder.with_name("trace")
    code, said = traced(line, ["-o", str(trace), "-e", f"trace={CHANGES}"])
    assert code == 0, said
    counts: Counter[tuple[str, str]] = Counter()
    alike: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for thread, call, given in CALL.findall(trace.read_text(errors="replace")):
        counts[thread, call] += 1
        path = PATH.search(given)
        if path and path[0].startswith(f"{folder}/"):
            kind = call, NUMBER.sub("0", path[0])
            alike.setdefault(kind, []).append((call, counts[thread, call]))
    chosen = (
        points[n * (len(points) - 1) // max(1, most - 1)] if len(points) > most else points[n]
        for points in alike.values()
        for n in range(min(most, len(points)))
    )
    return sorted(set(chosen))


def signalled(
    line: list[str], name: str, call: str, when: str, meanwhile: Callable[[], None] | None = None
) -> tuple[int, str]:
    """The same, with a signal (its name without SIG) before such calls, in each thread."""
    options = ["-e", f"trace={call}", "-e", f"inject={call}:signal={name}:when={when}"]
    return traced(line, [*options, *(("-o", os.devnull) if meanwhile is None else ())], meanwhile)


if __name__ == "__main__":
    _serve()
