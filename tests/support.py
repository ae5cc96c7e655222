"""Helpers several tests share: small finished shards folders, written by the real writer."""

from __future__ import annotations

import atexit
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

from benchmarks.train_shards import bare_manifest
from pretok.base.lock import hold
from pretok.base.records import replace
from pretok.base.tokens import token_dtype
from pretok.base.tree import Tree, write_nodes
from pretok.shards.manifest import Shard, load_manifest, write_manifest
from pretok.shards.seal import side_files
from pretok.shards.writer import ShardWriter

ROOT = Path(__file__).parent.parent
"""The checkout."""
TASK_PATH = os.pathsep.join(
    str(path) for path in (ROOT, ROOT / "tests", ROOT / "tests" / "base", ROOT / "tests" / "shards")
)
"""What another process needs as PYTHONPATH to find the tasks that tests define."""
SPECIAL = ("<|endoftext|>", "<|pad|>", "<|reserved_0|>")
"""Special tokens of the small vocabulary of the tests."""
EOD = 0


PACKAGES = {"megatron": "megatron-core", "spdx_python_model": "spdx-python-model", "torch": "torch==2.13.0"}
"""Where a package is not installed by the name of its module."""


_FREEZE = gc.freeze
atexit.register(gc.unfreeze)  # DuckDB's bindings list what is frozen at the end as leaks


def freeze() -> None:
    """Searches for garbage leave out what is loaded by now. The code under test freezes and unfreezes nothing."""
    gc.freeze = gc.unfreeze = lambda: None
    _FREEZE()


def until(condition: Callable[[], object]) -> None:
    """Wait for what other threads or processes do: minutes, though it takes parts of a second on a quiet machine."""
    end = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """The processes that a process started and that are there."""
    found = (path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for children in found for child in children]


