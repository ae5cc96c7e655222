"""A server on loopback that answers as S3 does, with the latency and bandwidth of a network, for benchmarks and tests.

    python -m benchmarks.serving PORT FOLDER LATENCY BANDWIDTH    # seconds; bytes a second in all

Input: a folder, whose files are the objects s3://bucket/NAME. Output: its endpoint, and how much it was asked for.
Standard library only; moto would do, but reads all of an object for each range.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BUCKET, COUNT = "bucket", "/count"


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


def serve(port: int, folder: Path, latency: float, bandwidth: float) -> None:
    """Serve until the process ends."""
    lock, state = threading.Lock(), {"free": 0.0, "requests": 0, "bytes": 0}

    class Objects(Handler):
        def respond(self, *, with_body: bool) -> None:
            if self.path == COUNT:
                self.send(200, {}, json.dumps(state).encode())
                return
            time.sleep(latency)
            path = folder / self.path.split("?")[0].removeprefix(f"/{BUCKET}/")
            if not path.is_file():
                self.send(404, {}, b"")
                return
            size = path.stat().st_size
            start, end, code = 0, size, 200
            headers = {"ETag": '"1"', "Last-Modified": formatdate(0, usegmt=True), "Accept-Ranges": "bytes"}
            if wanted := self.headers.get("Range"):
                first, last = wanted.removeprefix("bytes=").split("-")
                start, end, code = int(first), min(int(last or size) + 1, size), 206
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            sent = end - start if with_body else 0
            with lock:  # all answers share one line: what is asked for later is sent later
                state["free"] = max(state["free"], time.monotonic()) + sent / bandwidth
                state["requests"] += 1
                state["bytes"] += sent
                until = state["free"]
            time.sleep(max(0.0, until - time.monotonic()))
            with path.open("rb") as file:
                file.seek(start)
                self.send(code, headers | {"Content-Length": str(end - start)}, file.read(sent))

    ThreadingHTTPServer.request_queue_size = 128  # with the default of 5, the sixth client waits a second
    ThreadingHTTPServer(("127.0.0.1", port), Objects).serve_forever()


@contextmanager
def server(folder: Path, latency: float, bandwidth: float = 250e6) -> Iterator[dict[str, str]]:
    """The environment of clients of a server in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = map(str, (port, folder, latency, bandwidth))
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.serving", *arguments])
    keys = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    try:
        until = time.monotonic() + 60
        while True:
            try:
                count(environment)
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        yield environment
    finally:
        process.terminate()
        process.wait()


def count(environment: dict[str, str]) -> dict[str, int]:
    """The requests that the server had so far, and the bytes that it sent."""
    with urllib.request.urlopen(environment["AWS_ENDPOINT_URL"] + COUNT, timeout=5) as answer:
        return dict(json.loads(answer.read()))


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
