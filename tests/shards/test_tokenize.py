"""tokenize: exact ids, the same bytes whatever the workers and kills, every record accounted for."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from recording import RecordingConsole
from support import ROOT, SPECIAL
from tokenizers import Tokenizer
from tokenizing import contents, recipe, run

from pretok.base.errors import (
    MismatchError,
    PartitionsFailed,
    Stopped,
    UsageError,
)
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.base.stop import StopFlag
from pretok.config import Recipe
from pretok.shards import partition_record as record
from pretok.shards.manifest import FILE_NAME, load_manifest
from pretok.shards.shard_file import ShardReader
from pretok.shards.tokenize_job import run_tokenize
from pretok.shards.tokenize_task import PartitionWriter
from pretok.shards.unfinished import unfinished
from pretok.tokenizer.encoder import TRIED

ROLLS = 250
"""Repetitions that make one file hold several batches, so that it rolls over."""
KEEP = ["id", "n:integer"]


def italian(sample_texts: dict[str, list[str]]) -> list[str]:
    """The sample, and texts that spell special tokens."""
    return [*sample_texts["it"], *(f"prima{token}dopo {token}" for token in SPECIAL), "".join(SPECIAL) * 3]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, sample_texts) -> dict[str, list[Path]]:
    """The sample as files of several formats: plain (cut), gzip, zstd (rolls over), Parquet (cut)."""
    folder = tmp_path_factory.mktemp("inputs")
    rows = [{"text": text, "id": f"it/{n}", "n": n} for n, text in enumerate(italian(sample_texts))]
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]
    (folder / "a.jsonl").write_bytes(b"".join(lines[:60]) * 4)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[60:80])))
    (folder / "c.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(b"".join(lines[80:]) * ROLLS))
    english = {"text": sample_texts["en"], "id": sample_texts["en"], "n": [None] * len(sample_texts["en"])}
    pq.write_table(pa.table(english), folder / "en.parquet", row_group_size=20)
    return {"it": sorted(folder.glob("*.jsonl*")), "en": [folder / "en.parquet"]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, inputs, vocab_dir) -> Recipe:
    """A finished output, made in one process, of which a file filled several shards."""
    made = recipe(tmp_path_factory.mktemp("finished"), vocab_dir, inputs, KEEP)
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run(made, engine)
    names = [shard.prefix.name for shard in load_manifest(made.shards_dir).of("it")]
    assert len(names) > 4
    assert any(name.endswith("-1") for name in names)
    return made


def test_ids_are_those_of_tokenizers_and_documents_keep_their_order(finished, sample_texts, vocab_dir):
    tokenizer = Tokenizer.from_file(str(vocab_dir / "tokenizer.json"))
    it = italian(sample_texts)
    spelled = set(tokenizer.encode(it[-1], add_special_tokens=False).ids)
    assert spelled == {
        tokenizer.token_to_id(token) for token in SPECIAL
    }  # unless it is told that texts are text:
    tokenizer.encode_special_tokens = True
    expected = {"it": it[:60] * 4 + it[60:80] + it[80:] * ROLLS, "en": sample_texts["en"]}
    encoded = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in it + sample_texts["en"]}
    manifest = load_manifest(finished.shards_dir)
    for source, texts in expected.items():
        documents = {
            split: [d[:-1].tolist() for s in manifest.of(source, split) for d in _documents(s.prefix)]
            for split in ("train", "val")
        }
        assert len(documents["val"]) > 0
        train, val = iter(documents["train"]), iter(documents["val"])
        held_out = {tuple(d) for d in documents["val"]}
        for text in texts:  # a document is in train or in val, all its copies in the same one
            ids = encoded[text]
            assert next(val if tuple(ids) in held_out else train) == ids
        assert next(train, None) is None
        assert next(val, None) is None
        # At least one document of each shard was encoded again, also where a partition fills several.
        assert manifest.sources[source].compared >= len(manifest.of(source))


def _documents(prefix: Path) -> list[np.ndarray]:
    reader = ShardReader(prefix)
    return [np.asarray(reader[i]) for i in range(len(reader))]


def test_workers_do_not_change_a_byte(ray_address, tmp_path, inputs, finished, vocab_dir):
    backwards = {name: paths[::-1] for name, paths in reversed(inputs.items())}
    made = recipe(tmp_path, vocab_dir, backwards, KEEP)
    with StopFlag() as stop, Engine(2, ray_address, stop) as engine:
        run(made, engine)
    assert contents(made.shards_dir) == contents(finished.shards_dir)


def test_changes_are_refused_by_name(tmp_path, inputs, vocab_dir, here):
    folder, other, out = tmp_path / "inputs", tmp_path / "other", tmp_path / "out"
    folder.mkdir()
    other.mkdir()
    paths = [Path(shutil.copy(path, folder)) for path in inputs["it"]]
    run(recipe(out, vocab_dir, {"it": paths}), here)
    changed = (vocab_dir / "tokenizer.json").read_text().replace('"<|reserved_0|>"', '"<|other|>"')
    (other / "tokenizer.json").write_text(changed)
    for message, made in {
        "val_fraction": recipe(out, vocab_dir, {"it": paths}, val_fraction="0.2"),
        "target": recipe(out, vocab_dir, {"it": paths}, size=8000),
        r"c\.jsonl\.zst is gone": recipe(out, vocab_dir, {"it": paths[:-1]}),
        "tokenizer": recipe(out, other, {"it": paths}),
    }.items():
        with pytest.raises(MismatchError, match=message):
            run(made, here)
    paths[0].write_bytes(paths[0].read_bytes() + b'{"text":"nuovo"}\n')
    with pytest.raises(MismatchError, match=r"a\.jsonl has other contents"):
        run(recipe(out, vocab_dir, {"it": paths}), here)


def failing_partition(monkeypatch, error: BaseException, times: int = 99) -> list[int]:
    """Make one partition raise so often; its tries."""
    real, tries = PartitionWriter.add, []

    def failing(self, *encoded):
        if self.task.partition.name == "it-00001" and len(tries) < times:
            tries.append(1)
            (self.task.shards_dir / "it" / ".it-00001.bin.gone-1.tmp").touch()  # as a worker that dies
            raise error
        return real(self, *encoded)

    monkeypatch.setattr(PartitionWriter, "add", failing)
    return tries


def test_a_partition_that_fails_is_named_and_the_rest_is_kept(
    tmp_path, inputs, finished, vocab_dir, here, monkeypatch
):
    """What may pass is tried again, here and by the next run."""
    made = recipe(tmp_path, vocab_dir, inputs, KEEP)
    tries = failing_partition(monkeypatch, OSError(errno.EIO, "disk error"))
    with pytest.raises(PartitionsFailed, match=r"it-00001: OSError: .*disk error"):
        run(made, here)
    assert len(tries) == 4
    assert list(load_manifest(made.shards_dir).sources) == ["en"]
    ((done, planned),) = unfinished(made.shards_dir).values()
    assert done == planned - 1  # the others are finished
    for path in inputs["it"]:  # of each, something that was read is kept
        data = path.read_bytes()
        path.write_bytes(data + b"\n")
        with pytest.raises(MismatchError, match=rf"unfinished shards of it .*{path.name} has other contents"):
            run(made, here)
        path.write_bytes(data)
    monkeypatch.undo()
    failing_partition(monkeypatch, OSError(errno.EIO, "passes"), times=2)
    run(made, here)
    found, wanted = load_manifest(made.shards_dir), load_manifest(finished.shards_dir)
    assert [list(event.shards) for event in found.history] == [["en"]]
    assert replace(found, history=()).at(wanted.folder) == wanted
    assert {**contents(made.shards_dir), FILE_NAME: b""} == {**contents(finished.shards_dir), FILE_NAME: b""}


def test_a_stop_says_how_far_it_came_and_the_next_run_goes_on_from_there(
    tmp_path, inputs, finished, vocab_dir, here
):
    made = recipe(tmp_path, vocab_dir, inputs, KEEP)
    stop = StopFlag()

    class StopsAfterTwo(RecordingConsole):
        def __call__(self, counts):
            super().__call__(counts)
            if self.counts["partitions"] == 2:
                stop._on_signal(signal.SIGTERM, None)

    first, second = StopsAfterTwo(), RecordingConsole()
    with pytest.raises(
        Stopped, match=r"run the same command again to continue; 2 of [0-9]+ partitions"
    ) as stopped:
        run_tokenize(made, Engine(0, None, stop), first)
    run_tokenize(made, here, second)
    assert second.expected == first.expected
    total = int(str(stopped.value).split(" of ")[1].split()[0])
    said = f"{total} partitions to tokenize, 2 of them done by an earlier run"
    assert any(said in text for text in second.notices)
    totals = {**load_manifest(made.shards_dir).data["totals"], "partitions": total}
    for key in ("documents", "tokens", "bytes", "partitions"):
        assert second.before[key] > 0
        assert second.before[key] + second.counts[key] == totals[key]
    assert contents(made.shards_dir) == contents(finished.shards_dir)


def test_large_vocabularies_take_int32_and_a_slow_engine_is_announced_once(tmp_path, vocab_dir, here):
    data = json.loads((vocab_dir / "tokenizer.json").read_text())
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{L}+|\P{L}"
    for i in range(70_000):
        data["model"]["vocab"].setdefault(f"unused{i}", 1500 + i)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    (tmp_path / "a.jsonl").write_text('{"text": "ciao"}\n')
    made = recipe(tmp_path / "out", tmp_path, {"it": [tmp_path / "a.jsonl"]}, val_fraction="0")
    _, notices = run(made, here)
    assert sum("encoding with tokenizers instead, at about 1.3 MB/s" in text for text in notices) == 1
    manifest = load_manifest(made.shards_dir)
    assert manifest.tokenizer.dtype == "int32"
    assert ShardReader(manifest.shards[0].prefix).dtype == np.dtype("<i4")


@pytest.mark.parametrize("begun", ["killed", "appended"])
def test_ids_of_two_engines_are_not_mixed(tmp_path, inputs, vocab_dir, here, monkeypatch, begun):
    """Versions of packages that do not decide ids are all listed."""
    first = again = recipe(tmp_path, vocab_dir, {"it": inputs["it"]})
    if begun == "killed":
        with monkeypatch.context() as patch:
            failing_partition(patch, Stopped("killed"))
            with pytest.raises(Stopped):
                run(first, here)
    else:
        run(first, here)
        again = recipe(tmp_path, vocab_dir, {"it": inputs["it"]}, append={"it": inputs["en"]})
    installed = record.software()

    def install(**versions: str) -> None:
        for module in ("tokenize_job", "seal", "partition_record"):
            monkeypatch.setattr(f"pretok.shards.{module}.software", lambda: {**installed, **versions})

    for engine in ("gigatoken", "tokenizers"):
        install(**{engine: "99.1"})
        with pytest.raises(MismatchError, match=f"{engine} was '{installed[engine]}' and is '99.1'"):
            run(again, here)
    install(pyarrow="99.1")
    run(again, here)
    made = load_manifest(first.shards_dir).software
    assert made["pyarrow"] == ("99.1" if begun == "killed" else f"{installed['pyarrow']}, 99.1")
    assert made["gigatoken"] == installed["gigatoken"]


def test_a_worker_of_another_environment_gives_no_ids(tmp_path, inputs, vocab_dir, here, monkeypatch):
    made = recipe(tmp_path, vocab_dir, {"it": inputs["it"]})
    monkeypatch.setattr("pretok.shards.tokenize_job.software", lambda: {**record.software(), "numpy": "99.1"})
    with pytest.raises(MismatchError, match=rf"{os.uname().nodename} has numpy .* instead of 99\.1"):
        run(made, here)
    assert not list(made.shards_dir.rglob("*.bin"))


@pytest.mark.parametrize("version", ["0.11.0", "1.0", "0.9.9"])
def test_an_engine_that_nobody_tried_is_refused(tmp_path, inputs, vocab_dir, here, monkeypatch, version):
    """Before anything is written; the versions that are tested are those that pip takes."""
    monkeypatch.setattr("pretok.base.version.version", lambda _: version)
    monkeypatch.setattr("pretok.shards.tokenize_task._loaded", {})
    made = recipe(tmp_path, vocab_dir, {"it": inputs["it"]})
    with pytest.raises(UsageError, match=rf"gigatoken {version} on .* known are {TRIED}\.\*: pip install"):
        run(made, here)
    assert not list(made.shards_dir.rglob("*.bin"))
    newest = f"{TRIED.split('.')[0]}.{int(TRIED.split('.')[1]) + 1}"
    assert f'"gigatoken>={TRIED},<{newest}"' in (ROOT / "pyproject.toml").read_text()
    assert f"\ngigatoken=={TRIED}." in (ROOT / "constraints.txt").read_text()
