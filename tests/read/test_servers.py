"""Files on a server: the same as on the disk, with few requests, several of them under way, and changes noticed."""

import json
import random
import threading
from itertools import pairwise

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from serving import serve

from pretok.chat.documents import read_documents
from pretok.read import prefetch
from pretok.read.files import (
    CorruptInputError,
    InputFile,
    open_parquet,
    read_bytes,
    stamp,
    what_changed,
)
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition, Piece, line_starts
from pretok.read.paths import server_of
from pretok.read.probe import probe_inputs
from pretok.read.readers import Damage, RecordFormat, read_piece
from pretok.read.recognise import list_inputs
from pretok.read.servers import REQUESTS
from pretok.read.tables import table_columns

RNG = np.random.default_rng(0)


class Asked:
    """What a server under the protocol `name` is asked for; each answer takes `seconds`."""

    def __init__(self, name):
        self.spans, self.under_way, self.most, self.wanted = [], 0, 0, 0
        self.lock, self.together = threading.Lock(), threading.Event()
        serve(name, self.fetch, async_impl=True)

    def fetch(self, path, start, end):
        with self.lock:
            self.spans.append((path.name, start, end))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            if self.under_way >= self.wanted:
                self.together.set()
        self.together.wait(60)
        with self.lock:
            self.under_way -= 1
        with path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def expect(self, requests):
        """From here on requests wait until so many are under way; what was asked before is forgotten."""
        self.spans, self.most, self.wanted = [], 0, requests
        self.together.clear()

    @property
    def bytes(self):
        return sum(end - start for _, start, end in self.spans)


def test_a_server_is_asked_for_little_more_than_is_read(tmp_path):
    """What fsspec asks for ahead is bounded by what is read at a time: 5 MiB for each look were half of all."""

    asked = []

    def fetch(path, start, end):
        asked.append(end - start)
        return path.read_bytes()[start:end]

    serve("far", fetch)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "mare"}\n' * 1_200_000)
    (found,), _ = list_inputs([f"far://{path}"], "auto")
    assert sum(asked) < 1 << 19
    assert what_changed(found, stamp(found)) == ""
    asked.clear()
    assert sum(map(len, read_bytes(found.path, ""))) == found.size
    assert sum(asked) == found.size
    assert len(asked) <= found.size // (4 << 20) + 1


@pytest.mark.parametrize("compression", ["", "zstd"])
def test_several_requests_to_a_server_are_under_way_at_once(tmp_path, compression):
    """In their order, each byte once, as far as asked for; given up early, and told of where one fails."""

    asked, under_way, most, breaks, several = [], set(), 0, False, threading.Event()

    def fetch(path, start, end):
        nonlocal most
        if breaks and start:
            raise OSError("no route to host")
        asked.append(end - start)
        under_way.add(start)
        most = max(most, len(under_way))
        if len(under_way) > 1:
            several.set()
        if end - start > 1 << 16:  # the first is small, and alone
            several.wait(60)
        under_way.remove(start)
        return path.read_bytes()[start:end]

    serve("farther", fetch, async_impl=True)
    text = np.random.default_rng(0).bytes(30_000_000)
    path = tmp_path / "a"
    path.write_bytes(zstandard.compress(text) if compression else text)
    url, size = f"farther://{path}", path.stat().st_size
    assert b"".join(read_bytes(url, compression)) == text
    assert sum(asked) == size
    assert 2 <= most <= REQUESTS
    if not compression:
        assert b"".join(read_bytes(url, "", 5, 20_000_000)) == text[5:20_000_000]
        *_, error = some_bytes(read_bytes(url, "", 29_000_000, size + 7))
        assert "7 bytes shorter" in str(error)
    asked.clear()
    first = read_bytes(url, compression, begin=1 << 20)
    next(first)
    first.close()
    assert asked == [1 << 16]
    breaks = True
    *_, error = some_bytes(read_bytes(url, compression))
    assert "no route to host" in str(error)


def some_bytes(blocks):
    """What can be read, and the error that ends it."""
    found = []
    try:
        found.extend(blocks)
    except CorruptInputError as error:
        return [*found, error]
    raise AssertionError("no error")


def table(rows):
    def texts(size):
        return [RNG.bytes(size).hex() for _ in range(rows)]

    return pa.table(
        {
            "id": texts(8),
            "unread": texts(500),
            "text": texts(1200),
            "meta": [{"url": url} for url in texts(300)],
        }
    )


