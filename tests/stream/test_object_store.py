"""Streams from an object store: the same tokens as from files, whatever the server, other ranks and kills do."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixing import request, write_ledgers
from store_server import BUCKET, Server, environment, serve
from support import make_shards, needs, rehash, until

import pretok.stream
from benchmarks.train_shards import bare_manifest
from pretok.base.console import Console
from pretok.base.errors import IntegrityError, OutputError, UsageError
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.base.stop import StopFlag
from pretok.base.tree import NODE
from pretok.shards.manifest import Removal, load_manifest, write_manifest
from pretok.shards.writer import ShardWriter
from pretok.stream import View, object_store
from pretok.stream.loader import PositionSampler, read_ahead
from pretok.stream.materialize import run_materialize
from pretok.stream.mix_job import run_mix

SEQ_LEN = 2047
BLOCKS = 9
"""Of the large shards."""
URL = f"s3://{BUCKET}"
KINDS = {
    "epochs": request("700:it=0.7,en=0.3", "900:it=0.1,en=0.9", seq_len=9),
    "packed": request("3k:it=0.8,en=0.2", seq_len=30, pack="best-fit"),
    "classes": request("1k:good=0.5,it=0.3,en=0.2", seq_len=9, classes={"good": "it where quality >= 7"}),
    "chat": request("2k:it=0.5,chat=0.5", seq_len=20),
    "packed-class": request(
        "900:good=1", seq_len=9, pack="best-fit", classes={"good": "it where quality < 7"}
    ),
}
Both = tuple[View, View]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server has: `small`, shards of all kinds with a mix of each kind; `large`, of BLOCKS blocks."""
    folder, rng = tmp_path_factory.mktemp("bucket"), np.random.default_rng(0)
    lengths = {"it": rng.integers(1, 60, 60), "en": rng.integers(1, 60, 40), "chat": rng.integers(1, 60, 30)}
    sources = {name: [rng.integers(1, 1000, n).tolist() for n in some] for name, some in lengths.items()}
    options = {"val": {"it": sources["en"][:9]}, "chats": {"chat": 6}, "documents_per_shard": 9}
    small = make_shards(folder / "small", sources, **options)
    write_ledgers(small, {name: rng.integers(0, 10, len(some)).tolist() for name, some in sources.items()})
    for kind, wish in KINDS.items():
        (folder / kind).mkdir()
        run_mix(small, folder / kind / "mix.json", wish)
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run_materialize(small, folder / "chat" / "mix.json", folder / "sorted", engine, Console())
    shards = []
    for number, tokens in enumerate((2 * NODE - 999, NODE + 1, NODE)):
        with ShardWriter(folder / "large" / "it" / f"it-{number:05d}", np.dtype("<u2")) as writer:
            ends = np.diff([*range(0, tokens, 1000), tokens]).astype(np.int32)
            writer.append(rng.integers(1, 1000, tokens).astype("<u2"), ends)
            shards.append(writer.seal("it", "train")[0])
    write_manifest(folder / "large", bare_manifest(1000, shards))
    assert sum(-(-shard.file_bytes // NODE) for shard in shards) == BLOCKS
    return folder


@pytest.fixture
def server(bucket, monkeypatch) -> Iterator[Server]:
    """Serves the bucket; the environment names it, as a user's does."""
    with serve(bucket) as running:
        for name, value in environment(running).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(object_store, "WAITS", (0.01,) * 4)
        yield running


@pytest.fixture
def both(server, bucket, tmp_path) -> Callable[..., Both]:
    """Opens shards, and a mix if one is named, as files and from the store. given: for the one from the store."""

    def opened(name: str = "small", mix: str | None = None, split: str = "train", **given: Any) -> Any:
        length = None if mix or name == "sorted" else SEQ_LEN if name == "large" else 9
        there = {"cache": tmp_path / "cache"} | given
        return tuple(
            pretok.stream.open(
                f"{place}/{name}", mix and f"{place}/{mix}/mix.json", seq_len=length, split=split, **options
            )
            for place, options in ((bucket, {}), (URL, there))
        )

    return opened


@pytest.fixture
def large(both) -> Both:
    """The large shards as files, and from the store with an empty cache."""
    return both("large")


@pytest.fixture
def kept(tmp_path) -> Callable[..., list[Path]]:
    """The blocks that the cache has, or files beside them."""
    return lambda name="0*": sorted(tmp_path.glob(f"cache/blocks/*/{name}"))


def same(theirs: View, ours: View) -> None:
    assert (ours.fingerprint, len(ours)) == (theirs.fingerprint, len(theirs))
    everything = np.random.default_rng(1).permutation(len(ours))
    for pair in zip(ours.batch(everything, loss=True), theirs.batch(everything, loss=True), strict=True):
        np.testing.assert_array_equal(*pair)
    assert ours.origin(len(ours) - 1) == theirs.origin(len(ours) - 1)


@pytest.mark.parametrize("split", ["train", "val"])
def test_shards_without_a_mix_read_the_same(split, both):
    same(*both(split=split))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_entry_reads_the_same(kind, both, bucket, tmp_path):
    local, remote = both("small", kind)
    same(local, remote)
    mixed = pretok.stream.open(f"{URL}/small/", bucket / kind / "mix.json", cache=tmp_path)
    same(local, pickle.loads(pickle.dumps(mixed)))
    if kind == "chat":
        same(local, both("sorted")[1])


def test_another_library_reads_another_store(bucket, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(bucket / "small"), "/shards", recursive=True)
    memory.put(str(bucket / "packed"), "/mixes", recursive=True)
    view = pretok.stream.open("memory://shards", "memory://mixes/mix.json", cache=tmp_path)
    same(pretok.stream.open(bucket / "small", bucket / "packed" / "mix.json"), view)


def batches_of(view: View, rank: int, count: int) -> PositionSampler:
    return PositionSampler(len(view), global_batch=8 * count, micro_batch=8, rank=rank, world_size=count)


def ranks(view: View, count: int) -> list[Any]:
    """Processes, each of which reads its part of the stream in batches and gives the digest of every one."""
    context = multiprocessing.get_context("fork")
    pipes = []
    for rank in range(count):
        ours, theirs = context.Pipe()

        def work(rank: int = rank, pipe: Any = theirs) -> None:
            sampler = batches_of(view, rank, count)
            read_ahead(view, sampler, range(count))
            pipe.send([view.batch(batch).tobytes() for batch in sampler])

        process = context.Process(target=work)
        process.start()
        pipes.append((process, ours))
    return pipes


def test_ranks_that_share_a_cache_fetch_each_block_once(server, large, both):
    local, view = large
    server.latency = 0.02
    for rank, (process, pipe) in enumerate(ranks(view, 3)):
        assert pipe.poll(60)
        assert pipe.recv() == [local.batch(batch).tobytes() for batch in batches_of(local, rank, 3)]
        process.join()
    assert len(server.gets()) == len(set(server.gets())) == BLOCKS
    assert len(server.gets(".nodes")) == 3
    # The next job finds all of it.
    server.asked.clear()
    same(*both("large"))
    assert not server.gets()


def test_a_killed_job_leaves_a_cache_that_the_next_one_uses(
    server, bucket, large, kept, tmp_path, monkeypatch
):
    """Also what it left unfinished, or someone cut, is fetched again and never read."""
    monkeypatch.setattr(object_store, "THREADS", 2)
    server.latency = 0.05
    [(process, _)] = ranks(large[1], 1)
    until(lambda: len(kept()) > 3)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    server.latency = 0.0
    there = kept()
    there[0].write_bytes(b"")
    name = f"blocks/{load_manifest(bucket / 'large').shards[2].root}/000001"
    missing = tmp_path / "cache" / "incoming" / name
    missing.parent.mkdir(parents=True, exist_ok=True)
    missing.write_bytes(b"half" * 999)
    server.asked.clear()
    same(*large)
    # Each once: on a busy machine the server still reads requests that the killed process sent.
    assert len({*server.gets()}) == BLOCKS - len(there) + 1
    assert max(path.stat().st_size for path in kept()) == NODE  # not behind what was left


def test_blocks_come_in_the_order_of_their_first_use(server, large, monkeypatch):
    """Though the reader, who is told of, waits at its first batch."""
    monkeypatch.setattr(object_store, "THREADS", 1)
    view = large[1]
    sampler = batches_of(view, 1, 2)
    units = view.tokens.files.units(view.reads(np.concatenate(list(sampler)))[0])
    first = dict.fromkeys(map(tuple, units[:, :2].tolist()))
    read_ahead(view, sampler)
    until(lambda: len(server.gets()) == len(first))
    asked = [(int(name[-9:-4]), int(part[6:].split("-")[0])) for name, part in server.gets()]
    assert asked == list(first)
    server.asked.clear()
    view.batch(next(iter(sampler)))
    assert not server.asked


def test_the_loader_of_pytorch_fetches_ahead(server, large, monkeypatch):
    needs("torch")
    from pretok.integrations import pytorch

    monkeypatch.setattr(pytorch, "_MESSAGE", 16 * SEQ_LEN)
    theirs, ours = (iter(pytorch.Loader(view, 4, rank=1, ranks=2, position=80, workers=2)) for view in large)
    first = next(ours)
    until(lambda: len(server.gets()) > BLOCKS - 3)
    for found in (first, *ours):
        assert found["input_ids"].equal(next(theirs)["input_ids"])


@pytest.mark.parametrize(("limit", "ranks"), [(4 * NODE, range(4)), (None, ())])
def test_a_cache_too_small_for_blocks_is_passed_by(limit, ranks, server, both, monkeypatch):
    """Also one whose readers read a fourth of the shards. Sequences come one by one, ahead of their use, and of an
    object whose version was compared."""
    local, view = both("large", cache_bytes=limit)
    sampler = PositionSampler(len(view), global_batch=32, micro_batch=8, rank=1, world_size=4, position=1440)
    monkeypatch.setattr(object_store, "MOST_PIECES", 64)
    read_ahead(view, sampler, ranks)
    batches = list(sampler)
    for number, batch in enumerate(batches):
        ahead = 8 * min(number + 8, len(batches))
        until(lambda ahead=ahead: len(server.gets()) >= ahead + 3)
        np.testing.assert_array_equal(view.batch(batch), local.batch(batch))
    assert not view.tokens.files._futures
    asked = 8 * len(batches)
    assert asked > 120
    assert 0 <= len(server.gets()) - 3 - asked < 5  # an object's first MiB; a sequence in two objects
    assert len(server.gets(".nodes")) == 3
    assert server.sent < 3.5 * NODE + 2 * (SEQ_LEN + 1) * asked
    monkeypatch.setattr(object_store, "FRESH", -1.0)
    server.tag = "2"
    with pytest.raises(IntegrityError, match=r"s3://bucket/large/.*\.bin does not match its checksum"):
        view[0]


def test_sequences_in_memory_survive_an_outage_and_another_upload(server, both):
    """An old error is not raised again, an abandoned pass keeps nothing, and the same content may get a new version."""
    local, view = both("large", cache_bytes=0)
    files = view.tokens.files
    server.fault = lambda name, _: 503 if name.endswith(".bin") else None
    with pytest.raises(OSError, match="cannot be read"):
        view.batch(range(8))
    fetched = lambda: all(one.done() for one in list(files._futures.values()))  # noqa: E731
    until(fetched)
    server.fault = lambda *_: None
    np.testing.assert_array_equal(view.batch(range(8)), local.batch(range(8)))
    for first in (100, 200):
        view.expect([range(first, first + 8)])
        assert len(files._futures) == 8
    server.tag = "2"
    np.testing.assert_array_equal(both("large", cache_bytes=0)[1][3], local[3])
    until(fetched)  # a thread inside of Arrow, when a later test forks, would leave its locks to the child


def test_a_mix_is_read_after_a_removal(server, bucket, tmp_path):
    """Its shards have other roots by now."""
    shards = shutil.copytree(bucket / "small", bucket / "removed")
    manifest = load_manifest(shards)
    changed = manifest.of("it")[0]
    with changed.bin_path.open("r+b") as file:
        file.write(bytes(2 * 5))  # EOD
    removal = Removal("2026-01-01", "", 1, 5, {changed.path: changed.root})
    root = rehash(changed.bin_path)
    new = tuple(replace(one, root=root) if one is changed else one for one in manifest.shards)
    write_manifest(shards, replace(manifest, shards=new, history=(manifest.event(removal),)))
    mix = bucket / "epochs" / "mix.json"
    same(pretok.stream.open(shards, mix), pretok.stream.open(f"{URL}/removed", mix, cache=tmp_path))


def test_a_full_disk_is_named(tmp_path):
    def fill(file: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OutputError, match=r"cannot write .*/block: No space left on device"):
        object_store.obtain(tmp_path, tmp_path / "block", fill)


def test_a_child_reads_and_drops_its_view(both):
    """Although a thread of its parent held the queue when it was forked."""
    views = [both()[1]]
    files = views[0].tokens.files
    views[0][0]

    def work() -> None:
        views[0].batch(range(50))
        views.clear()

    with files._waiting.mutex:
        del files
        child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
        child.start()
    child.join(100)
    assert child.exitcode == 0


def test_a_child_that_is_forked_amid_requests_reads(both, server):
    """As the workers of a DataLoader are, after their parent looked at a sequence and fetches what follows. Arrow would
    hold a lock for ever in the child."""
    remote, view = object_store.Remote(URL), both()[1]
    server.latency = 0.2
    over, before = threading.Event(), len(server.asked)

    def read_on() -> None:
        while not over.is_set():
            remote.read("small/manifest.json", 0, 10)

    threads = [threading.Thread(target=read_on, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(server.asked) > before + 30)
    children = [multiprocessing.get_context("fork").Process(target=view.batch, args=([3, 1],)) for _ in "12"]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        child.kill()
        assert child.exitcode == 0
    over.set()
    for thread in threads:
        thread.join()


def test_a_new_pass_asks_for_what_the_last_one_is_fetching(server, large, monkeypatch):
    monkeypatch.setattr(object_store, "THREADS", 1)
    server.latency = 0.1
    files = large[1].tokens.files
    first = files._ask((0, 0, NODE), ahead=True)
    until(lambda: first.running() or first.done())
    files.expect([])
    files._ask((0, 0, NODE), ahead=False).result(100)


def test_a_block_may_come_while_it_is_asked_for_again(large, monkeypatch):
    """Two sequences of a request lie in it: it is not yet there for the first, and comes before the second asks."""
    local, view = large
    files = view.tokens.files
    held, asked = files._held, []

    def late(*arguments: Any) -> bool:
        asked.append(arguments)
        if len(asked) == 2:
            until(lambda: not files._futures)
        return len(asked) > 2 and held(*arguments)

    monkeypatch.setattr(files, "_held", late)
    reads = np.array([(0, 0, 9, 0), (0, 9, 18, 99)])
    tokens = [np.zeros((2, 9), np.uint16) for _ in range(2)]
    reader = threading.Thread(target=view.tokens.read, args=(reads, tokens[0]), daemon=True)
    reader.start()
    reader.join(30)
    assert not reader.is_alive()
    local.tokens.read(reads, tokens[1])
    np.testing.assert_array_equal(*tokens)


def test_other_shards_leave_a_full_cache(both, kept):
    """Only as many as the new ones need, and the old ones are fetched again."""
    small = both()
    same(*small)
    before = len(kept())
    both("large", cache_bytes=(BLOCKS + 5) * NODE)[1][0]
    assert 5 < len(kept()) <= 5 + 2 < before
    same(*small)


@pytest.mark.parametrize("fault", [500, 503, 403, "cut", "hang"])
def test_what_passes_is_tried_again(fault, server, both, monkeypatch):
    monkeypatch.setattr(object_store, "TIMEOUT", 0.5)
    names = ["small/manifest.json", "chat/mix.json", "small/it/it-00001.bin", "small/chat/chat-00000.spans"]
    faults = dict.fromkeys(names[2:3] if fault == "hang" else names, 1 if fault == "hang" else 2)

    def once(name: str, _: int) -> int | str | None:
        faults[name] = faults.get(name, 0) - 1
        return fault if faults[name] >= 0 else None

    server.fault = once
    same(*both("small", "chat"))
    assert max(faults.values()) < 0


@pytest.mark.parametrize("fault", [503, 403, "cut"])
def test_a_lasting_error_names_the_object_without_secrets(fault, server, tmp_path, caplog):
    place = server.endpoint.removeprefix("http://")
    url = f"s3://user:geheim@{BUCKET}/small?endpoint_override={place}&scheme=http"
    view = pretok.stream.open(url, seq_len=9, cache=tmp_path)
    server.fault = lambda name, _: fault if name.endswith(".bin") else None
    shown = rf"cannot be read after 5 tries.* 's3://\*\*\*@{BUCKET}/small/.*\.bin"
    with caplog.at_level(logging.WARNING), pytest.raises(OSError, match=shown) as caught:
        view[0]
    assert "trying" in caplog.text
    assert not any(word in caplog.text + str(caught.value) for word in ("geheim", place))
    server.fault = lambda *_: None
    assert len(view[0]) == 10


@pytest.mark.parametrize(
    ("suffix", "change", "limit"),
    [
        *(("bin", change, limit) for change in ("other", "shorter", "gone") for limit in (None, 0)),
        ("nodes", "other", None),
        ("side", "other", None),
    ],
)
def test_a_changed_object_is_an_error_and_never_a_token(
    suffix, change, limit, server, bucket, both, kept, tmp_path
):
    for folder in ("small", "packed"):
        shutil.copytree(bucket / folder, tmp_path / "bucket" / folder)
    for path in (tmp_path / "bucket").rglob(f"*.{suffix}"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data[:-2] if change == "shorter" else data)
        if change == "gone":
            path.unlink()
    words = "does not exist" if change == "gone" else "does not match its checksum"
    server.folder = tmp_path / "bucket"
    for _ in range(2):
        with pytest.raises(IntegrityError, match=f"s3://bucket/.*{suffix} {words}"):
            both("small", "packed", cache_bytes=limit)[1][0]
    assert not kept()


@pytest.mark.parametrize("when", ["between", "during"])
def test_an_object_that_is_replaced_under_a_reader_is_an_error(when, server, bucket, both, tmp_path):
    """By one of the same size, between two sequences or in the middle of one."""
    server.folder = shutil.copytree(bucket / "large", tmp_path / "bucket" / "large").parent
    local, view = both("large", cache_bytes=0)
    np.testing.assert_array_equal(view.batch(range(20)), local.batch(range(20)))

    def replace_all() -> None:
        server.tag = "2"
        for path in server.folder.rglob("*.bin"):
            path.write_bytes(bytes(path.stat().st_size))

    first = len(server.asked)
    if when == "between":
        replace_all()
    else:
        server.fault = lambda name, number: replace_all() if number == first + 16 else None
    refused, read = 0, 0
    for position in range(20, 40):
        try:
            tokens = view[position]
        except IntegrityError:
            refused += 1
        else:
            read += 1
            np.testing.assert_array_equal(tokens, local[position])
    assert refused > 10
    assert (read > 0) is (when == "during")


@pytest.mark.parametrize("fails", [False, True])
def test_look_ups_are_shared_by_those_that_came_before_they_began(fails, monkeypatch):
    remote, gate = object_store.Remote("s3://bucket/x"), threading.Event()
    begun, came = list[str](), list[int]()

    def look(name: str) -> Any:
        begun.append(name)
        number = len(begun)
        gate.wait(60)
        if fails and number > 1:
            raise OSError(number, "gone")
        return 1, str(number), bytes

    def ask(_: int) -> tuple[int, int]:
        came.append(len(begun))
        before = len(begun)
        try:
            return before, int(remote._object("o", time.monotonic())[1])
        except OSError as error:
            return before, error.errno or 0

    monkeypatch.setattr(remote, "_connect", lambda: look)
    with ThreadPoolExecutor(41) as threads:
        answers = threads.map(ask, range(41))
        until(lambda: len(came) == 41 and begun != [])
        gate.set()
        assert all(number > before for before, number in answers)
    assert len(begun) < 10


@pytest.mark.parametrize(
    "change", [lambda data: bytes(len(data)), lambda data: data[:-1], lambda data: data + b"x"]
)
def test_what_was_changed_in_the_cache_is_fetched_again(change, both, kept):
    """Blocks and nodes."""
    same(*both())
    before = {path: path.read_bytes() for path in kept("000*") + kept("nodes")}
    for path, data in before.items():
        path.write_bytes(change(data))
    same(*both())
    assert {path: path.read_bytes() for path in kept("000*") + kept("nodes")} == before
    assert len(before) == 2 * len(kept("nodes")) > 0


def test_nodes_that_another_reader_removes_are_fetched_again(both, monkeypatch):
    """It found them changed on the disk, between the look of this reader and its read."""
    removed, obtain = set[Path](), object_store.obtain

    def disturbed(cache: Path, path: Path, fill: Any) -> None:
        obtain(cache, path, fill)
        if path.name == "nodes" and path not in removed:
            removed.add(path)
            path.unlink()

    monkeypatch.setattr(object_store, "obtain", disturbed)
    same(*both())
    assert removed


def test_a_store_that_gives_no_versions_is_named(both, monkeypatch, caplog):
    monkeypatch.setattr(object_store, "VERSIONS", ())
    local, view = both(cache_bytes=0)
    np.testing.assert_array_equal(view[0], local[0])
    assert ".bin has no version in its store: do not replace it" in caplog.text


def test_a_node_without_network_goes_on_with_a_full_cache(server, both, tmp_path, caplog):
    same(*both("small", "packed"))
    half = both("small", "packed", cache=tmp_path / "half")[1]
    server.fault = lambda *_: 503
    same(*both("small", "packed"))
    assert "continuing with the copy in" in caplog.text
    with pytest.raises(OSError, match="cannot be read"):
        half.batch(range(len(half)))
    with pytest.raises(OSError, match=r"s3://bucket/small/manifest.json"):
        both("small", "packed", cache=tmp_path / "empty")


def test_what_cannot_be_opened_is_refused(server, tmp_path):
    with pytest.raises(UsageError, match="name a folder of a local disk"):
        pretok.stream.open(f"{URL}/small", seq_len=9)
    with pytest.raises(IntegrityError, match=r"s3://bucket/nothing/manifest.json does not exist"):
        pretok.stream.open(f"{URL}/nothing", seq_len=9, cache=tmp_path)


def test_a_program_ends_while_requests_are_in_work(server, tmp_path):
    server.fault = lambda name, _: "hang" if name.endswith(".bin") else None
    code = (
        "import pretok.stream; from pretok.stream.loader import *; "
        f"view = pretok.stream.open('{URL}/large', seq_len=9, cache={str(tmp_path)!r}); "
        "read_ahead(view, PositionSampler(len(view), global_batch=8, micro_batch=8)); import time; time.sleep(0.5)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "")
