"""A stream from an object store at a trainer's rates, beside local files and mosaicml-streaming.

    python -m benchmarks.object_store [--tokens 60M] [--rates 1M 10M] [--latencies 0.02 0.1] [--bandwidth 250M]
    python -m benchmarks.object_store --simulate    # the formula of docs/training.md beside Belady's rule, on paper

Input: random tokens in shards, on a server on loopback that answers as S3 does, LATENCY later, and sends BANDWIDTH
bytes a second in all. Output: for each rate and latency the part of the ideal speed that is reached (a step takes the
tokens of its batch / rate, and what it waits for data), the share of time that was waited, and the bytes that were
fetched for each byte that was read; from an empty cache, from a full one, and with one too small. mosaicml-streaming
reads the same sequences from its own files (MDS) on the same server, shuffled its way; it is left out where it is not
installed.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import fresh
from benchmarks.serving import Handler, running
from benchmarks.train_shards import write_random_shards
from pretok.base.tree import NODE, Tree, write_nodes
from pretok.base.units import parse_count
from pretok.stream.object_store import Reads

SEQ_LEN, BATCH, WORKERS = 4096, 8, 2
BUCKET, SENT = "bucket", "/sent"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def serve(port: int, folder: Path, latency: float, bandwidth: float) -> None:
    """The files of a folder as objects of one bucket."""
    lock, state = threading.Lock(), {"free": 0.0, "sent": 0}

    class Objects(Handler):
        def respond(self, *, with_body: bool) -> None:
            if self.path == SENT:
                self.send(200, {}, str(state["sent"]).encode())
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
            if not with_body:
                self.send(code, headers | {"Content-Length": str(end - start)}, b"")
                return
            with lock:  # one line to the world: who comes later is sent later
                state["free"] = max(state["free"], time.monotonic()) + (end - start) / bandwidth
                state["sent"] += end - start
                until = state["free"]
            time.sleep(max(0.0, until - time.monotonic()))
            with path.open("rb") as file:
                file.seek(start)
                self.send(code, headers, file.read(end - start))

    ThreadingHTTPServer.request_queue_size = 128  # of 5, whose sixth waits a second
    ThreadingHTTPServer(("127.0.0.1", port), Objects).serve_forever()


@contextmanager
def server(folder: Path, latency: float, bandwidth: float) -> Iterator[str]:
    """The endpoint of a server in a process of its own."""
    options = [str(folder), str(latency), str(bandwidth)]
    with running(lambda port: ["benchmarks.object_store", "--serve", str(port), *options], sent) as endpoint:
        yield endpoint


def sent(endpoint: str) -> int:
    """Bytes that the server sent so far."""
    with urllib.request.urlopen(endpoint + SENT, timeout=5) as answer:
        return int(answer.read())


def paced(batches: Iterable[Any], rate: float) -> dict[str, float]:
    """Take batches as a trainer of `rate` tokens a second does, from the first one on, which starts processes."""
    waited = steps = 0.0
    left = iter(batches)
    next(left)
    began = time.perf_counter()
    while True:
        time.sleep(BATCH * SEQ_LEN / rate)
        steps += 1
        asked = time.perf_counter()
        if next(left, None) is None:
            break
        waited += time.perf_counter() - asked
    return {"seconds": time.perf_counter() - began, "waited": waited, "tokens": steps * BATCH * SEQ_LEN}


def read_ours(shards: str, cache: str | None, limit: int | None, rate: float) -> dict[str, float]:
    """One rank with loader processes, as `train` has them."""
    from functools import partial

    from torch.utils.data import DataLoader

    import pretok.stream
    from pretok.stream.loader import Fetch, PositionSampler, as_read
    from train.data import _begin_worker

    view = pretok.stream.open(shards, seq_len=SEQ_LEN, cache=cache, cache_bytes=limit)
    sampler = PositionSampler(len(view), global_batch=BATCH, micro_batch=BATCH)
    loader: Any = DataLoader
    return paced(
        loader(
            Fetch(view), batch_sampler=sampler, collate_fn=as_read, num_workers=WORKERS, prefetch_factor=4,
            worker_init_fn=partial(_begin_worker, sampler, (0,), WORKERS),
        ),
        rate,
    )  # fmt: skip


def read_streaming(remote: str, cache: str, rate: float) -> dict[str, float]:
    """mosaicml-streaming with its defaults."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    data: Any = StreamingDataset(remote=remote, local=cache, shuffle=True, batch_size=BATCH)
    return paced(DataLoader(data, batch_size=BATCH, num_workers=WORKERS, prefetch_factor=4), rate)


