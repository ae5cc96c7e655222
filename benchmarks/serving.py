"""HTTP servers on loopback for benchmarks and tests: how a request is answered, and a server in a process of its own.

Input: a module that serves when it is run with arguments. Output: its endpoint while a context is open. Standard
library only.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler


class Handler(BaseHTTPRequestHandler):
    """Answers HEAD and GET by `respond`, which calls `send`; nothing is logged."""

    protocol_version = "HTTP/1.1"
    wbufsize, disable_nagle_algorithm = -1, True  # else each answer waits 40 ms for an acknowledgement

    def do_HEAD(self) -> None:
        self.respond(with_body=False)

    def do_GET(self) -> None:
        self.respond(with_body=True)

    def respond(self, *, with_body: bool) -> None:
        """Answer a request; without its body that of HEAD."""
        raise NotImplementedError

    def send(self, code: int, headers: dict[str, str], body: bytes) -> None:
        """Send an answer. Content-Length is that of `body` unless `headers` says another."""
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def running(arguments: Callable[[int], Sequence[str]], ask: Callable[[str], object]) -> Iterator[str]:
    """The endpoint of `python -m ARGUMENTS`, which serves a free port, once `ask` gets an answer there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", *arguments(port)])
    try:
        endpoint, until = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while True:
            try:
                ask(endpoint)
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        yield endpoint
    finally:
        process.terminate()
        process.wait()
