"""A view: what it takes and refuses, in other processes, with few files open, over shards that are not as they were.
That its positions are those of the mix is in test_model.py."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import EOD, make_shards

import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.tree import LEAF, nodes_path
from pretok.shards.manifest import load_manifest
from pretok.stream import audit
from pretok.stream.mix_file import natural_mix, write_mix
from pretok.stream.view import AHEAD, View

DOCUMENTS = {
    "en": [range(500, 500 + n) for n in (1, 90, 3, 0, 40, 17, 2)],
    "it": [range(1, 1 + n) for n in (300, 1, 0, 5, 250, 33, 4, 4, 60)],
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A document in each, so that a sequence may span several."""
    val = {"it": [range(30), range(9)]}
    return make_shards(tmp_path_factory.mktemp("shards"), DOCUMENTS, val=val, documents_per_shard=1)


@pytest.fixture
def view(shards: Path) -> View:
    return pretok.stream.open(shards, seq_len=4)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """A folder with one shard of one document."""
    return make_shards(tmp_path / "single", {"it": [range(50)]})


def test_splits_and_sources_are_chosen(shards: Path) -> None:
    val = pretok.stream.open(shards, seq_len=5, split="val")
    flat = [*range(30), EOD, *range(9), EOD]
    for position in range(len(val)):
        source, epoch, index = val.origin(position)
        assert (source, epoch, val[position].tolist()) == ("it", 0, flat[5 * index :][:6])
    assert val.prefix_counts(len(val)) == {"en": 0, "it": 8}
    english = pretok.stream.open(shards, seq_len=5, source="en")
    assert (english.prefix_counts(3), english.vocab_size, english.eod_id) == ({"en": 3}, 1000, EOD)


def test_dir_lists_what_the_page_documents(view: View) -> None:
    """Methods with a docstring, and the attributes that the docstring of the class names."""
    shown = {name for name in dir(view) if not name.startswith("_")}
    named = {name for name in vars(view) if re.search(rf"\b{name}[:.,]", View.__doc__ or "")}
    assert shown & vars(view).keys() == named >= {"seq_len", "fingerprint", "mix"}
    assert all(getattr(View, name).__doc__ for name in shown - named)


def test_a_view_says_what_it_is_and_is_a_sequence(view: View) -> None:
    shown = repr(view)
    for part in (f"{len(view)} sequences of 4 + 1 tokens", "en, it", "uint16", view.fingerprint):
        assert part in shown
    assert "\n" not in shown
    everything = view.batch(range(len(view)), view.dtype)
    for part in (slice(None), slice(3, 9), slice(-3, None), slice(10, 2, -3), slice(5, 5)):
        assert view[part].dtype == view.dtype
        np.testing.assert_array_equal(view[part], everything[part])
    assert view[np.int64(3)].tolist() == everything[3].tolist()
    np.testing.assert_array_equal(view[-1], everything[-1])
    assert sum(1 for _ in view) == len(view)
    assert view.batch([]).shape == (0, 5)
    assert (view.batch([0]).dtype, view.batch([0], np.uint16).dtype) == (np.int64, np.uint16)


