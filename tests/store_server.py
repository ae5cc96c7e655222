"""An S3 server on loopback in a thread of the test. It serves the files of a folder, slowly or with faults if asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import ThreadingHTTPServer
from pathlib import Path

from benchmarks.serving import Handler

BUCKET = "bucket"


class Server:
    """What a test sets and reads.

    endpoint: for AWS_ENDPOINT_URL. asked: (method, object, range) of each request. fault: from the object and the
    number of a request to what happens instead of an answer: a status, "hang", "cut", or None. tag: the version of all
    objects.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, str, str | None]] = []
        self.fault: Callable[[str, int], int | str | None] = lambda name, number: None
        self.latency = 0.0
        self.sent = 0
        self.endpoint = ""
        self.tag = "1"

    def gets(self, suffix: str = ".bin") -> list[tuple[str, str | None]]:
        """Return (object, range) of each GET of an object with this suffix."""
        return [
            (name, part) for method, name, part in self.asked if method == "GET" and name.endswith(suffix)
        ]


def environment(server: Server) -> dict[str, str]:
    """Return the environment variables of a user of this server."""
    secrets = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
    region = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    return {"AWS_ENDPOINT_URL": server.endpoint, **secrets, **region}


@contextmanager
def serve(folder: Path) -> Iterator[Server]:
    """Run a server while the context is open."""
    server = Server(folder)

    class Objects(Handler):
        def respond(self, *, with_body: bool) -> None:
            name, wanted = self.path.split("?")[0].removeprefix(f"/{BUCKET}/"), self.headers.get("Range")
            server.asked.append((self.command, name, wanted))
            fault = server.fault(name, len(server.asked))
            time.sleep(server.latency)
            path = server.folder / name
            if fault == "hang":
                time.sleep(1.2)
                self.close_connection = True
            elif isinstance(fault, int):
                self.send(fault, {}, b"")
            elif not path.is_file():
                self.send(404, {}, b"")
            else:
                data, code, headers = path.read_bytes(), 200, {}
                if wanted:
                    first, last = map(int, wanted.removeprefix("bytes=").split("-"))
                    headers["Content-Range"] = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
                    data, code = data[first : last + 1], 206
                headers |= {"ETag": f'"{server.tag}"', "Last-Modified": formatdate(0, usegmt=True)}
                headers["Content-Length"] = str(len(data))
                body = data[: len(data) // 2] if fault == "cut" else data
                self.close_connection = fault == "cut"
                self.send(code, headers, body if with_body else b"")
                server.sent += len(body) * with_body

    class Http(ThreadingHTTPServer):
        request_queue_size = 128

    http = Http(("127.0.0.1", 0), Objects)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    server.endpoint = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
