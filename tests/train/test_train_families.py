"""Models of other makers: read from their folder, trained on any mesh, and given back as they came."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
transformers = needs("transformers")
import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.records import replace
from tests.train_support import add_tokenizer, column, filled, random_shards, run_jobs
from train.__main__ import main
from train.checkpoint.export import exported_tensors
from train.config import TrainConfig
from train.model.sizes import ModelConfig, model_config, transformers_config
from train.parallel.layout import Layout
from train.plan import count_tensors

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
ROWS = 70
"""Of the matrices; the tokenizer of the shards has 60 ids."""
SCALED = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("Llama", {"num_key_value_heads": 4}),
    "llama-3": ("Llama", {"num_key_value_heads": 2, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5}),
    "llama-3.1": ("Llama", {"num_key_value_heads": 2, **SCALED}),
    "llama-3.2": ("Llama", {"num_key_value_heads": 2, "tie_word_embeddings": True, "head_dim": 16, **SCALED}),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "sliding_window": None, "head_dim": 12}),
    "mistral-window": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 11}),
    "qwen-2": ("Qwen2", {"num_key_value_heads": 2}),
    "qwen-2-tied": ("Qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen-3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
}
MESHES: dict[str, tuple[object, ...]] = {
    "replicate-2-shard-2": ("--shard", 2),
    "shard-2-tensor-2": ("--shard", 2, "--tensor", 2),
    "replicate-2-tensor-2": ("--shard", 1, "--tensor", 2),
    "replicate-2-pipeline-2": ("--shard", 1, "--pipeline", 2),
}


def made(name: str, folder: Path, shards: Path | None = None, dtype: Any = torch.bfloat16) -> Path:
    """A small random model of transformers, in several files, with the tokenizer of `shards`."""
    kind, more = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=ROWS, bos_token_id=1, eos_token_id=0, **SIZES | more
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too: ones and zeros could be left out unseen
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(dtype).save_pretrained(folder, max_shard_size="20KB")
    if shards is not None:
        shutil.copy(shards / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shards = random_shards(tmp_path_factory.mktemp("families") / "shards")
    add_tokenizer(shards)
    return shards


def read(folder: Path, **changes: Any) -> Any:
    """The model by our own reader."""
    config = replace(model_config(str(folder)), **changes)
    return filled(config, exported_tensors(folder, config, print))


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path / "model", dtype=torch.float32)
    assert len(list(folder.glob("*.safetensors"))) > 1
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.randint(0, ROWS, (2, 48), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(tokens).logits
        model = read(folder)
        torch.testing.assert_close(model(tokens)[..., :ROWS], expected, rtol=1e-5, atol=1e-5)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == model.config.parameters
    assert 4 * count == count_tensors(model.config, Layout(1, 1, 1), 1, 1, 16, TrainConfig()).parameters
    assert expected.std() > 0.1


def arguments(shards: Path, folder: Path, run: Path, *more: object) -> list[object]:
    return [
        *("--shards", shards, "--out", run, "--init-from", folder, "--seq-len", 16, "--global-batch", 8),
        *("--micro-batch", 2, "--warmup", 0, "--workers", 0, "--schedule", "constant", *more),
    ]


@pytest.fixture(scope="module")
def folder(shards: Path) -> Path:
    """Of each model: a folder, and on every mesh that it can be on a run that learned nothing; and of one model three
    steps that did learn."""
    folder, jobs = shards.parent, []
    for name in MODELS:
        source = made(name, folder / name, shards)
        for mesh, flags in MESHES.items():
            if name in ("qwen-2", "qwen-3", "mistral") or mesh == "shard-2-tensor-2":
                run = folder / f"{name}-{mesh}"
                jobs.append((4, arguments(shards, source, run, "--lr", 0, "--steps", 1, *flags)))
    learn = ("--lr", 0.01, "--steps", 3)
    for mesh, flags in MESHES.items():
        jobs.append((4, arguments(shards, folder / "qwen-2", folder / f"learned-{mesh}", *learn, *flags)))
    jobs.append((1, arguments(shards, folder / "qwen-2", folder / "learned", *learn)))
    (folder / "output").write_text(run_jobs(jobs, folder, before=tell_reads))
    return folder


def tell_reads() -> None:
    """Let a rank write how much of a folder it reads."""
    from train import setup

    def told(folder: Path, config: ModelConfig, *more: Any) -> Any:
        value = exported_tensors(folder, config, *more)

        def piece(*more: Any) -> Any:
            found = value(*more)
            print(f"read {folder.name} {found.numel()}")
            return found

        return piece

    setup.exported_tensors = told


@pytest.mark.slow
def test_each_part_is_read_once(folder: Path) -> None:
    """By one rank, of however many that have it."""
    read = [
        int(line.split()[2])
        for line in (folder / "output").read_text().splitlines()
        if line.startswith("read mistral ")
    ]
    assert sum(read) == len(MESHES) * model_config(str(folder / "mistral")).parameters


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_as_it_came(folder: Path, name: str, tmp_path: Path) -> None:
    """Bit for bit, the rows beyond the tokenizer too, from every mesh; and transformers takes it for the same model."""
    for mesh in MESHES:
        if not (run := folder / f"{name}-{mesh}").exists():
            continue
        out = tmp_path / mesh
        main(["export", "--run", str(run), "--out", str(out)])
        came, back = tensors(folder / name), tensors(out)
        assert came.keys() == back.keys()
        for tensor in came:
            assert came[tensor].dtype == back[tensor].dtype == torch.bfloat16
            assert torch.equal(came[tensor], back[tensor]), (mesh, tensor)
        first, again = (
            transformers.AutoConfig.from_pretrained(path).to_dict() for path in (folder / name, out)
        )
        free = {"bos_token_id", "transformers_version", "head_dim", "_name_or_path"}
        assert {key: first[key] for key in first.keys() - free} == {
            key: again[key] for key in first.keys() - free
        }


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_biases_learn_alike_on_every_mesh(folder: Path, mesh: str) -> None:
    for name in ("loss", "grad_norm"):
        expected = column(folder / "learned", name)
        assert column(folder / f"learned-{mesh}", name) == pytest.approx(
            expected, rel=2e-3 if name == "grad_norm" else 1e-5
        )


@pytest.mark.slow
def test_rows_beyond_the_tokenizer_are_never_predicted(folder: Path, shards: Path) -> None:
    """The loss is that of a softmax without them."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "qwen-2", dtype=torch.float32).eval()
    batch = torch.from_numpy(pretok.stream.open(shards, seq_len=16).batch(range(8)))
    with torch.no_grad():
        logits = theirs(batch[:, :-1]).logits
    loss, whole = (
        torch.nn.functional.cross_entropy(part.flatten(0, 1), batch[:, 1:].flatten().long())
        for part in (logits[..., :60], logits)
    )
    first = column(folder / "learned", "loss")[0]
    assert first == pytest.approx(float(loss), rel=1e-5)
    assert first != pytest.approx(float(whole), rel=1e-3)


