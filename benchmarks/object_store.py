"""A stream from an object store at a trainer's rates, beside local files.

Input: random tokens in shards, on a server that answers as S3 does. Output: for each rate and latency the part of the
ideal speed that is reached (a step takes the tokens of its batch / rate, and what it waits for data), the share of time
that was waited, and the bytes that were fetched for each byte that was read; from an empty cache, from a full one, and
with one that holds a tenth.
"""

from __future__ import annotations

import time

from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, fresh
from benchmarks.serving import BUCKET, count, server
from benchmarks.train_shards import write_documents

SEQ_LEN, BATCH, WORKERS = 4096, 8, 2
RATES, LATENCIES = (1_000_000, 10_000_000), (0.02, 0.1)


def read(shards: str, cache: str | None, limit: int | None, rate: float) -> Row:
    """One rank with loader processes, which asks for a batch when it has trained on the last one. The clock starts at
    the first batch, for which the processes start."""
    import pretok.stream
    from pretok.integrations.pytorch import Loader

    view = pretok.stream.open(shards, seq_len=SEQ_LEN, cache=cache, cache_bytes=limit)
    batches, steps, waited = iter(Loader(view, BATCH, workers=WORKERS)), len(view) // BATCH - 1, 0.0
    next(batches)
    began = time.perf_counter()
    for _ in range(steps):
        time.sleep(BATCH * SEQ_LEN / rate)
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
    seconds = time.perf_counter() - began
    return {"of the ideal speed": steps * BATCH * SEQ_LEN / rate / seconds, "waited": waited / seconds}


def measure(inputs: Inputs) -> Table:
    """A row for each rate, latency and cache."""
    tokens = inputs.scaled(60_000_000)
    shards = write_documents(inputs.folder / "store" / "shards", tokens // 1000, 1000, 4)
    url, table = f"s3://{BUCKET}/shards", Table()
    for rate in RATES:
        table[f"{rate / 1e6:.0f} M tokens/s, local files"] = fresh(read, str(shards), None, None, rate)
        for latency in LATENCIES:
            cache = str(inputs.folder / f"cache-{rate}-{latency}")
            cases = {
                "empty cache": (cache, None),
                "full cache": (cache, None),
                "cache of a tenth": (f"{cache}-tenth", max(1 << 20, 2 * tokens // 10)),
            }
            with server(shards.parent, latency) as environment:
                for name, (folder, limit) in cases.items():
                    before = count(environment)["bytes"]
                    row = fresh(read, url, folder, limit, rate, env=environment, quiet=True)
                    row["fetched per byte"] = (count(environment)["bytes"] - before) / (2 * tokens)
                    table[f"{rate / 1e6:.0f} M tokens/s, {1e3 * latency:.0f} ms, {name}"] = row
    return table
