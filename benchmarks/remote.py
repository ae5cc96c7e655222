"""Inputs on an object store beside the same files on the disk, with the latency of a network.

Input: the corpus, and four times as much. Output: the speed of tokenizing it in one process from a server on this
machine, which answers what `s3fs` asks of S3 (HEAD, and GET of a range) LATENCY later, as a share of the speed from the
local files; and how many requests that were. The server takes processor time of its own on the same cores. Needs s3fs.

    python -m benchmarks.remote PORT FOLDER    # the server alone: the files of FOLDER are s3://corpus/NAME
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import recipe_of, tiny_files, warm_up
from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians
from benchmarks.serving import Handler, running

LATENCY = 0.05
LARGE = "1GiB"
"""The shards of a large corpus. This one's are small, so that a partition begins with each of its files, whose first
requests nothing hides."""
BUCKET = "corpus"
COUNT = "/requests-so-far"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def serve(port: int, folder: Path) -> None:
    """The files of a folder as objects of one bucket. moto would do, but reads all of an object for each range."""
    counter = itertools.count()

    class Objects(Handler):
        def respond(self, *, with_body: bool) -> None:
            if self.path == COUNT:
                self.send(200, {}, str(next(counter)).encode())
                return
            next(counter)
            time.sleep(LATENCY)
            path = folder / self.path.split("?")[0].removeprefix(f"/{BUCKET}/")
            if not path.is_file():
                self.send(404, {}, b"")
                return
            found = path.stat()
            start, end, code = 0, found.st_size, 200
            headers = {
                "ETag": f'"{found.st_mtime_ns:x}"',
                "Last-Modified": formatdate(found.st_mtime, usegmt=True),
            }
            if wanted := self.headers.get("Range"):
                first, last = wanted.removeprefix("bytes=").split("-")
                start, end, code = int(first), min(int(last) + 1, found.st_size), 206
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{found.st_size}"
            if not with_body:
                self.send(code, {**headers, "Content-Length": str(end - start)}, b"")
                return
            with path.open("rb") as file:
                file.seek(start)
                self.send(code, headers, file.read(end - start))

    ThreadingHTTPServer(("127.0.0.1", port), Objects).serve_forever()


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The endpoint of a server in a process of its own."""
    with running(lambda port: ["benchmarks.remote", str(port), str(folder)], requests_so_far) as endpoint:
        yield endpoint


def requests_so_far(endpoint: str) -> int:
    """How many requests the server had, those that asked this among them."""
    with urllib.request.urlopen(endpoint + COUNT, timeout=5) as answer:
        return int(json.loads(answer.read()))


def run_once(
    sources: dict[str, list[str]], tiny: str, vocab: Path, folder: Path, size: str | int = 0
) -> dict[str, float]:
    """Tokenize in this process: MB of text a second, and a second of CPU time. A first job with the file `tiny`, in the
    same place, bears the start-up: imports, the tokenizer, the connection."""
    from pretok.base.console import SILENT
    from pretok.base.execute import Engine
    from pretok.base.stop import StopFlag
    from pretok.shards.job import run_tokenize
    from pretok.shards.manifest import load_manifest

    with StopFlag() as stop, Engine(0, None, stop) as engine:
        warm_up(engine, [tiny], vocab, folder)
        recipe = recipe_of(sources, vocab, folder / "out", size)
        began, used = time.perf_counter(), time.process_time()
        run_tokenize(recipe, engine, SILENT)
        took, cpu = time.perf_counter() - began, time.process_time() - used
    text = load_manifest(recipe.shards_dir).data["totals"]["bytes"] / 1e6
    shutil.rmtree(folder / "out")
    return {"speed": text / took, "cpu": text / cpu}


def measure_remote(inputs: Inputs, runs: int) -> dict[str, Any]:
    """By format: local and remote in turns."""
    if find_spec("s3fs") is None:
        return {"skipped": "s3fs is not installed"}
    cases = {
        "11 files .jsonl.zst": (inputs.zst, 0),
        "11 files .jsonl.zst, of 2 partitions": (inputs.zst, LARGE),
        "44 files .jsonl.zst, of 2 partitions": (inputs.grown(4), LARGE),
        "one .jsonl.zst": ({"all": [str(inputs.single)]}, 0),
        "one plain .jsonl": ({"all": [str(inputs.plain)]}, 0),
        "one plain .jsonl, one partition": ({"all": [str(inputs.plain)]}, LARGE),
        "11 files of Parquet": (inputs.parquet, 0),
        "11 files of Parquet, of 2 partitions": (inputs.parquet, LARGE),
    }
    bucket = inputs.folder / "bucket"
    shutil.rmtree(bucket, ignore_errors=True)
    (tiny,) = tiny_files(inputs.folder, 1)
    far_tiny = linked(tiny, bucket / "tiny")
    found: dict[str, Any] = {}
    with server(bucket) as endpoint:
        env = {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}
        for name, (sources, size) in cases.items():
            far = {
                source: [linked(path, bucket / source) for path in paths] for source, paths in sources.items()
            }
            done: dict[str, list[dict[str, float]]] = {"local": [], "remote": []}
            requests = 0
            for _ in range(runs):
                done["local"].append(fresh(run_once, sources, tiny, inputs.vocab, inputs.folder, size))
                before = requests_so_far(endpoint)
                done["remote"].append(
                    fresh(run_once, far, far_tiny, inputs.vocab, inputs.folder, size, env=env)
                )
                requests = requests_so_far(endpoint) - before - 1
            local, remote = medians(done["local"]), medians(done["remote"])
            found[f"{name}: remote / local"] = remote["speed"] / local["speed"]
            found[f"{name}: remote / local, text per CPU second"] = remote["cpu"] / local["cpu"]
            found[f"{name}: local, MB/s"] = local["speed"]
            found[f"{name}: requests"] = requests
    return found


def linked(path: str, folder: Path) -> str:
    """The URL of a file, which the bucket has from now on."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / Path(path).name
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return f"s3://{BUCKET}/{folder.name}/{link.name}"


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
