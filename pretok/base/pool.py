"""Workers of this node: processes forked from one that has loaded everything and has a single thread.

Input: jobs for `Pool.submit`. Output: a future of what each returns. A thread of the driver waits for each worker. A
Pool starts one process, the nursery, which imports what
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
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import LifoQueue
from typing import Any

from pretok.base.children import child_environment
from pretok.base.console import Counts
from pretok.base.errors import EngineLost

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""A terminal and Slurm send them to all processes; they are meant for the driver, which ends its workers."""
PR_SET_PDEATHSIG = 1
Send = Callable[[Counts], object]


class Pool:
    """Up to `workers` processes, each with `variables` in its environment.

    A job is a top-level function of a module, called with the arguments of its submission and a function that sends
    increments to the driver.
    """

    def __init__(self, workers: int, variables: dict[str, str]) -> None:
        self.workers = self.in_flight = workers
        self._variables = variables
        self._nursery: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._begin()

    def _begin(self) -> None:
        self._threads = [ThreadPoolExecutor(1) for _ in range(self.workers)]
        """A thread for each worker, which waits for it."""
        self._idle: LifoQueue[ThreadPoolExecutor] = LifoQueue()
        for thread in reversed(self._threads):
            self._idle.put(thread)
        self._own = threading.local()
        """The worker of each thread."""

    def submit(
        self, module: str, function: Callable[..., Any], *arguments: Any, on_report: Send = lambda _: None
    ) -> Future[Any]:
        """Have a worker call `function(*arguments, send)`. module: what a new worker should have loaded; on_report:
        gets what the worker sends, in a thread.

        The future raises EOFError where its worker died, EngineLost where no worker can be had, and RuntimeError where
        the job raises. Raises what pickle raises for arguments that it cannot write.
        """
        job, asked = pickle.dumps((function, arguments)), self._asked()
        thread = self._idle.get()
        future = thread.submit(self._ask, asked, module.encode(), job, on_report)
        future.add_done_callback(lambda _: self._idle.put(thread))
        return future

    def warm(self, tasks: int, module: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Have each worker that so many tasks need call `function(*arguments, send)` before them, whatever becomes of
        it."""
        job, asked = pickle.dumps((function, arguments)), self._asked()
        for thread in self._threads[:tasks]:
            thread.submit(self._ask, asked, module.encode(), job, lambda _: None)

    def load(self, module: str) -> None:
        """Have the nursery import a module, which is not waited for."""
        self._asked().send(module.encode())

    def _ask(self, asked: socket.socket, module: bytes, job: bytes, on_report: Send) -> Any:
        """What a job returned; runs in a thread, which has a worker forked for its first job."""
        worker: Connection | None = getattr(self._own, "worker", None)
        if worker is None:
            ours, theirs = socket.socketpair()
            self._own.worker = worker = Connection(ours.detach())
            try:
                with theirs:
                    socket.send_fds(asked, [module], [theirs.fileno()])
            except OSError as error:
                raise EngineLost(
                    f"the parent of the workers died: {error}; run the same command again to continue"
                ) from error
        try:
            worker.send_bytes(job)
            while True:
                done, said = worker.recv()
                if done:
                    break
                on_report(said)
        except (EOFError, OSError):
            self._own.worker = None
            raise EOFError(
                f"its worker process on {os.uname().nodename} died, killed or out of memory; fewer --workers leave "
                "each more"
            ) from None
        if isinstance(said, Exception):
            raise said
        return said

    def _asked(self) -> socket.socket:
        """Where the nursery, which is started if there is none, is asked for workers."""
        if self._nursery is None:
            ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # a message stays one
            # The child inherits the mask: a signal that comes before it runs `nurse` waits until it is ignored there.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import nurse; nurse({theirs.fileno()})"
            try:
                with theirs:
                    process = subprocess.Popen(
                        [sys.executable, "-c", code],
                        env=child_environment() | self._variables,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,  # that of the driver is for results
                        pass_fds=(theirs.fileno(),),
                    )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._nursery = process, ours
        return self._nursery[1]

    def close(self) -> None:
        """End the nursery and with it all workers, whatever they do. Others are started for the next job."""
        if self._nursery is not None:
            process, asked = self._nursery
            self._nursery = None
            process.kill()
            process.wait()
            asked.close()  # a thread that is about to ask for a worker meets an error
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        self._begin()


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
            try:
                function, arguments = pickle.loads(job)
                answer = pickle.dumps(
                    (True, function(*arguments, lambda counts: driver.send((False, counts))))
                )
            except BaseException as error:  # of the job's way to and fro: what a task raises is its result
                answer = pickle.dumps((True, RuntimeError(f"{type(error).__name__}: {error}")))
            driver.send_bytes(answer)
    os._exit(0)