def test_what_it_cannot_give_is_refused(shards: Path, view: View, tmp_path: Path) -> None:
    """Positions outside, numbers that would be cut, ids that would wrap, a mix of other shards."""
    mix = natural_mix(load_manifest(shards), "train", 6, ["it"], seed=3)
    write_mix(path := tmp_path / "mix.json", mix, {})
    other = make_shards(tmp_path / "other", {"it": [range(50)]})

    def opened(folder: Path = shards, mix: Path | None = None, **more: Any) -> Callable[[], View]:
        return lambda: pretok.stream.open(folder, mix, **more)

    assert opened(mix=path, seq_len=6)().fingerprint == mix.fingerprint
    outside = f"the stream has {len(view)}"
    for ask, error, words in (
        (lambda: view[len(view)], IndexError, f"position {len(view)}; {outside}"),
        (lambda: view[-len(view) - 1], IndexError, outside),
        (lambda: view.batch([0, len(view)]), IndexError, outside),
        (lambda: view.batch([-1]), IndexError, outside),
        (lambda: view.prefix_counts(len(view) + 1), IndexError, "a prefix of"),
        (lambda: audit.drawn(view, "xx", 0, 1), UsageError, "no source 'xx'; its sources are en, it"),
        (lambda: view["3"], TypeError, "neither a whole number nor a slice"),
        (lambda: view.batch([1.9]), TypeError, "positions are whole numbers, not float64"),
        (lambda: view.origin(1.7), TypeError, "positions are whole numbers, not float64"),
        (lambda: view.prefix_counts(1.5), TypeError, "integer"),
        (lambda: audit.positions(view, "it", 1.5, 3), TypeError, "integer"),
        *((lambda narrow=narrow: view.batch([0], narrow), UsageError, "does not hold ids up to 999; take int64 or")
          for narrow in ("u1", "i1", "f4", "bool")),
        (opened(seq_len=64.5), TypeError, "as an integer"),
        (opened(seq_len=4, seed=0.5), TypeError, "as an integer"),
        (opened(seq_len=5, source="fr"), UsageError, "no source 'fr'; its sources are en, it"),
        (opened(), UsageError, "seq_len"),
        (opened(mix=path, seq_len=7), MismatchError, "sequences of 6 tokens, not 7"),
        (opened(mix=path, source="it"), UsageError, "leave them out"),
        (opened(mix=path, learn={"it": ["answer"]}), UsageError, "leave them out"),
        (opened(other, path), MismatchError, f"{mix.manifest}.*{load_manifest(other).fingerprint}"),
        (opened(seq_len=5, manifest="x"), MismatchError, "never had the fingerprint x"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            ask()


def test_a_program_that_streams_ends_in_silence(shards: Path) -> None:
    """A view that lives until the interpreter ends closes its files while it still can."""
    code = f"import pretok.stream; view = pretok.stream.open({str(shards)!r}, seq_len=4); view[0]; other = [view]"
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_open_files_are_bounded(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard is opened once for a batch, though sequences span several of them and are announced. The files are
    closed with the view."""
    opened: list[str] = []
    real = os.open
    watched = lambda path, *flags: (opened.append(str(path)), real(path, *flags))[1]  # noqa: E731
    monkeypatch.setattr("pretok.stream.flat_tokens.os.open", watched)
    for limit in (1, 2, 3, 64):
        view = pretok.stream.open(shards, seq_len=100)
        view.tokens.files.limit = limit
        order = np.random.default_rng(0).permutation(len(view))
        opened.clear()
        everything = view.batch(order)
        assert len(set(opened)) == len(opened) > 3
        for position, tokens in zip(order.tolist(), everything.tolist(), strict=True):
            source, _, index = view.origin(position)
            flat = [token for document in DOCUMENTS[source] for token in (*document, EOD)]
            assert tokens == flat[100 * index :][:101]
        np.testing.assert_array_equal(view.batch(order), everything)
        files = list(view.tokens.files._files.values())
        assert len(files) == min(limit, len(opened)) or limit == 64
        del view
        for file in files:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(file)


def _sums(view: View, results: multiprocessing.queues.Queue[list[int]]) -> None:
    results.put(view[:].sum(axis=1).tolist())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_the_same(view: View, method: str) -> None:
    expected = view[:].sum(axis=1).tolist()  # files are open before the fork
    assert not pickle.loads(pickle.dumps(view)).tokens.files._files
    context = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=_sums, args=(view, results))
    process.start()
    assert results.get(timeout=60) == expected
    process.join()


def test_reading_forward_equals_reading_anywhere(tmp_path: Path) -> None:
    """Addresses are computed ahead for readers that move forward, in whole or with gaps; the tokens are the same."""
    folder = make_shards(tmp_path, {"en": [range(1, 900)] * 6, "it": [range(1, 700)] * 9})
    view = pretok.stream.open(folder, seq_len=3)
    assert len(view) > 2 * AHEAD
    order = np.random.default_rng(0).permutation(len(view))
    everything = view.batch(order)[np.argsort(order)]  # no request ahead of another
    for size, step in ((1, 1), (7, 7), (4, 12), (5, 60), (3000, 3000), (2, -40)):
        starts = range(0, len(view), step) if step > 0 else range(len(view) - size, -1, step)
        for start in starts:
            positions = range(start, min(start + size, len(view)))
            np.testing.assert_array_equal(view.batch(positions), everything[list(positions)])
    for mixed in ([0, 2, 1, 3], [4, 4, 6], [9, 8, 7]):
        np.testing.assert_array_equal(view.batch(mixed), everything[mixed])


def test_a_shard_that_is_not_as_sealed_is_named(single: Path) -> None:
    """Opening touches none; then it is longer, cut while it is open, gone."""
    path = single / "it" / "it-00000.bin"
    whole = path.read_bytes()
    view = pretok.stream.open(single, seq_len=49)
    path.write_bytes(whole + b"\0\0")
    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"it-00000\.bin has 104 bytes, expected 102"):
            view[0]
    path.write_bytes(whole)
    view[0]
    os.truncate(path, 30)
    with pytest.raises(IntegrityError, match=r"it-00000\.bin was cut"):
        view[0]
    path.unlink()
    view = pretok.stream.open(single, seq_len=6)
    assert (view.origin(3)[0], view.prefix_counts(3)) == ("it", {"it": 3})
    with pytest.raises(IntegrityError, match=r"cannot read .*it-00000\.bin: No such file"):
        view[0]


def test_readers_that_begin_find_damage_where_they_look(tmp_path: Path) -> None:
    """One of many shards, or one leaf of a shard: not every reader, but one of many."""
    documents = [np.random.default_rng(n).integers(1, 999, 8 * LEAF).tolist() for n in range(20)]
    shards = make_shards(tmp_path / "shards", {"it": documents}, documents_per_shard=1)
    view = pretok.stream.open(shards, seq_len=99)
    for rank in range(30):
        view.compare_places(rank)
    path = load_manifest(shards).shards[7].bin_path
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(bytes(LEAF))
    said = set()
    for rank in range(100):
        try:
            pickle.loads(pickle.dumps(view)).compare_places(rank)
            said.add("")
        except IntegrityError as error:
            said.add(str(error).partition(":")[0])
    assert said == {"", f"{path} is damaged"}
    path.write_bytes(data[:-2])
    with pytest.raises(IntegrityError, match=rf"{path.name} has {len(data) - 2} bytes, expected {len(data)}"):
        pickle.loads(pickle.dumps(view)).compare_places()  # whatever is drawn
    path.unlink()
    with pytest.raises(IntegrityError, match=rf"{path.name}: No such file"):
        pickle.loads(pickle.dumps(view)).compare_places()
    path.write_bytes(data)
    nodes_path(path).write_bytes(bytes(32))
    with pytest.raises(IntegrityError, match="nodes is damaged"):
        [view.compare_places(rank) for rank in range(100)]
