"""Files on a server: the same as on the disk, little more asked for than is read, and changes noticed."""

import random
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import inputs_of, lines_of, read
from serving import serve

from pretok.chat.read_documents import read_documents
from pretok.read.files import READ_SIZE, REMOTE_BLOCK, read_bytes
from pretok.read.format import Piece
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.readers import Damage
from pretok.read.record_format import RecordFormat


@pytest.mark.parametrize("at_once", [False, True])
def test_a_server_is_asked_for_little_more_than_is_read(tmp_path, at_once):
    """And for the next block while one is worked on, if it takes several requests at once."""
    block = REMOTE_BLOCK if at_once else READ_SIZE
    asked, second = [], threading.Event()

    def fetch(path, start, end):
        asked.append((start, end))
        if start == block:
            second.set()
        return path.read_bytes()[start:end]

    serve("far", fetch, async_impl=at_once)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "mare"}\n' * 1_200_000)
    (file,) = inputs_of(f"far://{path}")
    assert sum(end - start for start, end in asked) < 1 << 19
    asked.clear()
    blocks = read_bytes(file.path, "")
    first = next(blocks)
    assert second.wait(60 * at_once) == at_once
    assert first + b"".join(blocks) == path.read_bytes()
    assert sum(min(end, file.size) - start for start, end in asked) == file.size
    assert len(asked) <= file.size // block + 1


def test_parquet_on_a_server_is_what_it_is_on_the_disk(tmp_path):
    """Columns larger than a block too, and damaged ones."""
    serve("damaged", lambda path, start, end: path.read_bytes()[start:end], async_impl=True)
    rng = np.random.default_rng(0)
    texts = [rng.bytes(1200).hex() for _ in range(6000)]
    pq.write_table(pa.table({"id": texts, "text": texts}), tmp_path / "large.parquet", row_group_size=4000)
    small = tmp_path / "small.parquet"
    pq.write_table(pa.table({"text": [f"nave {i} " * 20 for i in range(300)]}), small, row_group_size=100)
    good = small.read_bytes()
    for seed in range(40):
        chosen, data = random.Random(seed), bytearray(good)
        data[chosen.randrange(len(good) - 700, len(good) - 8)] ^= 1 << chosen.randrange(8)
        (tmp_path / f"{seed}.parquet").write_bytes(data)
    damaged = 0
    for path in sorted(tmp_path.iterdir()):
        near, far = read(path, RecordFormat()), read(f"damaged://{path}", RecordFormat())
        assert near == far
        damaged += bool(near.error)
    assert 7 < damaged < 40


def test_a_file_that_changed_on_the_server_is_damage(tmp_path):
    serve("changed", lambda path, start, end: path.read_bytes()[start:end])
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(lines_of([f"{number} {'mare ' * 40_000}"]))
    inputs = inputs_of(*(f"changed://{tmp_path}/{number}.jsonl" for number in range(3)))
    partition = Partition("it", 0, tuple(map(Piece, inputs)), 0)
    data = (tmp_path / "1.jsonl").read_bytes()
    for changed in (data, data + b'{"text": "nuovo"}\n', data[:-9] + b'mari"   }\n'[:9]):
        (tmp_path / "1.jsonl").write_bytes(changed)
        found = list(read_documents(partition, RecordFormat(), Normalization()))
        assert {batch.piece for batch in found if not isinstance(batch, Damage)} == {0, 1, 2}
        damages = [(one.piece, one.error[:29]) for one in found if isinstance(one, Damage)]
        assert damages == ([] if changed == data else [(1, "changed since it was planned:")])
