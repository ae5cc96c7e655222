"""--init-from a model of an old vocabulary, --vocab-map: old rows stay, new ones are means of what they are made of."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from support import needs

torch = needs("torch")

from safetensors.torch import load_file, save_file

from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import replace
from pretok.base.storage import read_json, write_json
from pretok.base.vocab_map import FILE_NAME, MapEnd, read_map, write_map
from tests.train_support import add_tokenizer, filled, tiny_config
from train import loop
from train.checkpoint.export import export, exported_tensors, tokenizer_fingerprint, transformers_config
from train.model.sizes import ModelConfig
from train.model.transformer import Decoder, initial_tensor

OLD = ModelConfig(vocab_size=50, dim=32, layers=2, heads=4, kv_heads=2, hidden=64, seq_len=16, tied=False)
ROWS = {7: (1, 2, 2), **{i: (i - 40, i - 30) for i in range(50, 60)}}
"""Entry 7 gave its row away, and ten are new."""


def old_model(folder: Path, sizes: ModelConfig = OLD) -> Decoder:
    """A model of the old vocabulary, exported, with a tokenizer."""
    folder.mkdir()
    model = filled(sizes, partial(initial_tensor, sizes, 3))
    rows = {"embed_tokens.weight", "lm_head.weight"}
    tensors = {
        (name if name.startswith("lm_head") else f"model.{name}"): value[: sizes.vocab_size]
        if name in rows
        else value
        for name, value in model.state_dict().items()
    }
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    write_json(folder / "config.json", transformers_config(sizes, 0))
    write_json(folder / "tokenizer.json", {"model": "the old one"})
    return model


def map_to(path: Path, fingerprint: str = "new") -> str:
    old = MapEnd(OLD.vocab_size, tokenizer_fingerprint({"model": "the old one"}))
    write_map(path, old, MapEnd(60, fingerprint), ROWS)
    return str(path)


@pytest.mark.parametrize("tied", [True, False])
def test_rows_are_copied_or_means(tmp_path: Path, tied: bool) -> None:
    old = old_model(tmp_path / "model", replace(OLD, tied=tied))
    sizes = replace(OLD, tied=tied, vocab_size=60)
    found = read_map(Path(map_to(tmp_path / FILE_NAME)))
    new = filled(sizes, exported_tensors(tmp_path / "model", sizes, print, found))
    before, after = old.state_dict(), new.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        if name not in ("embed_tokens.weight", "lm_head.weight"):
            assert torch.equal(after[name], value)
            continue
        kept = [i for i in range(50) if i not in ROWS]
        assert torch.equal(after[name][kept], value[kept])
        for row, parts in ROWS.items():
            assert torch.equal(after[name][row], value[list(parts)].mean(0))
        assert not after[name][60:].any()
    tokens = torch.tensor([[i for i in range(50) if i != 7]])
    old.norm = new.norm = None  # they return hidden states
    with torch.no_grad():
        assert torch.equal(new(tokens), old(tokens))


def test_a_run_begins_with_it(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "shards")
    add_tokenizer(tmp_path / "shards")
    fingerprint = tokenizer_fingerprint(read_json(tmp_path / "shards" / "tokenizer.json"))
    old_model(tmp_path / "model", replace(OLD, tied=True))

    def train(**more: object) -> None:
        settings = {"init_from": str(tmp_path / "model"), "steps": 1, **more}
        loop.train(tiny_config(tmp_path / "shards", tmp_path, **settings))

    with pytest.raises(MismatchError, match=r"with --vocab .*, or give the --vocab-map made from it"):
        train()
    with pytest.raises(UsageError, match="--vocab-map needs --init-from"):
        train(init_from=None, vocab_map=map_to(tmp_path / FILE_NAME))
    with pytest.raises(MismatchError, match="leads to another vocabulary"):
        train(vocab_map=map_to(tmp_path / FILE_NAME))
    ours = map_to(tmp_path / FILE_NAME, fingerprint)
    write_json(tmp_path / "model" / "tokenizer.json", {"model": "another one"})
    with pytest.raises(MismatchError, match=r"is another tokenizer than that of the model .* starts from"):
        train(vocab_map=ours)
    (tmp_path / "model" / "tokenizer.json").unlink()
    train(vocab_map=ours, lr=0.0)
    out, made = tmp_path / "exported", {int(row): parts for row, parts in ROWS.items()}
    export([tmp_path / "run" / "checkpoints" / "step-00000001"], None, out, None)
    assert (out / "tokenizer.json").read_bytes() == (tmp_path / "shards" / "tokenizer.json").read_bytes()
    before = load_file(tmp_path / "model" / "model.safetensors")["model.embed_tokens.weight"]
    after = load_file(out / "model.safetensors")["model.embed_tokens.weight"]
    assert after.shape[0] == 60
    for row in range(60):
        assert torch.equal(after[row], before[list(made[row])].mean(0) if row in made else before[row])
    opens = needs("transformers").AutoModelForCausalLM.from_pretrained(str(out))
    assert opens.config.vocab_size == 60
    checkpoint = str(tmp_path / "run" / "checkpoints" / "step-00000001")
    with pytest.raises(UsageError, match="is a checkpoint; export it with train export"):
        train(
            init_from=checkpoint,
            vocab_map=ours,
            out=str(tmp_path / "other"),
        )


def test_a_piece_is_that_of_the_whole(tmp_path: Path) -> None:
    """Each rank reads what it keeps."""
    old_model(tmp_path / "model")
    sizes = replace(OLD, vocab_size=60)
    value = exported_tensors(tmp_path / "model", sizes, print, read_map(Path(map_to(tmp_path / FILE_NAME))))
    cpu = torch.device("cpu")
    for name in ("embed_tokens.weight", "lm_head.weight"):
        whole = value(name, (128, 32), cpu)
        for row, column, rows, columns in (
            (0, 0, 32, 32),
            (32, 0, 32, 16),
            (40, 16, 88, 16),
            (96, 0, 32, 32),
        ):
            part = slice(row, row + rows), slice(column, column + columns)
            assert torch.equal(value(name, (128, 32), cpu, part), whole[part])


def test_a_model_that_a_map_does_not_begin_with_is_refused(tmp_path: Path) -> None:
    found = read_map(Path(map_to(tmp_path / FILE_NAME)))
    old_model(tmp_path / "small", replace(OLD, vocab_size=40))
    with pytest.raises(MismatchError, match="has rows for 40 entries, but --vocab-map starts from 50"):
        exported_tensors(tmp_path / "small", replace(OLD, vocab_size=60), print, found)
