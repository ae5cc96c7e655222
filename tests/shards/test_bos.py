"""A token before each document: BOS + ids + EOD, known to everything that knows of the EOD."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import rehash
from telling import Told
from tokenizing import contents, recipe, run

import pretok
from pretok.audit.documents import run_inspect
from pretok.audit.show import document_heading, marked
from pretok.audit.verify_job import run_verify
from pretok.audit.verify_task import ShardCheck, check_shard
from pretok.base.errors import MismatchError
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.cli import run_command
from pretok.config import Recipe, Vocab
from pretok.forecast.job import run_forecast
from pretok.shards import job
from pretok.shards.manifest import load_manifest
from pretok.shards.texts import load_vocabulary

NAME, BOS = "<|reserved_0|>", 2


def beginning(made: Recipe, bos: str | None) -> Recipe:
    return made.model_copy(update={"vocab": Vocab(path=made.vocab.path, bos=bos)})


def recipe_file(folder: Path, file: Path, out: Path, vocab: Path, bos: str) -> Path:
    """A recipe whose documents begin with a token."""
    path = folder / "bos.toml"
    vocabulary = f'[vocab]\npath = "{vocab}"\nbos = "{bos}"\n'
    path.write_text(f'out = "{out}"\n{vocabulary}[sources.it]\ninputs = ["{file}"]\n')
    return path


@pytest.fixture
def plain(folder: Path, vocab_dir: Path) -> Recipe:
    return recipe(folder / "plain", vocab_dir, {"it": [folder / "in" / "it-*.jsonl"]})


@pytest.fixture
def begun(plain: Recipe, folder: Path, here: Engine) -> Recipe:
    """A finished output whose documents begin with a token, beside one whose documents do not."""
    run(plain, here)
    made = beginning(plain, NAME).model_copy(update={"out": folder / "begun"})
    run(made, here)
    return made


def documents(made: Recipe) -> list[list[int]]:
    readers = [shard.open() for shard in load_manifest(made.shards_dir).shards]
    return [np.asarray(reader[n]).tolist() for reader in readers for n in range(len(reader))]


def test_each_document_is_bos_ids_eod_and_nothing_else_differs(plain, begun, here):
    with_bos, without = load_manifest(begun.shards_dir), load_manifest(plain.shards_dir)
    assert sorted(documents(begun)) == sorted([BOS, *ids] for ids in documents(plain))
    totals = without.totals
    assert with_bos.totals.tokens == totals.tokens + totals.documents
    assert with_bos.data["tokenizer"] == {**without.data["tokenizer"], "bos_id": BOS}
    assert with_bos.fingerprint != without.fingerprint
    assert run_verify(begun.shards_dir, None, here, Told())[1] == []

    def rows(made: Recipe) -> list[dict[str, object]]:
        """In a fixed order, as other tokens go to other shards."""
        columns = ["file", "position", "hash", "tokens"]
        found = pretok.open(made.out).texts(columns=columns).read_all().to_pylist()
        return sorted(found, key=lambda row: (row["file"], row["position"]))

    assert rows(begun) == [{**row, "tokens": row["tokens"] + 1} for row in rows(plain)]
    shown = run_inspect(begun.shards_dir, "it", 0)
    assert marked(shown.tokens).startswith(f"[{NAME}]")
    heading = document_heading(shown, load_vocabulary(with_bos))
    assert "the first is the beginning-of-document token" in heading[-1]


def test_verify_misses_a_bos(begun, here):
    shard = load_manifest(begun.shards_dir).shards[0]
    tokens = np.memmap(shard.bin_path, "<u2", mode="r+")
    tokens[0] = 300
    tokens.flush()
    task = ShardCheck(begun.shards_dir, replace(shard, root=rehash(shard.bin_path)), ())
    problems = check_shard(task, lambda _: None)
    assert problems
    assert all("beginning-of-document" in problem for problem in problems)


def test_a_job_goes_on_with_the_same_bos_only(plain, begun, here, monkeypatch):
    before = contents(begun.shards_dir)
    run(begun, here)
    assert contents(begun.shards_dir) == before
    for made, bos in ((begun, None), (begun, "<|pad|>"), (plain, NAME)):
        with pytest.raises(MismatchError, match="bos_id was"):
            run(beginning(made, bos), here)
    monkeypatch.setattr(job, "seal", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    killed = begun.model_copy(update={"out": begun.out.with_name("killed")})
    with pytest.raises(KeyboardInterrupt):
        run(killed, here)
    with pytest.raises(MismatchError, match="bos_id was 2 and is None"):
        run(beginning(killed, None), here)


def test_plan_counts_it(plain, here):
    sure, more = (run_forecast(made, 1, Told()) for made in (plain, beginning(plain, NAME)))
    documents = sum(source.documents.value for source in sure.sources.values())
    assert more.tokens.value == sure.tokens.value + documents


@pytest.mark.parametrize(
    ("bos", "said"),
    [
        ("", "empty"),
        ("<bos>", "no special token '<bos>' to begin documents with"),
        ("a", "no special token 'a'"),
        ("<|endoftext|>", "'<|endoftext|>' both begins and ends documents"),
    ],
)
def test_a_wrong_bos_is_refused_before_anything_is_read(bos, said, vocab_dir, tmp_path, capsys):
    path = recipe_file(tmp_path, tmp_path / "none.jsonl", tmp_path / "out", vocab_dir, bos)
    assert run_command(["tokenize", str(path), "--workers", "0"]) == 2
    printed = capsys.readouterr().err
    assert said in " ".join(printed.split()), printed
    assert "none.jsonl" not in printed
    assert not (tmp_path / "out" / "shards").exists()


def test_the_command_and_python_say_what_they_took(folder, vocab_dir, capsys):
    path = recipe_file(folder, folder / "in" / "it-0.jsonl", folder / "a", vocab_dir, NAME)
    assert run_command(["tokenize", str(path), "--workers", "0"]) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert f"each document ends with '<|endoftext|>' (id 0) and begins with {NAME!r} (id 2)" in printed
    work = pretok.tokenize(
        {"it": folder / "in" / "it-0.jsonl"}, folder / "b", vocab=vocab_dir, bos=NAME, workers=0, quiet=True
    )
    assert work.manifest.tokenizer.bos_id == BOS
    assert work.manifest.fingerprint == load_manifest(folder / "a" / "shards").fingerprint
