"""A trained checkpoint opens in `transformers` with equal logits, and comes back in."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path

import pytest
from support import make_shards, needs

torch = needs("torch")
import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.records import replace
from pretok.shards.manifest import load_manifest, write_manifest
from pretok.tokenizer.vocabulary import load_vocab
from tests.train_support import (
    add_tokenizer,
    column,
    filled,
    model_file,
    random_shards,
    run_jobs,
)
from train.__main__ import main
from train.checkpoint import export
from train.checkpoint.meta import find_checkpoints
from train.model.sizes import ModelConfig
from train.model.transformer import Decoder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("export")
    shards = random_shards(folder / "shards")
    add_tokenizer(shards)
    found = {tied: folder / f"run-{tied}" for tied in (True, False)}
    # Written by two processes, each holding half: the export puts them together.
    saved = ("--shard", 2, "--save-every", 3)
    models = {tied: model_file(folder, tied=tied) for tied in found}
    run_jobs([(2, [*arguments(shards, run, models[tied]), *saved]) for tied, run in found.items()], folder)
    return found


def arguments(shards: Path, run: Path, model: str) -> list[object]:
    return [
        *("--shards", shards, "--out", run, "--model", model, "--seq-len", 16, "--global-batch", 8),
        *("--steps", 6, "--lr", 0.01, "--warmup", 1, "--workers", 0),
    ]


def exported(runs: dict[bool, Path], tied: bool, out: Path, *more: str) -> Path:
    run = runs[tied]
    main(["export", "--run", str(run), "--out", str(out), *more])
    return out


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_gives_equal_logits(runs: dict[bool, Path], tied: bool, tmp_path: Path) -> None:
    transformers = needs("transformers")
    out = exported(runs, tied, tmp_path / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    assert theirs.config.vocab_size == 60
    tokens = torch.randint(0, 60, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = loaded(out)(tokens)[..., :60]
        torch.testing.assert_close(theirs(tokens).logits, expected)
    assert expected.std() > 0.01


def test_a_model_of_documents_with_a_bos_says_so(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", {"it": [[3, *range(4, 50)]] * 40}, vocab_size=60)
    add_tokenizer(shards)
    manifest = load_manifest(shards)
    write_manifest(shards, replace(manifest, tokenizer=replace(manifest.tokenizer, bos_id=3)))
    settings = [
        *arguments(shards, tmp_path / "run", model_file(tmp_path)),
        "--steps",
        1,
        "--attention",
        "document",
    ]
    main([*map(str, settings)])
    main(["export", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "model")])
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (3, 0)
    tokenizer = load_vocab(shards, eod="<eod>")
    roles = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    assert (roles["eos_token"], roles["bos_token"]) == ("<eod>", tokenizer.tokens[3])


def test_a_step_and_a_width_can_be_named(runs: dict[bool, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    early = load_file(exported(runs, True, tmp_path / "a", "--step", "3") / "model.safetensors")
    late = load_file(exported(runs, True, tmp_path / "b", "--dtype", "bfloat16") / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    assert late[name].dtype == torch.bfloat16
    assert not torch.allclose(early[name], late[name].float(), atol=1e-3)
    for path, message in (
        (runs[True], "It has: step-00000003, step-00000006"),
        (tmp_path, "It has: none"),
        (tmp_path / "norun", "norun has no checkpoint of step 4; name the folder of a run"),
    ):
        with pytest.raises(UsageError, match=message):
            find_checkpoints(path, 4)


def test_the_mean_of_the_last_checkpoints(runs: dict[bool, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run = runs[False]
    main(["export", "--run", str(run), "--last", "2", "--out", str(tmp_path / "mean")])
    one, other = (
        load_file(exported(runs, False, tmp_path / step, "--step", step) / "model.safetensors")
        for step in ("3", "6")
    )
    mean = load_file(tmp_path / "mean" / "model.safetensors")
    assert mean.keys() == one.keys()
    for name, value in mean.items():
        torch.testing.assert_close(value, (one[name] + other[name]) / 2)
    assert not torch.allclose(mean["lm_head.weight"], other["lm_head.weight"])
    assert sorted(path.name for path in (tmp_path / "mean").iterdir()) == sorted(
        path.name for path in (tmp_path / "6").iterdir()
    )
    with pytest.raises(SystemExit, match="2"):
        main(["export", "--run", str(run), "--last", "3", "--out", str(tmp_path / "none")])


@pytest.mark.parametrize("room", [0, 1000])
def test_a_full_disk_leaves_nothing_and_is_told_with_the_folder(
    runs: dict[bool, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], room: int
) -> None:
    whole = exported(runs, True, tmp_path / "whole")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limit[1]))
    try:
        with pytest.raises(SystemExit, match="75"):
            exported(runs, True, tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert f"train: cannot write {tmp_path}/" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [whole]
    assert len(list(exported(runs, True, tmp_path / "model").iterdir())) == len(list(whole.iterdir()))


@pytest.mark.parametrize("kind", ["exported", "checkpoint"])
def test_weights_start_a_run_with_other_positions(
    runs: dict[bool, Path], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = runs[True] / "checkpoints" / "step-00000003"
    if kind == "exported":
        source = exported(runs, True, tmp_path / "model", "--step", "3")
    command = arguments(runs[True].parent / "shards", tmp_path / "run", model_file(tmp_path))
    main([str(part) for part in (*command, "--init-from", source, "--rope-theta", "2e6", "--steps", 1)])
    assert f"rope_theta was 500000.0 in {source}, is 2000000.0" in capsys.readouterr().out
    [loss] = column(tmp_path / "run", "loss")
    assert 0 < abs(loss - column(runs[True], "loss")[0]) < 1


def test_a_run_begins_with_what_is_there(
    runs: dict[bool, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(runs[True].parent / "shards", tmp_path / "none", model_file(tmp_path))
    with pytest.raises(SystemExit, match="2"):
        main([str(part) for part in command] + ["--init-from", "PUT/THE/FIRST/MODEL/HERE"])
    assert "--init-from: PUT/THE/FIRST/MODEL/HERE is not a folder" in capsys.readouterr().err


def test_weights_start_another_run(runs: dict[bool, Path], tmp_path: Path) -> None:
    """The new run's first loss is that of the old weights: the one an unfinished run would go on with. On one rank and
    on two, from a checkpoint and from an exported model; and it goes on where what it began from is gone. The folder of
    a run stands for its newest checkpoint."""
    shards = runs[True].parent / "shards"
    saved = runs[True] / "checkpoints" / "step-00000003"
    model = exported(runs, True, tmp_path / "model", "--step", "3")
    jobs, starts = [], {}
    for ranks in (1, 2):
        for source in (saved, model):
            starts[ranks, source] = tmp_path / f"run-{ranks}-{source.name}"
            command = arguments(shards, starts[ranks, source], model_file(tmp_path))
            jobs.append((ranks, [*command, "--init-from", source, "--steps", 1]))
    for source in (runs[True], runs[True] / "checkpoints" / "step-00000006"):
        jobs.append(
            (1, [*arguments(shards, tmp_path / source.name, ""), "--init-from", source, "--steps", 1])
        )
        jobs[-1][1].remove("--model")
        jobs[-1][1].remove("")
    scratch = tmp_path / "scratch"
    jobs.append((1, [*arguments(shards, scratch, model_file(tmp_path)), "--steps", 1]))
    run_jobs(jobs, tmp_path)
    old, wanted = column(runs[True], "loss")[0], first_loss(model, shards)
    assert column(scratch, "loss") == pytest.approx([old], rel=1e-5)
    assert wanted != pytest.approx(old, rel=1e-4)
    newest = column(tmp_path / runs[True].name, "loss")
    assert newest == column(tmp_path / "step-00000006", "loss") != [pytest.approx(wanted, rel=1e-4)]
    for run in starts.values():
        assert column(run, "loss") == pytest.approx([wanted], rel=1e-5)
    model.rename(tmp_path / "gone")
    command = arguments(shards, starts[1, model], model_file(tmp_path))
    main([str(part) for part in (*command, "--init-from", model, "--steps", 2, "--schedule", "constant")])
    assert len(column(starts[1, model], "loss")) == 2


def loaded(folder: Path) -> Decoder:
    """The exported model, by our own reader."""
    sizes = {"vocab_size": 60, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 64}
    tied = json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    config = ModelConfig(**sizes, tied=tied)
    return filled(config, export.exported_tensors(folder, config, print))


def first_loss(weights: Path, shards: Path) -> float:
    tokens = torch.from_numpy(pretok.stream.open(shards, seq_len=16).batch(range(8)))
    with torch.no_grad():
        _, nll = loaded(weights)(tokens[:, :-1], tokens[:, 1:])
    return float(nll / tokens[:, 1:].numel())


def test_the_tokenizer_is_that_of_the_shards(runs: dict[bool, Path], tmp_path: Path) -> None:
    transformers = needs("transformers")
    out = exported(runs, True, tmp_path / "model")
    shards = runs[True].parent / "shards"
    assert (out / "tokenizer.json").read_bytes() == (shards / "tokenizer.json").read_bytes()
    opened = transformers.AutoTokenizer.from_pretrained(out)
    assert (opened.eos_token_id, opened.eos_token, len(opened)) == (0, "<eod>", 257)
    # Files beside a tokenizer that is named go along.
    named = tmp_path / "vocab"
    named.mkdir()
    (named / "tokenizer.json").write_text(json.dumps(json.loads((shards / "tokenizer.json").read_text())))
    (named / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    again = exported(runs, True, tmp_path / "again", "--tokenizer", str(named))
    assert (again / "tokenizer_config.json").read_text() == '{"chat_template": "x"}'


def test_another_tokenizer_is_refused(
    runs: dict[bool, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((runs[True].parent / "shards" / "tokenizer.json").read_text())
    data["model"]["vocab"]["new"] = 257
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(SystemExit) as caught:
        exported(runs, True, tmp_path / "model", "--tokenizer", str(tmp_path))
    assert caught.value.code == 2
    assert "is another tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_weights_of_a_model_that_is_not_computed_are_refused_by_name(
    runs: dict[bool, Path], tmp_path: Path
) -> None:
    """They would be trained as another model, without a word."""
    from safetensors.torch import load_file, save_file

    out = exported(runs, True, tmp_path / "model")
    path = out / "config.json"
    config = json.loads(path.read_text())
    for change, message in (
        ({"head_dim": 16}, "head_dim 16 (here 8)"),
        ({"rms_norm_eps": None}, "norm_eps 1e-06 (here 1e-05)"),
        ({"vocab_size": 128}, "rows 128 (here 60)"),
    ):
        changed = {key: value for key, value in (config | change).items() if value is not None}
        path.write_text(json.dumps(changed))
        with pytest.raises(MismatchError, match=re.escape(message)):
            loaded(out)
    plain = {
        "rope_scaling": {"rope_type": "default"},
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    }
    path.write_text(json.dumps(config | plain))
    loaded(out)
    tensors = load_file(out / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.bias"
    save_file(tensors | {name: torch.ones(32)}, out / "model.safetensors")
    with pytest.raises(MismatchError, match=f"has tensors that train does not support: {name}"):
        loaded(out)
    name = "model.norm.weight"
    save_file(tensors | {name: torch.ones(33)}, out / "model.safetensors")
    with pytest.raises(IntegrityError, match=rf"{name} has the shape \[33\], but config.json implies \[32\]"):
        loaded(out)
    del tensors["model.norm.weight"]
    save_file(tensors, out / "model.safetensors")
    with pytest.raises(MismatchError, match=r"lacks model\.norm\.weight"):
        loaded(out)
    path.write_text("{")
    with pytest.raises(IntegrityError, match="is not valid JSON"):
        export.exported_tensors(out, ModelConfig(dim=32, layers=2, heads=4, kv_heads=2, hidden=64), print)


def test_what_does_not_fit_is_refused(
    runs: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = exported(runs, True, tmp_path / "model")
    other = ModelConfig(vocab_size=60, dim=32, layers=3, heads=4, kv_heads=2, hidden=64)
    with pytest.raises(MismatchError, match=r"layers 2 \(here 3\)"):
        export.exported_tensors(out, other, print)
    checkpoint = runs[True] / "checkpoints/step-00000006"
    with pytest.raises(UsageError, match="exists already"):
        export.export([checkpoint], None, out, torch.float32)
    with pytest.raises(UsageError, match=r"tokenizer\.json does not exist"):
        export.export([checkpoint], tmp_path, tmp_path / "other", torch.float32)
    with pytest.raises(SystemExit) as caught:
        main(["export", "--run", str(tmp_path), "--tokenizer", "x", "--out", "y"])
    assert caught.value.code == 2
