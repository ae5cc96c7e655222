"""Workers of this node: processes forked from one that has loaded everything and has a single thread.

Input: jobs for `Pool.submit`. Output: what each returned. A Pool starts one process, the nursery, which imports what
jobs need while the driver still plans, and forks a worker whenever one is asked for: a worker has nothing to import,
and shares the pages of what is loaded with the others.

Why the fork is safe: a fork copies one thread, and a lock that another one held stays locked for ever. The driver has
threads; the nursery runs nothing but imports, and its variables tell libraries to start no threads. The one that
Arrow's allocator starts (jemalloc) takes care of forks itself. Numba's compiled loops, DuckDB and Arrow's readers start
theirs where they first work: in a worker, behind the fork.

A worker ends with the nursery (PR_SET_PDEATHSIG), the nursery with the driver, whose end of their socket the kernel
closes however the driver dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from pretok.base.children import child_environment
from pretok.base.console import Counts

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""A terminal and Slurm send them to all processes; they are meant for the driver, which ends its workers."""
PR_SET_PDEATHSIG = 1
Send = Callable[[Counts], None]


class Pool:
    """Up to `workers` processes, each with `variables` in its environment.

    A job is a top-level function of a module, called with the arguments of its submission and a function that sends
    increments to the driver.
    """

    def __init__(self, workers: int, variables: dict[str, str]) -> None:
        self.workers = self.in_flight = workers
        self._variables = variables
        self._nursery: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._idle: list[Connection] = []
        self._done: dict[Connection, Any] = {}
        self._counts: Counter[str] = Counter()

    def submit(self, module: str, function: Callable[..., Any], *arguments: Any) -> Connection:
        """Have a worker call `function(*arguments, send)`. module: what a new worker should have loaded. Returns what
        the job is waited for by. Raises OSError where no worker can be had, and what pickle raises for arguments that
        it cannot write."""
        job = pickle.dumps((function, arguments, True))
        worker = self._idle.pop() if self._idle else self._new(module)
        with contextlib.suppress(OSError):  # it died while it had nothing to do: `wait` finds out
            worker.send_bytes(job)
        return worker

    def load(self, module: str) -> None:
        """Have the nursery import a module, which is not waited for."""
        if self._nursery is None:
            self._nursery = self._start()
        self._nursery[1].send(module.encode())

    def warm(self, tasks: int, module: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Have the workers that so many tasks need call `function(*arguments, send)` before them, whatever becomes of
        it."""
        job = pickle.dumps((function, arguments, False))
        while len(self._idle) < min(self.workers, tasks):
            self._idle.append(self._new(module))
        for worker in self._idle:
            with contextlib.suppress(OSError):  # as in `submit`
                worker.send_bytes(job)

    def _new(self, module: str) -> Connection:
        """A connection to a worker that the nursery forks once it has imported `module`."""
        if self._nursery is None:
            self._nursery = self._start()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._nursery[1], [module.encode()], [theirs.fileno()])
        return Connection(ours.detach())

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """The nursery, and where it is asked for workers."""
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # a message stays one
        # The child inherits the mask: a signal that comes before it runs `nurse` waits until it is ignored there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        with theirs:
            code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import nurse; nurse({theirs.fileno()})"
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    env=child_environment() | self._variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # that of the driver is for results
                    pass_fds=(theirs.fileno(),),
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return process, ours

    def take_reports(self) -> Counts:
        """The increments that `wait` saw since the last call."""
        counts, self._counts = dict(self._counts), Counter()
        return counts

    def wait(self, workers: list[Connection], seconds: float) -> list[Connection]:
        """Those of `workers` that are done or have died, after `seconds` at most."""
        finished = []
        for worker in wait(workers, seconds):
            assert isinstance(worker, Connection)
            try:
                done, said = worker.recv()
            except (EOFError, OSError):
                worker.close()
                done, said = True, None
            if done:
                self._done[worker] = said
                finished.append(worker)
            else:
                self._counts.update(said)
        return finished

    def get(self, worker: Connection) -> Any:
        """What a finished job returned, or the exception that kept it from that; EOFError where its worker died."""
        returned = self._done.pop(worker)
        if worker.closed:
            return EOFError(
                f"its worker process on {os.uname().nodename} died, killed or out of memory; fewer --workers leave "
                "each more"
            )
        self._idle.append(worker)
        return returned

    def cancel(self, workers: Sequence[Connection]) -> None:
        """End what runs, if anything does: all workers, as they end together. Others are started for the next job."""
        for worker in workers:
            worker.close()
        if workers:
            self.close()

    def close(self) -> None:
        """End the nursery and with it all workers, whatever they do."""
        if self._nursery is not None:
            process, asked = self._nursery
            self._nursery = None
            process.kill()
            process.wait()
            asked.close()
        while self._idle:
            self._idle.pop().close()


def nurse(driver: int) -> None:
    """Fork a worker for each connection that the driver sends over this socket, until the driver is gone.

    A module that is asked for is imported, and its `preload` called: what loads more than imports do, and no thread.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a worker: the kernel reaps it
    loaded: set[bytes] = set()
    with socket.socket(fileno=driver) as asked:
        while True:
            name, fds, *_ = socket.recv_fds(asked, 1 << 10, 1)
            if not name:  # the driver is gone
                return
            with contextlib.suppress(Exception):  # the worker meets it again and says so
                module = importlib.import_module(name.decode())
                if name not in loaded and hasattr(module, "preload"):
                    module.preload()
            loaded.add(name)
            if not fds:
                continue
            gc.collect()
            gc.freeze()  # a worker's search for garbage would copy every page that it shares
            me = os.getpid()
            if os.fork() == 0:
                asked.close()
                serve(Connection(fds[0]), me)
            os.close(fds[0])


def serve(driver: Connection, nursery: int) -> None:
    """Do what the driver sends until it is gone. Never returns: what is open here is the nursery's."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != nursery:  # it died before that call
        os._exit(0)
    with contextlib.suppress(EOFError, OSError):
        while True:
            job = driver.recv_bytes()
            answered = True
            try:
                function, arguments, answered = pickle.loads(job)
                answer = pickle.dumps(
                    (True, function(*arguments, lambda counts: driver.send((False, counts))))
                )
            except BaseException as error:  # of the job's way to and fro: what a task raises is its result
                text = f"{type(error).__name__}: {error}"
                answer = pickle.dumps((True, RuntimeError(text)))
            if answered:
                driver.send_bytes(answer)
    os._exit(0)