def test_a_run_goes_on_where_the_folder_is_gone(shards: Path, tmp_path: Path) -> None:
    source = made("mistral", tmp_path / "model", shards)
    command = [str(part) for part in arguments(shards, source, tmp_path / "run", "--lr", 0)]
    main([*command, "--steps", "1"])
    shutil.rmtree(source)
    main([*command, "--steps", "2"])
    assert len(column(tmp_path / "run", "loss")) == 2
    # A checkpoint has sizes too.
    [newest] = (tmp_path / "run" / "checkpoints").glob("step-00000002")
    other = [str(part) for part in arguments(shards, newest, tmp_path / "other", "--steps", 1)]
    main(other)
    assert model_config(str(newest)).family == "mistral"


def test_the_tokenizer_of_the_folder_is_that_of_the_shards(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made("qwen-3", tmp_path / "model", shards)
    command = [str(part) for part in arguments(shards, source, tmp_path / "run", "--steps", 1)]
    data = json.loads((source / "tokenizer.json").read_text())
    data["model"]["vocab"]["new"] = 257
    (source / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(SystemExit, match="2"):
        main(command)
    assert "is another tokenizer than that of" in capsys.readouterr().err
    (source / "tokenizer.json").unlink()
    main(command)
    assert f"{source} has no tokenizer.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llama-3.1", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling is {'rope_type': 'yarn"),
        ("llama-3.1", {"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "rope_scaling is {'rope_type'"),
        ("llama-3", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_scaling is {'partial_rotary_factor'"),
        ("llama-3", {"attention_bias": True}, "attention_bias is True, not False"),
        ("llama-3", {"mlp_bias": True, "hidden_act": "gelu"}, "hidden_act is 'gelu', not 'silu'"),
        ("llama-3", {"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ("llama-3", {"auto_map": {"AutoModel": "theirs.Model"}}, "auto_map is {'AutoModel'"),
        ("qwen-3", {"is_causal": False}, "is_causal is False"),
        ("llama-3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama-3", {"hidden_size": None}, "hidden_size is missing"),
        ("llama-3", {"model_type": "gemma"}, "model_type is gemma; train supports llama, mistral, qwen2, qwen3"),
        ("mistral", {"layer_types": ["sliding_attention"] * 2}, "layer_types is"),
        ("qwen-2", {"use_sliding_window": True}, "use_sliding_window is True"),
        ("qwen-2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = made(name, tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(MismatchError) as caught:
        model_config(str(folder))
    assert message in str(caught.value)


def test_keys_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    """Those of Qwen 2.5 as it was published, but for its sizes."""
    published = {
        **{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643},
        **{"eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02},
        **{"intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24},
        **{
            "model_type": "qwen2",
            "num_attention_heads": 14,
            "num_hidden_layers": 24,
            "num_key_value_heads": 2,
        },
        **{
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "tie_word_embeddings": True,
        },
        **{
            "torch_dtype": "bfloat16",
            "transformers_version": "4.40.1",
            "use_cache": True,
            "use_mrope": False,
        },
        **{"use_sliding_window": False, "vocab_size": 151936},
    }
    (tmp_path / "config.json").write_text(json.dumps(published))
    config = model_config(str(tmp_path))
    assert (config.parameters, config.matrix_rows, config.seq_len) == (494_032_768, 151_936, 4096)
    again = transformers_config(config, 151643)
    assert {key: again[key] for key in again.keys() & published.keys()}.items() <= published.items()
    assert published.keys() - again.keys() <= {
        *(
            "initializer_range",
            "max_window_layers",
            "sliding_window",
            "transformers_version",
            "use_cache",
            "use_mrope",
        )
    }


def test_a_mistral_that_names_no_window_has_one(tmp_path: Path) -> None:
    path = made("mistral", tmp_path / "model") / "config.json"
    config = json.loads(path.read_text())
    del config["sliding_window"]
    path.write_text(json.dumps(config))
    assert model_config(str(path.parent)).window == 4096


def test_a_file_of_sizes_can_describe_such_a_model(tmp_path: Path) -> None:
    folder, path = made("llama-3.2", tmp_path / "model"), tmp_path / "sizes.toml"
    scaling = "factor = 8, low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 32"
    path.write_text(
        "dim = 32\nlayers = 2\nheads = 4\nkv_heads = 2\nhidden = 64\nhead_dim = 16\nnorm_eps = 1e-6\nrows = 70\n"
        f"vocab_size = 70\nrope_theta = 1e4\nrope_scaling = {{{scaling}}}\n"
    )
    exported_tensors(folder, model_config(str(path)), print)
    path.write_text(path.read_text().replace("high_freq_factor", "high"))
    with pytest.raises(UsageError, match=r"unknown field `high` - at `\$.rope_scaling`"):
        model_config(str(path))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = made("qwen-3", tmp_path / "model")
    with pytest.raises(UsageError, match="70 rows are fewer than the 71 ids"):
        read(folder, vocab_size=71)
    with pytest.raises(MismatchError, match=r"head_dim 16 \(here 8\)"):
        exported_tensors(folder, replace(model_config(str(folder)), head_dim=8), print)
    some = next(folder.glob("*.safetensors"))
    some.write_bytes(some.read_bytes()[:-100])
    with pytest.raises(IntegrityError, match=some.name):
        read(folder)
    some.unlink()
    with pytest.raises(IntegrityError, match=some.name):
        read(folder)
    for both in ({"qkv_bias": True, "qk_norm": True}, {"family": "qwen2"}, {"window": 4, "qk_norm": True}):
        with pytest.raises(UsageError, match="of transformers"):
            ModelConfig(dim=32, layers=1, heads=4, kv_heads=2, hidden=64, **both)
