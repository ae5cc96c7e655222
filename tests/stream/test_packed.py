"""Packed sequences hold whole documents, each once an epoch, wherever they are computed and however they are read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixing import best_fit, request
from support import EOD, make_shards

import pretok.stream
from pretok.base.errors import IntegrityError
from pretok.base.storage import fingerprint, read_json, write_json
from pretok.cli import run_command
from pretok.config import make_mix
from pretok.shards.manifest import load_manifest
from pretok.stream import View
from pretok.stream.mix_file import load_mix, mix_json, parse_mix
from pretok.stream.mix_job import MixRequest, plan_mix, run_mix
from pretok.stream.pack import pack, window_runs
from pretok.stream.tapes import FILL, FOLDER, path_of, verify_side_file


def packed(lengths: list[int], capacity: int) -> list[list[tuple[int, int, int]]]:
    """As `best_fit`, by the kernel."""
    begins = np.cumsum([0, *lengths])[:-1]
    address, length, learned = window_runs(begins, np.array(lengths, np.int64), capacity)
    ends = np.cumsum(length)
    assert (ends[-1] if len(ends) else 0) == len(learned) * capacity
    found: list[list[tuple[int, int, int]]] = [[] for _ in learned]
    for at, size, end in zip(address.tolist(), length.tolist(), ends.tolist(), strict=True):
        if at != FILL:
            document = int(np.searchsorted(begins, at, side="right")) - 1
            found[(end - 1) // capacity].append((document, at - int(begins[document]), size))
    return found


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 20))
@settings(max_examples=300)
def test_a_window_is_packed_by_best_fit_of_the_longest_first(lengths: list[int], capacity: int) -> None:
    assert packed(lengths, capacity) == best_fit(lengths, capacity)


def documents_of(rng: np.random.Generator, count: int, longest: int) -> list[list[int]]:
    return [rng.integers(1, 1000, size=rng.integers(1, longest)).tolist() for _ in range(count)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shards and a packed mix.json of two sources, several epochs of one."""
    rng, folder = np.random.default_rng(1), tmp_path_factory.mktemp("packed")
    make_shards(folder / "shards", {"it": documents_of(rng, 70, 50), "en": documents_of(rng, 20, 90)})
    wish = request("9000:it=0.75,en=0.25", "1500:en=1", seq_len=31, max_epochs=20, pack="best-fit")
    run_mix(folder / "shards", folder / "mix.json", wish)
    return folder


def opened(folder: Path) -> View:
    return pretok.stream.open(folder / "shards", folder / "mix.json")


def test_shares_are_those_of_learned_tokens(made: Path) -> None:
    """Exact at the end of an epoch; elsewhere within the bound of the order and what the report says of the spread."""
    view, report = opened(made), read_json(made / "mix.json")["report"]
    bound = report["stages"][0]["prefix_bound_tokens"]
    sizes = {source.name: source.sequences for source in view.mix.sources}
    learned = dict.fromkeys(sizes, 0)
    mean = {source.name: float(source.predicted(31)) for source in view.mix.sources}
    taken = dict.fromkeys(sizes, 0)
    first = view.mix.stages[0].positions
    for position in range(first):
        name = view.origin(position)[0]
        taken[name] += 1
        ids = view[position]
        learned[name] += int((~((ids[1:] == EOD) & (ids[:-1] == EOD))).sum())
        for source, spread in ((s, report["sources"][s]["spread_tokens"]) for s in sizes):
            away = 4 * spread * np.sqrt(sizes[source]) / 2
            assert abs(learned[source] - mean[source] * taken[source]) <= away
            total = sum(mean[s] * taken[s] for s in sizes)
            weight = {"it": 0.75, "en": 0.25}[source]
            assert abs(mean[source] * taken[source] - weight * total) <= 2 * bound[source] + 32
        if taken[name] % sizes[name] == 0:
            assert learned[name] == round(mean[name] * taken[name])
    assert learned["it"] / sum(learned.values()) == pytest.approx(0.75, abs=0.01)
    assert sum(learned.values()) == pytest.approx(9000, abs=100)


def test_repeat_reads_whole_epochs(made: Path) -> None:
    """However the budget in learned tokens is rounded."""
    for seq_len in (5, 31, 64):
        table = {"seq_len": seq_len, "pack": "best-fit", "repeat": {"it": 3, "en": 2}}
        mix, _ = plan_mix(load_manifest(made / "shards"), MixRequest(make_mix(table, "test")))
        times = {
            source.name: quota / source.sequences
            for source, quota in zip(mix.sources, mix.stages[0].quotas, strict=True)
        }
        assert times == {"it": 3, "en": 2}


def _missing(folder: Path, index: Path) -> None:
    index.unlink()


def _cut(folder: Path, index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-9])


def _changed(folder: Path, index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[18] ^= 1  # the start of the second run
    index.write_bytes(data)


def _of_another_length(folder: Path, index: Path) -> None:
    digest, _ = pack(folder / FOLDER, load_manifest(folder / "shards").of("it"), 15)
    data = read_json(folder / "mix.json")
    it = next(source for source in data["sources"] if source["name"] == "it")
    it["tape"] = digest
    write_json(folder / "mix.json", mix_json(parse_mix({**data, "fingerprint": _fingerprint(data)}, folder)))


def _fingerprint(data: dict[str, Any]) -> str:
    body = {key: value for key, value in data.items() if key not in ("fingerprint", "report")}
    return fingerprint(body)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_missing, "which belongs to a mix, is missing: copy it again"),
        (_cut, "truncated or not a side file"),
        (_changed, "is damaged"),
        (_of_another_length, "packs sequences of 15 tokens, not 31"),
    ],
)
def test_what_is_not_the_index_of_this_mix_is_refused_by_name(
    made: Path, tmp_path: Path, harm: Callable[[Path, Path], None], words: str
) -> None:
    folder = shutil.copytree(made, tmp_path / "made")
    source = next(source for source in load_mix(folder / "mix.json").sources if source.name == "it")
    harm(folder, path_of(folder / FOLDER, source.tape))
    with pytest.raises(IntegrityError, match=words):
        opened(folder)[:]
    if harm in (_cut, _changed):
        assert verify_side_file(path_of(folder / FOLDER, source.tape))


def test_an_export_warns_loudly(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mix = str(made / "mix.json")
    command = ["export", str(made / "shards"), "--mix", mix, "--to", "megatron", "--stage", "1"]
    assert run_command(command) == 0
    assert "warning: megatron cuts the documents by itself" in capsys.readouterr().err