def write_streaming(folder: Path, shards: Path) -> None:
    """The same sequences as MDS, in shards of 64 MB as are its default."""
    from streaming import MDSWriter

    tokens = np.fromfile(next(shards.glob("*/*.bin")), np.uint16)
    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{SEQ_LEN + 1}"}) as out:
        for first in range(0, len(tokens) - SEQ_LEN, SEQ_LEN):
            out.write({"tokens": tokens[first : first + SEQ_LEN + 1]})


def measure(tokens: int, rates: list[int], latencies: list[float], bandwidth: float, folder: Path) -> None:
    bucket = folder / BUCKET
    shards = write_random_shards(bucket / "shards", tokens)
    for path in shards.glob("*/*.bin"):
        tree = Tree()
        tree.update(path.read_bytes())
        write_nodes(path, tree.nodes)
    theirs = find_spec("streaming") is not None
    if theirs:
        write_streaming(bucket / "mds", shards)
    for rate in rates:
        show("local files", rate, 0, fresh(read_ours, str(shards), None, None, rate), 0, tokens)
        for latency in latencies:
            run, url = str(folder / f"{rate}-{latency}-"), f"s3://{BUCKET}/shards"
            cases: list[tuple[Any, ...]] = [
                ("store, empty cache", read_ours, url, run + "ours", None),
                ("store, full cache", read_ours, url, run + "ours", None),
                ("store, cache of a tenth", read_ours, url, run + "tenth", 2 * tokens // 10),
            ]
            if theirs:
                cases.append(("mosaicml-streaming, empty", read_streaming, f"s3://{BUCKET}/mds", run + "mds"))
            with server(bucket, latency, bandwidth) as endpoint:
                env = {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint}
                for name, read, *arguments in cases:
                    before = sent(endpoint)
                    found = fresh(read, *arguments, rate, env=env, quiet=True)
                    show(name, rate, latency, found, sent(endpoint) - before, tokens)


def show(name: str, rate: int, latency: float, found: dict[str, float], fetched: int, tokens: int) -> None:
    ideal = found["tokens"] / rate
    print(
        f"{rate / 1e6:4.0f} M tokens/s, {latency * 1000:3.0f} ms  {name:<26} {ideal / found['seconds']:6.3f} of ideal, "
        f"waited {found['waited'] / found['seconds']:6.1%}, fetched {fetched / (2 * tokens):6.2f} of the bytes",
        flush=True,
    )


def simulate(blocks: int = 4096, sequences: int = 128, epochs: int = 3) -> None:
    """Bytes that are fetched for each that is read: of a corpus of so many MiB by Belady's rule and by the formula, and
    by the formula for 1 and 10 TB. What counts are shares, so the corpus is small."""
    rng = np.random.default_rng(0)
    uses = np.concatenate([rng.permutation(np.repeat(np.arange(blocks), sequences)) for _ in range(epochs)])
    print(f"{epochs} epochs of sequences of 8 KiB; bytes fetched for each byte read")
    print("cache / corpus   Belady, simulated   formula   1 TB   10 TB")
    for share in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0):
        found = belady(uses.tolist(), int(share * blocks)) * NODE / (len(uses) * NODE / sequences)
        paper = [
            Reads(epochs * corpus // 8192, 8192, False).by_blocks(int(share * corpus), corpus)
            / (epochs * corpus)
            for corpus in (blocks * NODE, 10**12, 10**13)
        ]
        print(f"{share:14.2f} {found:19.2f} {paper[0]:9.2f} {paper[1]:6.2f} {paper[2]:7.2f}")


def belady(uses: list[int], room: int) -> int:
    """How often a cache of `room` blocks fetches that drops what is needed last."""
    order: list[int] = []
    later: dict[int, int] = {}
    for number in reversed(range(len(uses))):
        order.append(later.get(uses[number], len(uses) + number))
        later[uses[number]] = number
    held: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    count = 0
    for use, following in zip(uses, reversed(order), strict=True):
        count += use not in held
        held[use] = following
        heapq.heappush(heap, (-following, use))
        while len(held) > room:
            last, block = heapq.heappop(heap)
            if held.get(block) == -last:
                del held[block]
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="60M")
    parser.add_argument("--rates", nargs="+", default=["1M", "10M"])
    parser.add_argument("--latencies", nargs="+", type=float, default=[0.02, 0.1])
    parser.add_argument("--bandwidth", default="250M", help="bytes a second of the server")
    parser.add_argument("--folder", type=Path, help="where files go; default: a temporary folder")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        port, folder, latency, bandwidth = options.serve
        serve(int(port), Path(folder), float(latency), float(bandwidth))
    elif options.simulate:
        simulate()
    else:
        print(json.dumps({"cores": os.cpu_count(), "load average": os.getloadavg()[0]}))
        with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
            rates = [int(parse_count(rate)) for rate in options.rates]
            bandwidth = float(parse_count(options.bandwidth))
            measure(int(parse_count(options.tokens)), rates, options.latencies, bandwidth, Path(temporary))


if __name__ == "__main__":
    main()
