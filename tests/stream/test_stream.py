"""A view equals slices of the plain concatenation of its source, wherever and by whomever it is read."""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from mixing import cut_of, request
from support import EOD, make_shards

import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.shards.format import HEADER, MAGIC, ShardReader
from pretok.shards.manifest import load_manifest
from pretok.stream import View, audit
from pretok.stream.mix_file import natural_mix, write_mix
from pretok.stream.mix_job import run_mix

DOCUMENTS = {
    "en": [range(500, 500 + n) for n in (1, 90, 3, 0, 40, 17, 2)],
    "it": [range(1, 1 + n) for n in (300, 1, 0, 5, 250, 33, 4, 4, 60)],
}


def flat(documents: list[range]) -> list[int]:
    return [token for document in documents for token in (*document, EOD)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("shards"), DOCUMENTS, val={"it": [range(30), range(9)]})


def check(view: View, flats: dict[str, list[int]]) -> None:
    """Every position, one by one and as a batch, is the slice of the concatenation that its origin names."""
    batch = view.batch(range(len(view)))
    assert batch.dtype == np.int64
    for position in range(len(view)):
        source, epoch, index = view.origin(position)
        first = cut_of(view, source, epoch) + index * view.seq_len
        expected = flats[source][first : first + view.seq_len + 1]
        assert len(expected) == view.seq_len + 1
        assert view[position].tolist() == expected
        assert view[position].dtype == view.dtype
        assert [position, epoch, index] in audit.positions(view, source, first, first + 1).tolist()
        assert batch[position].tolist() == expected


def test_splits_and_sources_are_chosen(shards: Path) -> None:
    val = pretok.stream.open(shards, seq_len=5, split="val")
    check(val, {"it": flat([range(30), range(9)])})
    assert val.prefix_counts(len(val)) == {"en": 0, "it": 8}
    english = pretok.stream.open(shards, seq_len=5, source="en")
    assert english.prefix_counts(3) == {"en": 3}
    assert (english.vocab_size, english.eod_id, english.seq_len) == (1000, EOD, 5)
    with pytest.raises(UsageError, match="no source 'fr'; its sources are en, it"):
        pretok.stream.open(shards, seq_len=5, source="fr")
    with pytest.raises(UsageError, match="seq_len"):
        pretok.stream.open(shards)


def test_seed_gives_another_order_of_the_same_sequences(shards: Path) -> None:
    views = [pretok.stream.open(shards, seq_len=4, seed=seed) for seed in (0, 1)]
    origins = [[view.origin(position) for position in range(len(view))] for view in views]
    assert origins[0] != origins[1]
    assert sorted(origins[0]) == sorted(origins[1])
    assert views[0].fingerprint != views[1].fingerprint
    assert views[0].manifest_fingerprint == views[1].manifest_fingerprint == load_manifest(shards).fingerprint


def test_a_view_says_what_it_is_and_takes_slices(shards: Path) -> None:
    view = pretok.stream.open(shards, seq_len=4)
    shown = repr(view)
    for part in (f"{len(view)} sequences of 4 + 1 tokens", "en, it", "uint16", view.fingerprint):
        assert part in shown
    assert "\n" not in shown
    everything = view.batch(range(len(view)), view.dtype)
    for part in (slice(None), slice(3, 9), slice(-3, None), slice(10, 2, -3), slice(5, 5)):
        assert view[part].dtype == view.dtype
        np.testing.assert_array_equal(view[part], everything[part])
    assert view[np.int64(3)].tolist() == everything[3].tolist()
    with pytest.raises(TypeError, match="integers or slices"):
        view["3"]  # type: ignore[index]