def test_column_chunks_are_asked_for_ahead_and_nothing_else_is(tmp_path):
    """Those of several columns, larger than a block, across row groups; the same rows as from the disk."""
    path = tmp_path / "a.parquet"
    pq.write_table(table(12_000), path, row_group_size=5000)
    asked = Asked("chunks")
    rows = []
    for url in (str(path), f"chunks://{path}"):
        (file,), _ = list_inputs([url], "auto")
        asked.expect(2)
        rows.append(list(table_columns(Piece(file), "text", ["id", "meta.url"], 4 << 20)))
    local, remote = rows
    assert len(local) == len(remote) > 6
    for (texts, others), (far_texts, far_others) in zip(local, remote, strict=True):
        assert texts.equals(far_texts)
        assert all(other.equals(far) for other, far in zip(others, far_others, strict=True))
    assert 2 <= asked.most <= REQUESTS
    meta = pq.read_metadata(path)
    wanted = sum(
        meta.row_group(group).column(column).total_compressed_size
        for group in range(meta.num_row_groups)
        for column in (0, 2, 3)
    )
    assert asked.bytes <= wanted + 100  # the footer is known
    spans = sorted((start, end) for _, start, end in asked.spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def far_table(path, name, rows, row_group):
    """A table on the server `name`, recognised; what the server is asked for from then on."""
    pq.write_table(table(rows), path, row_group_size=row_group)
    asked = Asked(name)
    (file,), _ = list_inputs([f"{name}://{path}"], "auto")
    asked.spans.clear()
    return file, asked


def test_chunks_may_be_read_in_any_order(tmp_path):
    """What is read before its turn is asked for once, what was not expected too."""
    path = tmp_path / "a.parquet"
    file, asked = far_table(path, "order", 2000, 1000)
    data, meta = path.read_bytes(), pq.read_metadata(path)
    third = len(data) // 3
    with open_parquet(file.path) as stream:
        stream.expect(meta, range(2), ["id", "text"], 1 << 17)
        for start in (third, 0, 2 * third):
            stream.seek(start)
            assert stream.read(third) == data[start : start + third]
    assert asked.bytes <= len(data) + 4 * (1 << 17)  # blocks on the borders are asked for again


def test_a_reader_of_parquet_that_stops_early_asks_for_no_more(tmp_path):
    file, asked = far_table(tmp_path / "a.parquet", "early", 8000, 200)
    rows = table_columns(Piece(file), "text", [], 1 << 20)
    next(rows)
    rows.close()
    assert len(asked.spans) < 2 * REQUESTS


def test_damaged_parquet_on_a_server_is_what_it_is_on_the_disk(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"nave {i} " * 20 for i in range(300)]}), path, row_group_size=100)
    good = path.read_bytes()
    Asked("damaged")
    damaged = 0
    for seed in range(60):
        chosen, data = random.Random(seed), bytearray(good)
        data[chosen.randrange(len(good) - 700, len(good) - 8)] ^= 1 << chosen.randrange(8)
        copy = tmp_path / f"{seed}.parquet"
        copy.write_bytes(data)
        found = []
        for url in (str(copy), f"damaged://{copy}"):
            (file,), _ = list_inputs([url], "auto")
            try:
                found.append(
                    [batch.texts.to_pylist() for batch in read_piece(Piece(file), 0, RecordFormat())]
                )
            except CorruptInputError as error:
                found.append(str(error))
        assert found[0] == found[1]
        damaged += isinstance(found[0], str)
    assert 10 < damaged < 60


