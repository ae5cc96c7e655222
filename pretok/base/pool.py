"""Workers of this node: processes forked from one that has loaded everything and has a single thread.

Input: tasks for `Processes.submit`. Output: a future of each outcome. A thread of the driver waits for each worker.
Processes starts one process, the nursery, which imports what tasks need while the driver still plans, loads what
`prepare` asks for, such as a tokenizer, and forks a worker whenever one is asked for: a worker has nothing to import,
and shares the pages of what is loaded with the others.

Why the fork is safe: a fork copies one thread, and a lock that another one held would stay locked for ever. The driver
has threads; the nursery runs imports and functions that start none, and its variables tell libraries to start no
threads. The one that Arrow's allocator starts (jemalloc) handles forks itself. DuckDB and Arrow's readers start threads
when they first work: in a worker, after the fork.

A worker dies with the nursery (PR_SET_PDEATHSIG), the nursery with the driver, whose end of their socket the kernel
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
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from pretok.base.begin import SIGNALS
from pretok.base.children import child_environment
from pretok.base.console import Counts
from pretok.base.errors import EngineLost
from pretok.base.failures import TaskError, task_error
from pretok.base.startup import collect_seldom

PR_SET_PDEATHSIG = 1
Send = Callable[[Counts], object]
HERE = b"here "
"""Before the name of a module whose function the nursery runs itself."""
Result = TypeVar("Result")


@dataclass(slots=True)
class Outcome(Generic[Result]):
    """The result or error of one task, and what its last try took. If the worker died, only the error is known."""

    result: Result | TaskError
    node: str = ""
    """Host name."""
    began: float = 0.0
    """Seconds since 1970 by the node's clock."""
    seconds: float = 0.0
    """How long it ran."""
    peak: int = 0
    """Highest memory of its process so far, in bytes."""
    counts: Counts = field(default_factory=dict)
    """Increments that were not reported before the end."""
    index: int = -1
    """The index of the item in the list; the driver sets it."""
    tries: int = 1
    """How often the item was tried; the driver sets it."""


