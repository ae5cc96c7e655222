"""Shards on an object store: prefetched in the order of a stream, and cached in a folder on a local disk.

Input: the URL of a folder of shards or of a mix, and the folder CACHE. Output: what the local readers of a stream need:
small files as files, and the tokens of `.bin` objects in blocks of a MiB. All ranks of a node, and later jobs, share
CACHE. A killed process leaves no wrong file in it.

    urls/DIGEST          manifest.json or mix.json as last read from the URL, for a node without a network
    folders/DIGEST/      the same as a file, with the files that belong to it: tokenizer, spans, side_files/
    blocks/ROOT/nodes    hash-tree nodes of the `.bin` with this root (`pretok.base.tree`)
    blocks/ROOT/NUMBER   one MiB of that file; its hash is its node
    blocks/ROOT/version-DIGEST  a version of that object in the store, whose first MiB was right
    incoming/            the same paths while they are written; the writer of a file holds flock(2) on it

A block is written whole, flushed and renamed after its hash was checked; nothing else is ever read as tokens. Each
process compares a block with its hash when it first reads it, as someone, or the disk, may have changed it. Which
blocks the coming positions touch is arithmetic, so they are fetched in the order of their first use. If the shards are
larger than the limit of CACHE, or the stream reads only a small part of them, MiBs would be too much data: the bytes of
each sequence are then fetched into memory, and CACHE keeps no tokens.

pyarrow.fs reads the stores it knows, fsspec all others. Both find credentials themselves, and neither is imported
without a URL.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from pretok.base.errors import IntegrityError, UsageError
from pretok.base.storage import FULL, damaged, digest, write_bytes, writing
from pretok.base.tokens import Ints
from pretok.base.tree import HASH, NODE, NODES_SUFFIX, fold, node_hash, root_of
from pretok.base.visible import masked
from pretok.shards.manifest import FILE_NAME, Manifest, Shard, load_manifest
from pretok.stream.flat_tokens import ReadRange, ranges
from pretok.stream.forks import no_fork
from pretok.stream.mix_file import load_mix
from pretok.stream.tapes import FOLDER, path_of, verify_side_file

logger = logging.getLogger(__name__)

ARROW = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")
"""URL schemes that pyarrow.fs reads; it releases the interpreter lock."""
WAITS = (0.2, 1.0, 5.0, 20.0, 60.0)
"""Seconds before each retry of a failed request."""
FRESH = 600.0
"""Seconds after which the size and version of an object are requested again."""
TIMEOUT = 20.0
"""Seconds without data after which a request fails."""
THREADS, PIECE_THREADS = 32, 96
"""The number of concurrent requests of a process: for MiBs, and for pieces of sequences. For one of these, a thread
requests its bytes, and then waits for the look-up before its own, and for its own."""
PIECE = 8 * NODE
"""The bytes of a request, for files that are fetched whole."""
MOST_BLOCKS, MOST_PIECES = 1 << 16, 1 << 10
"""How many units a process asks for ahead of its reader: MiBs on the disk, or pieces of sequences in memory."""

BLOCKS, NODES = "blocks", "nodes"
Accepts = Callable[[bytes], bool]
_Object = tuple[int, str, Callable[[int, int], bytes]]
"""The size of an object, its version in the store, and a function that reads its bytes `start` to `end` - 1."""
_Look = Future[_Object]
VERSIONS = (
    "ETag",
    "etag",
    "generation",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "mtime",
    "created",
)
"""What the libraries call what changes with an object. HDFS has the time of its last change."""
Unit = tuple[int, int, int]
_Queue = queue.PriorityQueue[tuple[bool, int, Unit]]
"""Units to fetch, by priority: False if a reader waits for it, then a rising number, then the unit."""


def is_url(place: object) -> bool:
    """Return whether a folder or file is on an object store."""
    return isinstance(place, str) and "://" in place


class Remote:
    """The objects below a URL. A forked process opens its own connections."""

    def __init__(self, url: str) -> None:
        base, mark, query = url.partition("?")
        self._base, self._query = base.rstrip("/"), mark + query
        self._lock = threading.Lock()
        self._forget()

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (self._base + self._query,)

    def _forget(self) -> None:
        self._connected: Callable[[str], _Object] | None = None
        self._objects: dict[str, tuple[float, _Object]] = {}
        # The last look-up of each object that began, and the one that begins after it.
        self._looks: dict[str, tuple[_Look | None, _Look | None]] = {}
        self._pid = os.getpid()  # last: threads that see it use nothing of a parent

    def url(self, name: str) -> str:
        """Return the URL of an object for messages, without credentials."""
        shown: str = masked(f"{self._base}/{name}{self._query}")
        return shown

    def _connect(self) -> Callable[[str], _Object]:
        """Connect; return a function that looks up an object by its name."""
        if self._base.partition("://")[0] in ARROW:
            import pyarrow as pa
            from pyarrow import fs

            server, root = fs.FileSystem.from_uri(self._base + self._query)
            if isinstance(server, fs.S3FileSystem):  # by default it tries 30 times silently
                options = server.__reduce__()[1][0]
                once = {"retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=1)}
                limits = {"connect_timeout": TIMEOUT, "request_timeout": TIMEOUT}
                # It keeps as many connections as Arrow has threads when it is made, 25 by default. A forked process
                # inherits the number, and need not touch what its parent's threads may have locked.
                if pa.io_thread_count() < PIECE_THREADS:
                    pa.set_io_thread_count(PIECE_THREADS)
                server = fs.S3FileSystem(**options | once | limits)

            def by_arrow(name: str) -> _Object:
                path = f"{root}/{name}"
                file = server.open_input_file(path)
                version = file.metadata() or {"mtime": server.get_file_info(path).mtime_ns}
                return file.size(), _version(version), lambda start, end: file.read_at(end - start, start)

            return by_arrow
        import fsspec

        system, _ = fsspec.url_to_fs(self._base + self._query, skip_instance_cache=True)

        def by_fsspec(name: str) -> _Object:
            path = system._strip_protocol(f"{self._base}/{name}{self._query}")
            info = system.info(path)
            return info["size"], _version(info), partial(system.cat_file, path)

        return by_fsspec

    def _object(self, name: str, since: float | None = None) -> _Object:
        """Return an object as the store had it at `since`, by the monotonic clock, or later."""
        # A socket that two processes read gives each a part of the other's answer.
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._forget()
        opened, known = self._objects.get(name, (0.0, None))
        if known is None or opened < (time.monotonic() - FRESH if since is None else since):
            known = self._looked_up(name)
        return known

    def _looked_up(self, name: str) -> _Object:
        """Return an object as the store has it now.

        There is one look-up of an object at a time. Whoever comes during one waits for the next, which all share that
        have come until it begins: it begins after their bytes came.
        """
        with self._lock:
            last, shared = self._looks.get(name, (None, None))
            if mine := shared is None:
                shared = _Look()
                self._looks[name] = last, shared
        if not mine:
            return shared.result()
        if last is not None:
            last.exception()  # waits for its end
        with self._lock:  # from here on nobody joins it
            self._looks[name] = shared, None
        begun = time.monotonic()
        try:
            # Threads may do this twice at a time; the last one's connection and object are kept.
            with no_fork():
                connected = self._connected = self._connected or self._connect()
                found = connected(name)
            self._objects[name] = begun, found
        except BaseException as error:  # raised in each thread that waits
            shared.set_exception(error)
        else:
            shared.set_result(found)
        return shared.result()

    def look(self, name: str) -> tuple[int, str]:
        """Return the bytes of an object and its version in the store, at most FRESH seconds old. Raises as `read`.

        The version changes when the object does.
        """
        size, version, _ = self._tried(name, lambda *seen: seen)
        return size, version

    def read(
        self,
        name: str,
        start: int = 0,
        end: int | None = None,
        check: Accepts | None = None,
        waits: Sequence[float] | None = None,
        version: str | None = None,
    ) -> bytes:
        """Return the bytes `start` to `end` - 1 of an object, after `check` accepted them.

        version: the object must have this one. No library returns the version of what it read, nor asks for one. So it
        is looked up again after the bytes came, unless `check` alone decides: who had it before and after had it in
        between. Raises OSError that names the object if the store does not answer
        completely after all retries, IntegrityError if there is no such object or `check` rejects it.
        """

        def once(size: int, current: str, read: Callable[[int, int], bytes]) -> bytes:
            stop = size if end is None else end
            if stop > size or version not in (None, current):
                raise self.changed(name)
            with no_fork():
                data = bytes(read(start, stop)) if stop > start else b""
            if len(data) != stop - start:
                raise OSError(f"received {len(data)} bytes, expected {stop - start}")
            if check is not None and not check(data):
                raise self.changed(name)
            if (check is None or version is not None) and self._object(name, time.monotonic())[1] != current:
                raise self.changed(name)
            return data

        data: bytes = self._tried(name, once, waits)
        return data

    def changed(self, name: str) -> IntegrityError:
        """Return the error for an object with a wrong hash."""
        return IntegrityError(
            f"{self.url(name)} does not match its checksum: it was changed or damaged; run pretok verify where it was "
            "made, and upload it again"
        )

    def _tried(self, name: str, work: Callable[..., Any], waits: Sequence[float] | None = None) -> Any:
        waits = WAITS if waits is None else waits
        problem, reason = None, ""
        for wait in (None, *waits):
            if wait is not None:
                logger.warning("trying %s again in %g s: %s", self.url(name), wait, reason)
                time.sleep(wait)
                self._forget()  # reconnect, with the present credentials
            try:
                return work(*self._object(name))
            except (ImportError, ValueError) as error:  # not a URL, or no library for this store
                raise UsageError(f"{self.url(name)} cannot be read: {masked(str(error))}") from None
            except FileNotFoundError:
                raise IntegrityError(f"{self.url(name)} does not exist") from None
            except Exception as error:  # each library has its own for what a server does
                problem, reason = error, masked(str(error) or type(error).__name__)
        if isinstance(problem, IntegrityError):
            raise problem
        raise OSError(errno.EIO, f"cannot be read after {len(waits) + 1} tries ({reason})", self.url(name))


def _version(metadata: Mapping[Any, Any]) -> str:
    text = {key.decode() if isinstance(key, bytes) else key: value for key, value in metadata.items()}
    found = [text.get(name) for name in VERSIONS]
    return str(found) if any(found) else ""


def obtain(cache: Path, path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Call `fill` to write the file `path` below `cache`, unless it exists.

    If several processes want the same file, one writes it and the others wait; a file that a killed process left
    incomplete is overwritten. Raises what `fill` does.
    """
    part = cache / "incoming" / path.relative_to(cache)
    while not path.exists():
        with writing(path):
            part.parent.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            file = part.open("a+b")
        with file:
            # The kernel gives the lock of a killed writer to the next one, which begins the file again.
            with writing(path):
                fcntl.flock(file, fcntl.LOCK_EX)
            # While this process waited, the writer may have renamed or removed the file that is locked now. What stands
            # there instead is another's, who may write it: only who has the lock of a file renames or removes it.
            if not _is(part, file):
                continue
            if path.exists():
                part.unlink()
                return
            with writing(path, FULL):  # of other errors `fill` says what they mean
                file.truncate(0)
                fill(file)
            # Flushed before it is renamed: after a power failure a file with this name would else be empty.
            with writing(path):
                file.flush()
                os.fsync(file.fileno())
                part.replace(path)