def documents(folder, count, size=1):
    """Files of JSON Lines; the text of file n begins with n."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:02d}.jsonl").write_text(json.dumps({"text": f"{number} {'mare ' * size}"}) + "\n")


def whole(folder, protocol=""):
    inputs, _ = list_inputs([f"{protocol}{path}" for path in sorted(folder.iterdir())], "auto")
    return Partition("it", 0, tuple(Piece(file) for file in inputs), 0)


def read(partition):
    found = list(read_documents(partition, RecordFormat(), Normalization()))
    texts = [t for batch in found if not isinstance(batch, Damage) for t in batch.texts.to_pylist()]
    return texts, [batch for batch in found if isinstance(batch, Damage)]


def test_the_next_files_are_begun_while_one_is_read(tmp_path):
    """Small ones several at once; a file is asked for once to be read and, where it is small, once to be checked."""
    documents(tmp_path / "in", 30)
    asked = Asked("begun")
    partition = whole(tmp_path / "in", "begun://")
    asked.expect(5)
    assert read(partition) == read(whole(tmp_path / "in"))
    assert asked.most > 4
    assert len(asked.spans) == 30  # that for the check: these files are known from planning


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([1] * 12, 9), ([prefetch.ROOM] * 4, 2), ([prefetch.ROOM // 2] * 6, 3), ([5, 5, prefetch.ROOM, 5], 2)],
)
def test_how_many_are_begun_before_their_turn(sizes, expected):
    """Themselves among them, and the more the smaller they are; local ones when their turn comes."""

    class Here:
        def submit(self, function):
            function()
            return self

        def result(self):
            pass

    for protocol, most in (("s3://", expected), ("/", 1)):
        read_so_far = []

        def read(index, _, read_so_far=read_so_far):
            read_so_far.append(index)
            yield index

        pieces = [
            Piece(InputFile(f"{protocol}a/{at}", "jsonl", "", size, "")) for at, size in enumerate(sizes)
        ]
        found = []
        for index, piece, batches in prefetch.begun(pieces, read, Here()):
            assert piece is pieces[index]
            found += batches
            if index == 0:
                assert read_so_far == list(range(most))
        assert found == read_so_far == list(range(len(sizes)))


@pytest.mark.parametrize("how", ["longer", "other end"])
def test_a_file_that_changed_on_the_server_is_damage(tmp_path, how):
    documents(tmp_path / "in", 3, 40_000)
    Asked("changed")
    partition = whole(tmp_path / "in", "changed://")
    assert read(partition)[1] == []
    path = tmp_path / "in" / "01.jsonl"
    data = path.read_bytes()
    path.write_bytes(data + b'{"text": "nuovo"}\n' if how == "longer" else data[:-9] + b'mari"   }\n'[:9])
    texts, (damage,) = read(partition)
    assert damage.piece == 1
    assert "changed since it was planned" in damage.error
    assert texts[0].startswith("0 ")
    assert texts[-1].startswith("2 ")
    texts, damages = read(whole(tmp_path / "in", "changed://"))
    assert damages == []
    assert ("nuovo" in texts) == (how == "longer")


def test_a_file_that_was_written_again_is_opened_again(tmp_path):
    """The server tells that the version is another one; it is no damage where the bytes are the same."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "mare"}\n' * 20_000)
    expired = False

    def fetch(file, start, end):
        nonlocal expired
        if expired:
            expired = False
            raise OSError(16, "the file has expired")
        return file.read_bytes()[start:end]

    serve("expiring", fetch, async_impl=True)
    (file,), _ = list_inputs([f"expiring://{path}"], "auto")
    expired = True
    assert what_changed(file, None) == ""
    assert not expired


def test_borders_are_looked_for_at_once(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b"x" * n + b"\n" for n in RNG.integers(0, 3000, 300).tolist()))
    asked = Asked("borders")
    (near,), (far,) = (list_inputs([url], "auto")[0] for url in (str(path), f"borders://{path}"))
    nominal = [near.size * at // 100 for at in range(101)]
    asked.expect(5)
    found = line_starts(far, nominal)
    assert found == line_starts(near, nominal)
    data = path.read_bytes()
    assert all(data[at - 1 : at] == b"\n" for at in found[1:])
    assert len(found) > 50
    assert asked.most > 4


@pytest.mark.parametrize(("size", "requests"), [(100, 0), (10, 1)])
def test_the_footer_of_a_file_on_a_server_is_asked_for_once(tmp_path, size, requests):
    """A short one when the file is recognised. The helper process has no connection, nor knows `footer://`."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["ciao " * 100] * 2000}), path, row_group_size=size)
    asked = Asked("footer")
    (near,), (far,) = (list_inputs([url], "auto")[0] for url in (str(path), f"footer://{path}"))
    asked.spans.clear()
    (known,), (found,) = (probe_inputs([file], "text") for file in (near, far))
    assert (found.parts, found.rows) == (known.parts, known.rows)
    assert len(found.parts) == 2000 // size
    assert len(asked.spans) == requests


@pytest.mark.parametrize(
    ("configured", "connections"),
    [({}, 64), ({"anon": True, "config_kwargs": {"max_pool_connections": 5}}, 5)],
)
def test_s3_has_more_connections_than_requests_unless_the_user_says_otherwise(
    monkeypatch, configured, connections
):
    monkeypatch.setitem(fsspec.config.conf, "s3", configured)
    server, name = server_of("memory://a/b.jsonl")
    assert (server.protocol, name) == ("memory", "/a/b.jsonl")
    assert fsspec.config.conf["s3"] == {**configured, "config_kwargs": {"max_pool_connections": connections}}