class Processes:
    """Up to `workers` processes, each with `variables` in its environment.

    run: a top-level function that a worker calls as `run(task, item, send)`; send: sends increments to the driver. One
    more task than there are workers may be in flight: the first worker to finish has the next one at once.
    """

    def __init__(self, workers: int, variables: dict[str, str], run: Callable[..., Outcome[Any]]) -> None:
        self.workers, self.in_flight = workers, workers + 1
        self._run = run
        self._threads = ThreadPoolExecutor(workers)
        self._own = threading.local()
        """The worker of each thread."""
        self._asked, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # a message stays one
        """The socket on which the nursery is asked for workers."""
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import nurse; nurse({theirs.fileno()})"
        )
        # The child inherits the mask: a signal that comes before it runs `nurse` waits until it is ignored there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            # The nursery alone keeps its end, so that `send` fails here once it is dead.
            with theirs:
                self._nursery = subprocess.Popen(
                    [sys.executable, "-c", code],
                    env=child_environment() | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # that of the driver is for results
                    pass_fds=(theirs.fileno(),),
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def load(self, module: str) -> None:
        """Have the nursery import a module, in the background."""
        self._asked.send(module.encode())

    def submit(self, task: Callable[..., Any], item: Any, on_report: Send) -> Future[Outcome[Any]]:
        """Have a worker do a task. on_report: gets what the worker sends, in a thread.

        The future raises EngineLost if no worker can be had, EOFError if the worker dies. Raises what pickle raises
        for a task or item that it cannot write.
        """
        return self._threads.submit(
            self._ask, _module(task), pickle.dumps((self._run, task, item)), on_report
        )

    def prepare(self, function: Callable[..., Any], item: Any) -> Future[Outcome[Any]]:
        """Have the nursery run a function that starts no thread, before it forks more workers.

        They share what the function loads. The future raises EngineLost if the nursery died.
        """
        return self._threads.submit(self._ask_nursery, _module(function), (self._run, function, item))

    def _ask_nursery(self, module: bytes, job: tuple[object, ...]) -> Outcome[Any]:
        with self._connect(HERE + module) as nursery:
            try:
                nursery.send_bytes(pickle.dumps(job))
                outcome: Outcome[Any] = nursery.recv()
            except (EOFError, OSError) as error:
                raise _parent_died(error) from error
            return outcome

    def _ask(self, module: bytes, job: bytes, on_report: Send) -> Outcome[Any]:
        """Return the outcome of a job; runs in a thread, which has a worker forked for its first job."""
        worker: Connection | None = getattr(self._own, "worker", None)
        if worker is None:
            self._own.worker = worker = self._connect(module)
        try:
            worker.send_bytes(job)
            while not isinstance(answer := worker.recv(), Outcome):
                on_report(answer)
            return answer
        except (EOFError, OSError):
            # The next job of this thread has a new worker forked.
            self._own.worker = None
            died = f"its worker process on {os.uname().nodename} died, killed or out of memory"
            # Only this task is lost, and the engine tries it again: no EngineLost, which ends the job.
            raise EOFError(f"{died}; fewer --workers leave each more") from None

    def _connect(self, message: bytes) -> Connection:
        """Return a connection whose other end the nursery gets with a message. Raises EngineLost."""
        ours, theirs = socket.socketpair()
        try:
            # The other process alone keeps its end, so that `recv` ends here when it dies.
            with theirs:
                socket.send_fds(self._asked, [message], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise _parent_died(error) from error
        return Connection(ours.detach())

    def close(self) -> None:
        """End the nursery and with it all workers, whatever they do."""
        # The kernel kills the workers with it, and each thread that waits for an answer meets an end of file.
        self._nursery.kill()
        self._nursery.wait()
        self._asked.close()  # a thread that is about to ask for a worker meets an error
        self._threads.shutdown(cancel_futures=True)


def _module(task: Callable[..., Any]) -> bytes:
    name: str = getattr(task, "func", task).__module__  # of a `partial` too
    return name.encode()


def _parent_died(error: Exception) -> EngineLost:
    return EngineLost(
        f"the parent process of the workers died: {error}; run the same command again to continue"
    )


def nurse(driver: int) -> None:
    """Fork a worker for each connection that the driver sends over this socket, until the driver is gone.

    Or run the function of the connection here, see `Processes.prepare`.
    A module that is asked for is imported, and its `preload` called, which loads more than imports do but starts no
    thread.
    """
    # A terminal and Slurm send them to all processes; they are meant for the driver, which ends its workers.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a worker: the kernel reaps it
    collect_seldom()
    loaded: set[bytes] = set()
    with socket.socket(fileno=driver) as asked:
        while True:
            message, fds, *_ = socket.recv_fds(asked, 1 << 10, 1)
            if not message:  # the driver is gone
                return
            name = message.removeprefix(HERE)
            with contextlib.suppress(Exception):  # the worker meets it again and says so
                module = importlib.import_module(name.decode())
                if name not in loaded and hasattr(module, "preload"):
                    module.preload()
            loaded.add(name)
            if not fds:
                continue
            if name != message:
                with contextlib.suppress(EOFError, OSError), Connection(fds[0]) as asking:
                    _answer(asking)
                continue
            # Before the freeze, which would keep garbage for ever.
            gc.collect()
            gc.freeze()  # a worker's search for garbage would copy every page that it shares
            me = os.getpid()
            # Only this thread could hold a lock (see the module), and between two requests it holds none.
            if os.fork() == 0:
                try:
                    # In a worker this end would outlive the nursery and hide its death from the driver.
                    asked.close()
                    serve(Connection(fds[0]), me)
                finally:
                    # What is open here belongs to the nursery, so no exit handler may run and no buffer be written.
                    os._exit(0)
            # Open here, it would hide the worker's death from the driver; later workers would inherit it.
            os.close(fds[0])


def serve(driver: Connection, nursery: int) -> None:
    """Run the tasks that the driver sends until it is gone. Never returns: what is open here belongs to the nursery."""
    # With it ignored, a worker could not learn how processes of its own end.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A fork clears this, so each worker asks for it. The signal comes when the thread that forked ends, which
    # lives as long as the nursery.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(EOFError, OSError):
        while os.getppid() == nursery:  # else it died before that call
            _answer(driver)


def _answer(driver: Connection) -> None:
    """Run one job that the driver sends."""
    job = driver.recv_bytes()
    try:
        run, task, item = pickle.loads(job)
        # Pickled before anything is sent: half a pickle in the socket could not be taken back.
        answer = pickle.dumps(run(task, item, driver.send))
    except BaseException as error:  # of the import of its module, or of a result that no pickle holds
        answer = pickle.dumps(Outcome(task_error(error)))
    driver.send_bytes(answer)