def _is(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


class Store:
    """A folder of shards on an object store, and the copy of its small files in `folder`.

    limit: the bytes of blocks that CACHE may keep; None for any number. Raises UsageError, and as `Remote.read` and
    `load_manifest`.
    """

    def __init__(self, url: str, cache: str | Path | None, limit: int | None = None) -> None:
        self.remote, self.cache, self.limit = Remote(url), cache_of(url, cache), limit
        self.folder = fetched(self.remote, FILE_NAME, self.cache)
        self.manifest = load_manifest(self.folder)
        for file in self.manifest.side_files:
            if file.source is None:
                self._bring(self.folder / file.path)

    def _bring(self, path: Path) -> None:
        """Fetch a file of the folder, unless it is in CACHE."""
        name, root = path.relative_to(self.folder).as_posix(), self.manifest.roots[path]
        fetch_whole(self.remote, name, self.cache, path, lambda part: root_of(part) == root)

    def files(self, shards: Sequence[Shard], itemsize: int, asked: int) -> StoreFiles:
        """Return the `.bin` objects of shards with tokens of `itemsize` bytes. asked: bytes that a stream reads."""
        return StoreFiles(self, shards, itemsize, asked)

    def fetch_spans(self, shards: Iterable[Shard]) -> None:
        """Fetch the spans of conversations, which say which tokens are learned."""
        for shard in shards:
            if shard.kinds is not None:
                self._bring(shard.spans_path)


def manifest_of(shards: str, cache: str | Path | None) -> Manifest:
    """Return the manifest of a folder of shards, which may be a URL."""
    return Store(shards, cache).manifest if is_url(shards) else load_manifest(Path(shards))


def cache_of(url: str, cache: str | Path | None) -> Path:
    """Return the path of CACHE. UsageError if none was given."""
    if cache is None:
        raise UsageError(
            f"{url} is on an object store: name a folder of a local disk that keeps what was fetched (cache, --cache)"
        )
    return Path(cache).absolute()


def fetched(remote: Remote, name: str, cache: Path) -> Path:
    """Return the folder of CACHE for the current content of the JSON object `name`.

    If the store does not answer, it is the folder for the content as last read.
    """
    last = cache / "urls" / digest(remote.url(name).encode())
    try:
        data = remote.read(name, waits=WAITS[:2] if last.exists() else None)
        if not last.exists() or last.read_bytes() != data:
            write_bytes(last, data)
    except OSError as error:
        if not last.exists():
            raise
        logger.warning("%s; continuing with the copy in %s", error, cache)
        data = last.read_bytes()
    folder = cache / "folders" / digest(data)
    obtain(cache, folder / name, lambda file: file.write(data))
    return folder


def fetch_mix(url: str, cache: str | Path | None) -> Path:
    """Fetch a mix and its side files; return the path of the local mix file."""
    base, _, query = url.partition("?")
    parent, _, name = base.rpartition("/")
    folder = cache_of(url, cache)
    remote = Remote(parent + (f"?{query}" if query else ""))
    path = fetched(remote, name, folder) / name
    for source in load_mix(path).sources:
        if source.tape is not None:
            beside = path_of(path.parent / FOLDER, source.tape)
            fetch_whole(
                remote, f"{FOLDER}/{beside.name}", folder, beside, lambda part: not verify_side_file(part)
            )
    return path


def fetch_whole(remote: Remote, name: str, cache: Path, path: Path, right: Callable[[Path], bool]) -> None:
    """Fetch an object as the local file `path`, unless it exists. right: checks the content of a file."""

    def fill(file: IO[bytes]) -> None:
        size, _ = remote.look(name)
        for at in range(0, size, PIECE):
            file.write(remote.read(name, at, min(at + PIECE, size)))
        file.flush()
        if not right(Path(file.name)):
            raise remote.changed(name)

    obtain(cache, path, fill)


class StoreFiles:
    """The `.bin` objects of `shards`; replaces `OpenFiles`.

    itemsize: bytes of a token. asked: bytes that the whole stream reads.

    A unit is (shard, first byte, end): a MiB in CACHE or, if MiBs would be too much data, the bytes of one piece in
    memory. Threads fetch units: first those that a reader waits for, then those that were announced. Only one thread
    may read, and it announces. The lock guards what it shares with those that fetch: `_futures`. A copy in another
    process starts its own threads.
    """

    def __init__(self, store: Store, shards: Sequence[Shard], itemsize: int, asked: int) -> None:
        self._remote, self._cache, self._limit = store.remote, store.cache, store.limit
        self.paths: Sequence[Path] = [shard.bin_path for shard in shards]
        # The roots of today: the mix may be older than a removal, which changed shards.
        self._names = [shard.path for shard in shards]
        self._roots = [store.manifest.roots[path] for path in self.paths]
        self._sizes: Ints = np.array([shard.tokens * itemsize for shard in shards], np.int64)
        self._itemsize, self._bytes = itemsize, asked
        # Blocks are numbered through all shards; this is the number of each shard's first one.
        self._first: Ints = np.cumsum([0, *(-(-self._sizes // NODE))], dtype=np.int64)
        self.whole = self.worth_caching(1.0)
        self._shared = dict(self.__dict__)
        self._begin()

    def worth_caching(self, share: float) -> bool:
        """Return whether to fetch whole MiBs, if the readers of CACHE read this part of the stream.

        Sequences lie anywhere in the shards, and a MiB holds many of them. So MiBs pay off only if CACHE keeps them all
        until their other sequences come, and if the stream reads at least half of what they hold.
        """
        corpus = int(self._sizes.sum())
        return corpus <= 2 * share * self._bytes and (self._limit is None or corpus <= self._limit)

    def _begin(self) -> None:
        """Begin without threads and requests, as each process does."""
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._waiting: _Queue = queue.PriorityQueue()
        self._futures: dict[Unit, Future[bytes | None]] = {}
        self._versions: dict[int, str] = {}
        # The MiBs that CACHE has: the next sequences inside them need no request.
        self._known = np.zeros(int(self._first[-1]), np.bool_)
        # Those that this process has compared with their hashes, and the hashes of the shards that it read.
        self._right = np.zeros(int(self._first[-1]), np.bool_)
        self._hashes: dict[int, bytes] = {}
        self._threads = self._asked = self._pending = 0
        # The number of units of each announced batch that is not read yet, and their sum in `_pending`.
        self._ahead: deque[int] = deque()
        self._batches: Iterator[Ints] = iter(())

    def __del__(self) -> None:
        # A forked process has no threads to end, and one of them may have locked the queue when it was forked.
        if self._pid == os.getpid():
            for _ in range(self._threads):
                self._waiting.put((False, 0, (-1, 0, 0)))

    def __getstate__(self) -> dict[str, Any]:
        return self._shared | {"whole": self.whole}

    def __setstate__(self, shared: dict[str, Any]) -> None:
        self.__dict__.update(shared, _shared=shared)
        self._begin()

    def _here(self) -> None:
        """Begin again in a forked process: threads do not survive a fork, and a lock may have been held by one."""
        if self._pid != os.getpid():
            self._begin()

    def units(self, reads: Ints) -> Ints:
        """Return the units of what is read (see `FlatTokens.reads`) in its order, (n, 3)."""
        shard, at, until, first = reads.T
        start, stop = first * self._itemsize, (first + until - at) * self._itemsize
        if not self.whole:
            return np.stack([shard, start, stop], axis=1)
        low, high = (self._first[shard] + byte // NODE for byte in (start, stop - 1))
        block = ranges(low, high + 1)[1]
        shard = np.searchsorted(self._first, block, side="right") - 1
        start = (block - self._first[shard]) * NODE
        return np.stack([shard, start, np.minimum(start + NODE, self._sizes[shard])], axis=1)

    def read(self, parts: Sequence[ReadRange], room: memoryview) -> None:
        """Read parts into `room`. Raises IntegrityError, OSError."""
        self._here()
        # Ask for everything that is missing before waiting for any of it, so that it is fetched at the same time.
        late = []
        for shard, begin, end, offset in parts:
            while begin < end:
                unit, out = (shard, offset, offset + end - begin), room[begin:end]
                if self.whole:
                    start = offset - offset % NODE
                    unit = shard, start, min(start + NODE, int(self._sizes[shard]))
                    out = out[: unit[2] - offset]
                if not (self.whole and self._held(unit, offset, out)):
                    late.append((unit, offset, out, self._ask(unit, ahead=False)))
                begin, offset = begin + len(out), offset + len(out)
        try:
            for unit, offset, out, future in late:
                # None: another process has fetched the unit, and a third may have removed it again.
                while (data := future.result()) is None and not self._held(unit, offset, out):
                    future = self._ask(unit, ahead=False)
                if data is not None:
                    out[:] = data[offset - unit[1] :][: len(out)]
        finally:
            # After an error too: a failed future would raise it again when the same unit is asked for once more.
            for unit, _, _, future in late:
                self._drop(unit, future)
        if self._ahead:
            self._pending -= self._ahead.popleft()
            self._announce()

    def _held(self, unit: Unit, offset: int, out: memoryview) -> bool:
        """Read `out` from CACHE; return whether it has the unit."""
        path = self._path(unit)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        block = self._first[unit[0]] + unit[1] // NODE
        try:
            if self._right[block]:
                right = os.preadv(file, [out], offset - unit[1]) == len(out)
            else:
                data = os.pread(file, NODE + 1, 0)
                right = self._right[block] = node_hash(data) == self._node(unit)
                if right:
                    out[:] = data[offset - unit[1] :][: len(out)]
        finally:
            os.close(file)
        if not right:  # truncated or changed: fetch it again
            path.unlink(missing_ok=True)
        return bool(right)

    def _path(self, unit: Unit) -> Path:
        return self._cache / BLOCKS / self._roots[unit[0]] / f"{unit[1] // NODE:06d}"

    def _ask(self, unit: Unit, ahead: bool) -> Future[bytes | None]:
        """Ask for a unit; the result is its bytes, or None once CACHE has it."""
        with self._lock:
            known = unit in self._futures
            future = self._futures.setdefault(unit, Future())
            # A waiting reader moves its unit to the front. It is then queued twice, and `work` fetches it once.
            if not (known and ahead):
                self._asked += 1
                self._waiting.put((ahead, self._asked, unit))
            if not self._threads:
                self._make_room()
            if self._threads < (THREADS if self.whole else PIECE_THREADS):
                self._threads += 1
                threading.Thread(target=_work, args=(weakref.ref(self), self._waiting), daemon=True).start()
            return future

    def _drop(self, unit: Unit, future: Future[bytes | None]) -> None:
        with self._lock:
            # Not one that was asked for since: its reader would wait forever, as threads fetch only what stands here.
            if self._futures.get(unit) is future:
                del self._futures[unit]

    def work(self, unit: Unit) -> None:
        """Fetch a requested unit, unless another thread does."""
        with self._lock:
            future = self._futures.get(unit)
            if future is None or future.running() or future.done():
                return
            future.set_running_or_notify_cancel()
        try:
            data = self._fetch(unit)
        except BaseException as error:  # raised again in the thread that waits
            end: Callable[[], None] = partial(future.set_exception, error)
        else:
            end = partial(future.set_result, data)
        # Dropped before the result is set: whoever asks from now on finds the MiB in CACHE, or fetches it anew.
        if self.whole:
            self._drop(unit, future)
        end()

    def _fetch(self, unit: Unit) -> bytes | None:
        """Return the bytes of a unit; None if another process has put them into CACHE."""
        shard, start, stop = unit
        if not self.whole:
            return self._remote.read(self._names[shard], start, stop, version=self._version(shard))
        fetched: list[bytes] = []

        def fill(file: IO[bytes]) -> None:
            node = self._node(unit)
            data = self._remote.read(self._names[shard], start, stop, lambda data: node_hash(data) == node)
            fetched.append(data)
            file.write(data)

        obtain(self._cache, self._path(unit), fill)
        self._known[self._first[shard] + start // NODE] = True
        return fetched[0] if fetched else None

    def _version(self, shard: int) -> str:
        """Return the version of an object that this process reads.

        The first reader of a version checks one MiB of it against its node; its pieces cannot be checked one by one.
        """
        name, root = self._names[shard], self._roots[shard]

        def fill(file: IO[bytes]) -> None:
            end = min(NODE, int(self._sizes[shard]))
            node = self._node((shard, 0, end))
            self._remote.read(name, 0, end, lambda data: node_hash(data) == node, version=version)
            file.write(version.encode())

        if shard not in self._versions:
            _, version = self._remote.look(name)
            if not version:
                logger.warning("%s has no version in its store: do not replace it", self._remote.url(name))
            obtain(self._cache, self._cache / BLOCKS / root / f"version-{digest(version.encode())}", fill)
            self._versions[shard] = version
        return self._versions[shard]

    def _node(self, unit: Unit) -> bytes:
        """Return the hash of the MiB in which a unit begins."""
        shard, start, _ = unit
        if shard not in self._hashes:
            self._hashes[shard] = self._nodes(shard)
        return self._hashes[shard][HASH * (start // NODE) :][:HASH]

    def _nodes(self, shard: int) -> bytes:
        """Return the concatenated nodes of a shard, after checking that they have its root."""
        root, name = self._roots[shard], self._names[shard].removesuffix(".bin") + NODES_SUFFIX
        path = self._cache / BLOCKS / root / NODES

        def right(data: bytes) -> bool:
            return fold([data[at : at + HASH] for at in range(0, len(data), HASH)]).hex() == root

        def kept() -> bytes:
            while True:
                obtain(self._cache, path, lambda file: file.write(self._remote.read(name, check=right)))
                # Another reader may have found them changed and removed them meanwhile.
                with suppress(FileNotFoundError):
                    return path.read_bytes()

        if not right(data := kept()):  # changed on the disk: fetch it again
            path.unlink(missing_ok=True)
            if not right(data := kept()):
                raise damaged(path)
        return data

    def expect(self, batches: Iterable[Ints]) -> None:
        """Fetch ahead the units of the next calls of `read`, one batch for each call."""
        self._here()
        with self._lock:  # what an earlier call announced and nobody has read is not fetched any more
            self._futures.clear()
        self._ahead.clear()
        self._pending, self._batches = 0, iter(batches)
        self._announce()

    def _announce(self) -> None:
        """Ask for the units of the next batches, up to the most that may be pending."""
        # Each call of `read` ends one batch, so batches stay this far ahead of the reader, however slow the store is.
        while self._pending < (MOST_BLOCKS if self.whole else MOST_PIECES):
            if (units := next(self._batches, None)) is None:
                return
            self._pending += len(units)
            wanted = units
            if self.whole:
                wanted = units[~self._known[self._first[units[:, 0]] + units[:, 1] // NODE]]
            for unit in dict.fromkeys(map(tuple, wanted.tolist())):
                self._ask(unit, ahead=True)
            self._ahead.append(len(units))

    def _make_room(self) -> None:
        """Remove blocks of other shards if CACHE may not keep them together with those of this stream.

        A job that reads them just now fetches them again.
        """
        if not self.whole or self._limit is None:
            return
        roots = set(self._roots)
        folders = [folder for folder in (self._cache / BLOCKS).glob("*") if folder.name not in roots]
        others = [path for folder in folders for path in folder.glob("[0-9]*")]
        for path in others[: max(len(others) + int(self._first[-1]) - self._limit // NODE, 0)]:
            path.unlink(missing_ok=True)


def _work(files: weakref.ref[StoreFiles], waiting: _Queue) -> None:
    """Fetch units, in a thread, until the files are no longer in use."""
    while (unit := waiting.get()[2])[0] >= 0:
        if (alive := files()) is not None:
            alive.work(unit)
        del alive
