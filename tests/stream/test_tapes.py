"""Side files: a tape is the concatenation of its runs, a packed one is best-fit, and a damaged one is never read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixing import request
from support import EOD, make_shards

import pretok.stream
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.records import replace
from pretok.stream import tapes
from pretok.stream.mix_file import load_mix, write_mix
from pretok.stream.mix_job import run_mix
from pretok.stream.tapes import EACH, FILL, MOST, SideTape, TapeWriter, path_of, verify_side_file


def write(folder: Path, address: np.ndarray, length: np.ndarray, step: int, every: int = 1) -> str:
    with TapeWriter(folder, "new", every) as writer:
        for at in range(0, len(address), step):
            writer.append(address[at : at + step], length[at : at + step], joined=every == 1)
        return writer.seal({"shards": 0, "indexes": ""})


def joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts])


@given(
    documents=st.sampled_from([0, 1, 63, EACH, EACH + 1, 1000, 5000]),
    share=st.sampled_from([0, 0.01, 0.2, 0.5, 1]),
    fill=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=50 if settings().max_examples > 100 else 25)
def test_a_tape_is_the_concatenation_of_its_runs(
    tmp_path_factory: pytest.TempPathFactory, documents: int, share: float, fill: bool, seed: int
) -> None:
    folder, rng = tmp_path_factory.mktemp("tape"), np.random.default_rng(seed)
    lengths = rng.integers(1, 60, documents)
    chosen = rng.random(documents) < share
    if seed % 2 and not fill:  # lengths of 4 bytes in one block, of 2 in the others
        lengths[:1], chosen[:1] = 40_000, True
    address, length = (np.cumsum(lengths) - lengths)[chosen], lengths[chosen]
    if fill:  # as of a packed source: in any order, with EOD between
        order = rng.permutation(len(address))
        address, length = (np.repeat(part[order], 2) for part in (address, length))
        address[1::2], length[1::2] = FILL, 70 - length[::2]
    runs = zip(address, length, strict=True)
    whole = joined([np.arange(a, a + n) if a >= 0 else np.full(n, FILL) for a, n in runs])
    names = {write(folder, address, length, step, 70 if fill else 1) for step in (8, EACH, 10_000)}
    [name] = names  # however the runs were divided
    assert verify_side_file(path_of(folder, name)) == []
    tape = SideTape(folder, name)
    assert tape.tokens == len(whole)
    if len(whole):
        first = rng.integers(0, len(whole), 99)
        end = np.minimum(first + rng.integers(1, 500, 99), len(whole))
        for together in (tapes.SOME, 1):  # all blocks at once, or one after the other
            found = np.full((99, 500), FILL)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(tapes, "SOME", together)
                pieces = tape.between(first, end)
            assert (np.diff(pieces.row) >= 0).all()
            for row, column, at, size in zip(*pieces, strict=True):
                found[row, column : column + size] = np.arange(at, at + size)
            for row in range(99):
                np.testing.assert_array_equal(
                    found[row, : end[row] - first[row]], whole[first[row] : end[row]]
                )
    for low, high in ((0, 10), (5, 5), (100, 900), (0, 1 << 40)):
        runs = list(zip(*tape.holding(low, high), strict=True))
        places = joined([np.arange(start, start + n) for start, _, n in runs])
        np.testing.assert_array_equal(places, np.flatnonzero((whole >= low) & (whole < high)))
        np.testing.assert_array_equal(whole[places], joined([np.arange(a, a + n) for _, a, n in runs]))


@pytest.mark.parametrize("place", [0, 17, 5000, -1, -200, None])
def test_a_damaged_side_file_is_named(tmp_path: Path, place: int | None) -> None:
    address = np.arange(0, 90_000, 9)
    name = write(tmp_path, address, np.full(len(address), 5), 999)
    path = path_of(tmp_path, name)
    data = bytearray(path.read_bytes())
    if place is None:
        data = data[:-9]
    else:
        data[place] ^= 4
    path.write_bytes(data)
    (problem,) = verify_side_file(path)
    assert str(path) in problem
    with suppress(IntegrityError):  # what is read all the same is right
        found = SideTape(tmp_path, name).between(np.array([0]), np.array([50_000])).address
        assert place == -200
        np.testing.assert_array_equal(found, address)
    path.unlink()
    with pytest.raises(IntegrityError, match="which belongs to a mix, is missing: copy it again"):
        SideTape(tmp_path, name)


@pytest.mark.parametrize("longest", [(1 << 15) - 1, 1 << 15, (1 << 16) - 1, MOST + 5])
def test_runs_of_any_length_are_found(tmp_path: Path, longest: int) -> None:
    """Those that take 2 bytes in their block, 4 bytes, and more than a run may have."""
    length = np.array([100, longest, 7])
    address, ends = np.cumsum(length + 1), np.cumsum(length)
    tape = SideTape(tmp_path, write(tmp_path, address, length, 9))
    for run, end in enumerate(ends.tolist()):
        for tokens in (3, int(length[run])):
            pieces = tape.between(np.array([end - tokens]), np.array([end]))
            assert pieces.length.sum() == tokens
            assert pieces.address[0] == address[run] + length[run] - tokens
            assert (pieces.address + pieces.length)[-1] == address[run] + length[run]


WISH = request("9000:it=0.75,en=0.25", "1500:en=1", seq_len=31, max_epochs=20, pack="best-fit")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shards and a packed mix.json of two sources, several epochs of one."""
    rng, folder = np.random.default_rng(1), tmp_path_factory.mktemp("packed")
    lengths = {"it": rng.integers(1, 50, 70), "en": rng.integers(1, 90, 20)}
    texts = {name: [rng.integers(1, 1000, n).tolist() for n in some] for name, some in lengths.items()}
    make_shards(folder / "shards", texts)
    run_mix(folder / "shards", folder / "mix.json", WISH)
    return folder


