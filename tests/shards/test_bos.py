"""A token before each document: BOS + ids + EOD, known to everything that knows of the EOD."""

from __future__ import annotations

import numpy as np
import pytest
from recording import RecordingConsole
from support import rehash, write_recipe
from tokenizing import recipe, run

import pretok
from pretok.base.errors import MismatchError
from pretok.base.records import replace
from pretok.cli import run_command
from pretok.config import Recipe, Vocab
from pretok.documents.audit.inspection import run_inspect
from pretok.documents.audit.show import document_heading, marked
from pretok.documents.audit.verify_job import run_verify
from pretok.documents.audit.verify_task import ShardCheck, check_shard
from pretok.overview.forecast.forecast_job import run_forecast
from pretok.shards.manifest import load_manifest
from pretok.shards.texts import load_vocabulary

NAME, BOS = "<|reserved_0|>", 2


def documents(made: Recipe) -> list[list[int]]:
    readers = [shard.open() for shard in load_manifest(made.shards_dir).shards]
    return [np.asarray(reader[n]).tolist() for reader in readers for n in range(len(reader))]


def test_each_document_is_bos_ids_eod_and_nothing_else_differs(folder, vocab_dir, here):
    plain = recipe(folder / "plain", vocab_dir, {"it": [folder / "in" / "it-*.jsonl"]})
    begun = plain.model_copy(update={"vocab": Vocab(path=vocab_dir, bos=NAME), "out": folder / "begun"})
    notices = [run(made, here)[1] for made in (plain, begun)][1]
    assert any(f"BOS {NAME!r} (id {BOS})" in notice for notice in notices)
    with_bos, without = load_manifest(begun.shards_dir), load_manifest(plain.shards_dir)
    assert sorted(documents(begun)) == sorted([BOS, *ids] for ids in documents(plain))
    assert with_bos.data["tokenizer"] == {**without.data["tokenizer"], "bos_id": BOS}
    assert with_bos.fingerprint != without.fingerprint
    assert run_verify(begun.shards_dir, None, here, RecordingConsole())[1] == []
    texts = [sorted(pretok.open(made.out).texts().read_all()["text"].to_pylist()) for made in (plain, begun)]
    assert texts[0] == texts[1]
    shown = run_inspect(begun.shards_dir, "it", 0)
    assert marked(shown.tokens).startswith(f"[{NAME}]")
    heading = document_heading(shown, load_vocabulary(with_bos))
    assert "the first is the beginning-of-document token" in heading[-1]
    sure, more = (run_forecast(made, 1, RecordingConsole()).tokens.value for made in (plain, begun))
    assert round(more - sure) == without.totals.documents

    for made, bos in ((begun, None), (begun, "<|pad|>"), (plain, NAME)):
        with pytest.raises(MismatchError, match="bos_id was"):
            run(made.model_copy(update={"vocab": Vocab(path=vocab_dir, bos=bos)}), here)
    shard = with_bos.shards[0]
    tokens = np.memmap(shard.bin_path, "<u2", mode="r+")
    tokens[0] = 300
    tokens.flush()
    task = ShardCheck(begun.shards_dir, replace(shard, root=rehash(shard.bin_path)), ())
    assert {"beginning-of-document" in problem for problem in check_shard(task, lambda _: None)} == {True}


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
    vocab = {"path": str(vocab_dir), "bos": bos}
    path = write_recipe(tmp_path / "bos.toml", {"it": str(tmp_path / "none.jsonl")}, vocab=vocab)
    assert run_command(["tokenize", path, "--out", str(tmp_path / "out"), "--workers", "0"]) == 2
    printed = capsys.readouterr().err
    assert said in " ".join(printed.split()), printed
    assert "none.jsonl" not in printed
    assert not (tmp_path / "out" / "shards").exists()