@contextmanager
def open_to_all() -> Iterator[Path]:
    """A folder that other users may enter: every folder above pytest's own is closed to them."""
    folder = Path(mkdtemp(dir="/tmp"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


def as_nobody(setup: str, code: str, *arguments: object) -> str:
    """What Python prints that runs `setup`, and `code` as a user without rights: root may read everything."""
    drop = "import os\nif os.getuid() == 0:\n    os.setresgid(*[65534] * 3)\n    os.setresuid(*[65534] * 3)\n"
    command = [sys.executable, "-c", f"{setup}\n{drop}{code}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


LOGS = re.compile(r"(^|/)logs/|\.lock$")
"""And locks: that of a dead job holds nothing, and who writes there next takes it over."""
TIMES = {"time", "seconds", "tokens_per_second", "tokens_per_second_per_device", "data_wait"}
"""What differs in a line of metrics.jsonl or segments.jsonl."""
ANNOTATION = re.compile(r"(?<=-)[0-9a-f]{8}(?=\.parquet\b)")
"""What tells the files of one annotation from those of another."""


def left(work: Path) -> dict[str, bytes]:
    """The files of a folder, without what differs from run to run."""
    files = {str(path.relative_to(work)): path for path in work.rglob("*") if path.is_file()}
    return {
        ANNOTATION.sub("", name): _steady(path).replace(str(work).encode(), b"")
        for name, path in files.items()
        if not LOGS.search(name)
    }


def _steady(path: Path) -> bytes:
    """The bytes of a file, less what differs from run to run."""
    data = path.read_bytes()
    if path.name == "goodput.jsonl":  # it holds times
        return b""
    if path.name in ("metrics.jsonl", "segments.jsonl"):
        lines = [json.loads(line) for line in data.splitlines()]
        return json.dumps(
            [{key: line[key] for key in sorted(line.keys() - TIMES)} for line in lines]
        ).encode()
    if path.name == "annotations.json":
        record = json.loads(ANNOTATION.sub("", data.decode()))
        del record["made"], record["seal"]
        return json.dumps(record).encode()
    return re.sub(rb"page made [-0-9 :]+ UTC", b"", data) if path.suffix == ".html" else data


def rehash(path: Path) -> str:
    """The root of a file that was changed, whose nodes are written anew."""
    tree = Tree()
    tree.update(path.read_bytes())
    write_nodes(path, tree.nodes)
    return tree.hexdigest()


def write_recipe(path: Path, inputs: dict[str, str], **tables: dict[str, object]) -> str:
    """A recipe that reads `inputs`, with the keys of `tables`; its path as a command takes it."""
    values = {f"sources.{name}": {"inputs": [files]} for name, files in inputs.items()} | tables
    path.write_text(
        "".join(
            f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
            for name, table in values.items()
        )
    )
    return str(path)


def write_inputs(work: Path) -> None:
    """What commands can be tried on: it.jsonl and en.jsonl of 50 documents, one more to append, a row to annotate."""
    for name in ("it", "en"):
        rows = [{"id": f"{name}{n}", "text": f"Il numero {n} di {name}, non di più."} for n in range(50)]
        (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "more.jsonl").write_text('{"id": "more", "text": "Ancora un testo, più tardi."}\n')
    (work / "rows.jsonl").write_text('{"id": "it3", "score": 7}\n')


def needs(module: str) -> Any:
    """The module, or a skip that says what to install."""
    top = module.split(".")[0]
    package = PACKAGES.get(top, top)
    return pytest.importorskip(module, reason=f"{module} is not installed: pip install {package}")


@contextmanager
def another_job(folder: Path, what: str) -> Iterator[None]:
    """While the context is open another thread holds `folder`, as another job would."""
    held, done = threading.Event(), threading.Event()

    def work() -> None:
        with hold(folder, what):
            held.set()
            done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    assert held.wait(30)
    try:
        yield
    finally:
        done.set()
        thread.join()


def make_shards(
    folder: Path,
    sources: Mapping[str, Iterable[Sequence[int]]],
    *,
    val: Mapping[str, Iterable[Sequence[int]]] | None = None,
    vocab_size: int = 1000,
    documents_per_shard: int = 3,
    since: Path | None = None,
    chats: Mapping[str, int] | None = None,
) -> Path:
    """Write a shards folder with its manifest. Documents come without EOD (id 0), which is added; returns `folder`.
    since: a folder from which this one has grown by these documents; chats: sources that hold conversations, in which
    id i is of the kind (i - 1) % 7, and the kind of their EOD."""
    shards: list[Shard] = []
    dtype = token_dtype(vocab_size)
    old = load_manifest(shutil.copytree(since, folder, dirs_exist_ok=True)) if since else None
    for name in sorted({*sources, *(old.sources if old else ())}):
        for split, given in (("train", sources), ("val", val or {})):
            held = old.of(name, split) if old else ()
            documents = list(given.get(name, ()))
            shards += [
                *held,
                *_write_split(
                    folder,
                    name,
                    split,
                    documents,
                    dtype,
                    documents_per_shard,
                    len(held),
                    (chats or {}).get(name),
                ),
            ]
    manifest = bare_manifest(vocab_size, shards, {**(old.sources if old else {}), **sources})
    spans = [(s.source, replace(s, folder=folder).spans_path) for s in shards if s.kinds is not None]
    listed = [file for source, path in spans for file in side_files(folder, source, [path])]
    manifest = replace(manifest, side_files=tuple(listed))
    write_manifest(folder, replace(manifest, history=(*old.history, old.event())) if old else manifest)
    return folder


def _write_split(
    folder: Path,
    name: str,
    split: str,
    documents: list[Sequence[int]],
    dtype: np.dtype[Any],
    documents_per_shard: int,
    held: int,
    chat: int | None,
) -> list[Shard]:
    entries = []
    for number, start in enumerate(range(0, len(documents), documents_per_shard), held):
        stem = f"{name}-{number:05d}" if split == "train" else f"{name}-{split}-{number:05d}"
        with ShardWriter(folder / name / stem, dtype) as writer:
            for document in documents[start : start + documents_per_shard]:
                tokens = np.array([*document, EOD], dtype)
                of = None if chat is None else np.array([*((i - 1) % 7 for i in document), chat], np.uint8)
                writer.append(tokens, np.array([len(tokens)], np.int32), of)
            writer.text_bytes = 4 * (writer.tokens - writer.documents)
            entries.append(writer.seal(name, split)[0])
    return entries