def test_a_program_that_streams_ends_in_silence(shards: Path) -> None:
    """A view that lives until the interpreter ends closes its files while it still can."""
    code = f"import pretok.stream; view = pretok.stream.open({str(shards)!r}, seq_len=4); view[0]; other = [view]"
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_each_shard_is_opened_once_for_a_batch(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the limit of open files, and though sequences span shards and are announced."""
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(
        "pretok.stream.flat_tokens.os.open",
        lambda path, *flags: (opened.append(str(path)), real(path, *flags))[1],
    )
    for limit in (1, 2, 3, 64):
        view = pretok.stream.open(shards, seq_len=100)
        view.tokens.files.limit = limit
        opened.clear()
        everything = view.batch(np.random.default_rng(0).permutation(len(view)))
        assert len(set(opened)) == len(opened) > 3
        np.testing.assert_array_equal(view.batch(np.random.default_rng(0).permutation(len(view))), everything)


def test_files_are_closed_with_the_view(shards: Path) -> None:
    view = pretok.stream.open(shards, seq_len=4)
    view[:]
    files = list(view.tokens.files._files.values())
    assert files
    del view
    gc.collect()
    for file in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)


def test_positions_outside_are_refused(shards: Path) -> None:
    view = pretok.stream.open(shards, seq_len=4)
    np.testing.assert_array_equal(view[-1], view[len(view) - 1])
    assert sum(1 for _ in view) == len(view)
    assert view.batch([]).shape == (0, 5)
    for wrong in (len(view), -len(view) - 1):
        with pytest.raises(IndexError, match=f"position {wrong}; the stream has {len(view)}"):
            view[wrong]
    for wrong in ([0, len(view)], [-1]):
        with pytest.raises(IndexError, match="the stream has"):
            view.batch(wrong)
    with pytest.raises(IndexError, match="a prefix of"):
        view.prefix_counts(len(view) + 1)


def test_numbers_that_are_not_whole_are_refused_not_cut(shards: Path) -> None:
    for wrong in ({"seq_len": 64.5}, {"seq_len": 4, "seed": 0.5}):
        with pytest.raises(TypeError, match="is a whole number, not"):
            pretok.stream.open(shards, **wrong)
    view = pretok.stream.open(shards, seq_len=np.int64(4))
    for read in (lambda: view.batch([1.9]), lambda: view.origin(1.7)):
        with pytest.raises(TypeError, match="positions are whole numbers, not float64"):
            read()
    for read in (lambda: view.prefix_counts(1.5), lambda: audit.positions(view, "it", 1.5, 3)):
        with pytest.raises(TypeError):
            read()


def test_ids_are_never_wrapped(shards: Path) -> None:
    view = pretok.stream.open(shards, seq_len=4)
    assert view.batch([0], np.uint16).tolist() == view.batch([0]).tolist()
    for narrow in ("u1", "i1", "f4", "bool"):
        with pytest.raises(UsageError, match="does not hold ids up to 999; take int64 or uint16"):
            view.batch([0], narrow)


def test_what_a_source_gives_has_an_end(shards: Path) -> None:
    view = pretok.stream.open(shards, seq_len=4)
    given = view.prefix_counts(len(view))["it"]
    assert sorted(audit.drawn(view, "it", 0, given)) == list(range(given))
    for low, high in ((-1, 2), (2, 1), (0, given + 1)):
        with pytest.raises(IndexError, match=f"it gives {given}"):
            audit.drawn(view, "it", low, high)
    with pytest.raises(UsageError, match="no source 'xx'; its sources are en, it"):
        audit.drawn(view, "xx", 0, 1)


def test_open_files_are_bounded(shards: Path) -> None:
    view, bounded = (pretok.stream.open(shards, seq_len=7) for _ in range(2))
    bounded.tokens.files.limit = 1
    np.testing.assert_array_equal(bounded.batch(range(len(bounded))), view.batch(range(len(view))))
    assert len(bounded.tokens.files._files) == 1
    assert len(view.tokens.files._files) > 3


def _sums(view: View, results: multiprocessing.queues.Queue[list[int]]) -> None:
    results.put(view.batch(range(len(view))).sum(axis=1).tolist())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_the_same(shards: Path, method: str) -> None:
    view = pretok.stream.open(shards, seq_len=7)
    expected = view.batch(range(len(view))).sum(axis=1).tolist()  # files are open before the fork
    context = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=_sums, args=(view, results))
    process.start()
    assert results.get(timeout=60) == expected
    process.join()


def test_a_view_that_was_read_can_be_pickled(shards: Path) -> None:
    view = pretok.stream.open(shards, seq_len=7)
    expected = view.batch(range(len(view)))
    copy = pickle.loads(pickle.dumps(view))
    assert not copy.tokens.files._files
    np.testing.assert_array_equal(copy.batch(range(len(view))), expected)


def test_reading_forward_equals_reading_anywhere(tmp_path: Path) -> None:
    """Addresses are computed ahead for readers that move forward, in whole or with gaps; the tokens are the same."""
    folder = make_shards(tmp_path, {"en": [range(1, 900)] * 6, "it": [range(1, 700)] * 9})
    view = pretok.stream.open(folder, seq_len=3)
    assert len(view) > 2 * pretok.stream.AHEAD
    everything = view.batch(np.random.default_rng(0).permutation(len(view)))  # no request ahead of another
    everything = everything[np.argsort(np.random.default_rng(0).permutation(len(view)))]
    for size, step in ((1, 1), (7, 7), (4, 12), (5, 60), (3000, 3000), (2, -40)):
        starts = range(0, len(view), step) if step > 0 else range(len(view) - size, -1, step)
        for start in starts:
            positions = range(start, min(start + size, len(view)))
            np.testing.assert_array_equal(view.batch(positions), everything[list(positions)])
    for mixed in ([0, 2, 1, 3], [4, 4, 6], [9, 8, 7]):
        np.testing.assert_array_equal(view.batch(mixed), everything[mixed])


def test_a_mix_of_other_shards_is_refused(shards: Path, tmp_path: Path) -> None:
    manifest = load_manifest(shards)
    mix = natural_mix(manifest, "train", 6, ["it"], seed=3)
    write_mix(tmp_path / "mix.json", mix, {})
    view = pretok.stream.open(shards, tmp_path / "mix.json", seq_len=6)
    assert view.fingerprint == mix.fingerprint
    with pytest.raises(MismatchError, match="sequences of 6 tokens, not 7"):
        pretok.stream.open(shards, tmp_path / "mix.json", seq_len=7)
    with pytest.raises(UsageError, match="not both"):
        pretok.stream.open(shards, tmp_path / "mix.json", source="it")
    other = make_shards(tmp_path / "other", {"it": [range(50)]})
    with pytest.raises(MismatchError) as caught:
        pretok.stream.open(other, tmp_path / "mix.json")
    assert manifest.fingerprint in str(caught.value)
    assert load_manifest(other).fingerprint in str(caught.value)


def test_an_edited_mix_is_refused(shards: Path, tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    write_mix(path, natural_mix(load_manifest(shards), "train", 6, ["it"], seed=3), {})
    data = json.loads(path.read_text())
    data["stages"][0]["quotas"][0] -= 1
    path.write_text(json.dumps(data))
    with pytest.raises(IntegrityError, match="edited or damaged"):
        pretok.stream.open(shards, path)
    del data["stages"]
    path.write_text(json.dumps(data))
    with pytest.raises(IntegrityError, match="stages"):
        pretok.stream.open(shards, path)


def test_a_shard_of_another_size_is_refused(tmp_path: Path) -> None:
    folder = make_shards(tmp_path, {"it": [range(50)]})
    view = pretok.stream.open(folder, seq_len=6)
    with (folder / "it" / "it-00000.bin").open("ab") as file:
        file.write(b"\0\0")
    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"it-00000\.bin has 104 bytes, expected 102"):
            view[0]
    (folder / "it" / "it-00000.bin").unlink()
    with pytest.raises(IntegrityError, match=r"cannot read .*it-00000\.bin: No such file"):
        view[0]


def test_opening_touches_no_shard(tmp_path: Path) -> None:
    folder = make_shards(tmp_path, {"it": [range(50)] * 9})
    for path in folder.glob("it/*"):
        path.unlink()
    view = pretok.stream.open(folder, seq_len=6)
    assert view.origin(3)[0] == "it"
    assert view.prefix_counts(3) == {"it": 3}
    with pytest.raises(IntegrityError, match="cannot read"):
        view[3]


def test_a_shard_cut_while_open_is_an_error_with_a_name(tmp_path: Path) -> None:
    folder = make_shards(tmp_path, {"it": [range(50)]})
    view = pretok.stream.open(folder, seq_len=49)
    view[0]
    os.truncate(folder / "it" / "it-00000.bin", 30)
    with pytest.raises(IntegrityError, match=r"it-00000\.bin was cut"):
        view[0]


@pytest.mark.parametrize("claim", [1, 2**31, 2**60, 2**64 - 1])
def test_an_index_that_claims_too_much_is_refused(tmp_path: Path, claim: int) -> None:
    """By its size alone, before anything of the size it claims is allocated."""
    make_shards(tmp_path, {"it": [range(50), range(20)]})
    path = tmp_path / "it" / "it-00000.idx"
    whole = path.read_bytes()
    forged = HEADER.pack(MAGIC, 1, 8, claim, min(claim + 1, 2**64 - 1)) + whole[HEADER.size :]
    for data in (forged, whole[:-1], whole[: HEADER.size - 1], whole + b"\0", b""):
        path.write_bytes(data)
        tracemalloc.start()
        with pytest.raises(IntegrityError, match=r"it-00000\.idx"):
            ShardReader(path.with_suffix(""))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


def test_streams_need_nothing_but_numpy() -> None:
    """Ranks on GPU nodes import the stream and the loader: no engine, no validation library, no torch."""
    heavy = [
        "torch",
        "ray",
        "pydantic",
        "gigatoken",
        "pyarrow",
        "typer",
        "rich",
        "numba",
        "datasets",
    ]
    code = f"import sys, pretok.stream, pretok.stream.loader; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


GOLDEN = {
    "whole": ("24ff205bb4312e60", {"seq_len": 64, "seed": 5}, ["80000:it=0.6,en=0.4"]),
    "stages": (
        "505d854a04950122",
        {"seq_len": 37, "seed": -3},
        ["30000:it=0.6,en=0.4", "9000:en=1", "50000:it=0.1,en=0.9"],
    ),
}
"""Digests of all tokens in their order, as they were when each epoch was first cut anew."""


@pytest.mark.parametrize("name", GOLDEN)
def test_the_order_of_whole_sources_is_for_ever(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(1)
    texts = {
        one: [rng.integers(1, 999, n).tolist() for n in rng.integers(1, 200, 150)] for one in ("en", "it")
    }
    shards = make_shards(tmp_path / "shards", texts, documents_per_shard=37)
    digest, options, stages = GOLDEN[name]
    run_mix(shards, tmp_path / "mix.json", request(*stages, **options, max_epochs=99))
    view = pretok.stream.open(shards, tmp_path / "mix.json")
    assert hashlib.sha256(view[:].astype("<u2").tobytes()).hexdigest()[:16] == digest