def test_shares_of_packed_sequences_are_those_of_learned_tokens(packed: Path) -> None:
    """Exact at the end of an epoch."""
    view = pretok.stream.open(packed / "shards", packed / "mix.json")
    entries = {one.name: one for one in view.mix.sources}
    learned, reads = dict.fromkeys(entries, 0), dict.fromkeys(entries, 0)
    for position in range(view.mix.stages[0].positions):
        name = view.origin(position)[0]
        ids = view[position]
        learned[name] += int((~((ids[1:] == EOD) & (ids[:-1] == EOD))).sum())
        reads[name] += 1
        if reads[name] % entries[name].sequences == 0:
            assert learned[name] == reads[name] * entries[name].predicted(31)
    assert learned["it"] / sum(learned.values()) == pytest.approx(0.75, abs=0.01)
    assert sum(learned.values()) == pytest.approx(9000, abs=100)


def test_a_damaged_tape_is_made_again_as_its_error_says(packed: Path) -> None:
    view = pretok.stream.open(packed / "shards", packed / "mix.json")
    path, everything = path_of(packed / "side_files", view.mix.sources[0].tape), view[:]
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    for _ in range(2):  # a mix that is made again takes the file that is there
        with pytest.raises(IntegrityError, match="or make the mix again without this file"):
            pretok.stream.open(packed / "shards", packed / "mix.json")[:]
        run_mix(packed / "shards", packed / "mix.json", WISH)
    path.unlink()
    run_mix(packed / "shards", packed / "mix.json", WISH)
    np.testing.assert_array_equal(pretok.stream.open(packed / "shards", packed / "mix.json")[:], everything)


def test_documents_without_text_cannot_be_packed(tmp_path: Path) -> None:
    """An EOD predicts nothing."""
    shards = make_shards(tmp_path / "shards", {"it": [[], [], []]})
    with pytest.raises(UsageError, match="source it has 3 tokens, less than one sequence"):
        run_mix(shards, tmp_path / "mix.json", request("9:it=1", seq_len=9, pack="best-fit"))


def test_a_mix_that_reads_behind_its_tape_is_refused(packed: Path) -> None:
    mix = load_mix(packed / "mix.json")
    sources = tuple(replace(one, sequences=1 << 40) for one in mix.sources)
    write_mix(packed / "forged.json", replace(mix, sources=sources), {})
    with pytest.raises(IntegrityError, match="damaged"):
        pretok.stream.open(packed / "shards", packed / "forged.json").batch(range(len(mix)))


def test_a_tape_of_another_source_is_refused(packed: Path) -> None:
    """Though the mix names it, with a fingerprint that is right."""
    shards, mix = packed / "shards", load_mix(packed / "mix.json")
    en, it = mix.sources
    write_mix(packed / "wrong.json", replace(mix, sources=(en, replace(it, tape=en.tape))), {})
    with pytest.raises(IntegrityError, match="belongs to other shards"):
        pretok.stream.open(shards, packed / "wrong.json")
