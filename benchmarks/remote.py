"""Inputs on an object store beside the same files on the disk, with the latency of a network.

Input: the corpus. Output: the speed of tokenizing it in one process from a server on this machine, LATENCY away, beside
that from the local files; and how many requests that were. The server takes processor time of its own on the same
cores. All is one partition, so that only its first requests are waited for.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.end_to_end import run_job, tiny_files
from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, fresh, in_turns
from benchmarks.serving import BUCKET, count, server

LATENCY = 0.05


def linked(path: str, bucket: Path) -> str:
    """The URL of a file, which is in the bucket from now on."""
    link = bucket / path.replace("/", "_")
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return f"s3://{BUCKET}/{link.name}"


def measure(inputs: Inputs) -> Table:
    """By format: local and remote in turns."""
    bucket, tiny = inputs.folder / "bucket", tiny_files(inputs.folder, 1)
    bucket.mkdir(exist_ok=True)
    with server(bucket, LATENCY) as environment:

        def case(sources: dict[str, list[str]]) -> Row:
            far = {name: [linked(path, bucket) for path in paths] for name, paths in sources.items()}
            there, rest = [linked(tiny[0], bucket)], (inputs.vocab, inputs.folder, "1GiB")
            local = fresh(run_job, sources, tiny, *rest)["MB/s"]
            before = count(environment)["requests"]
            remote = fresh(run_job, far, there, *rest, env=environment)["MB/s"]
            row = {"local, MB/s": local, "remote, MB/s": remote, "remote / local": remote / local}
            return row | {"requests": count(environment)["requests"] - before}

        formats = {
            ".jsonl.zst": inputs.zst,
            "plain .jsonl": {"all": [str(inputs.plain)]},
            "Parquet": inputs.parquet,
        }
        return in_turns({name: lambda s=sources: case(s) for name, sources in formats.items()}, inputs.runs)
