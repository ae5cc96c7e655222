"""`train generate` continues a text as the exported model does in `transformers`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import needs

torch = needs("torch")
from tests.train_support import reseal
from train.__main__ import main
from train.checkpoint.meta import read_meta
from train.model.transformer import Decoder

PROMPT = "!#$%&()*+,-./" * 3  # bytes whose ids a vocabulary of 60 has, more than a sequence of 16


Written = Callable[..., str]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Written:
    """What the command writes that has these arguments."""

    def written_by(*arguments: object) -> str:
        capsys.readouterr()
        main(["generate", *map(str, arguments)])
        return capsys.readouterr().out

    return written_by


def test_the_likeliest_tokens_are_those_of_transformers(
    trained: Path, tmp_path: Path, written: Written
) -> None:
    transformers = needs("transformers")
    main(["export", "--run", str(trained), "--out", str(tmp_path / "model")])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = tokenizer(PROMPT)["input_ids"]
    for _ in range(12):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids[-16:]])).logits[0, -1].argmax()))
    assert tokenizer.eos_token_id not in ids
    assert written(trained, PROMPT, "--tokens", 12, "--temperature", 0) == tokenizer.decode(ids) + "\n"


def test_a_seed_gives_a_text_and_another_step_another(trained: Path, written: Written) -> None:
    first = written(trained, "!#", "--tokens", 20)
    assert first.startswith("!#")
    assert written(trained, "!#", "--tokens", 20, "--seed", 2**64) == first
    assert written(trained, "!#", "--tokens", 20, "--seed", 1) != first
    steps = [written(trained, "!#", "--tokens", 99, "--step", step) for step in (2, 4)]
    assert steps[0] != steps[1]


def test_an_end_of_document_ends_it_and_the_model_sees_no_more_than_a_sequence(
    trained: Path, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []

    def forward(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
        widths.append(tokens.shape[1])
        chosen = (5, 6, 0, 7)[len(widths) - 1]  # 0 is <eod>
        return torch.nn.functional.one_hot(torch.full(tokens.shape, chosen), model.config.padded_vocab)

    monkeypatch.setattr(Decoder, "forward", forward)
    assert written(trained, PROMPT, "--temperature", 0) == PROMPT + "%&\n"
    assert widths == [16] * 3


def test_a_run_whose_shards_are_elsewhere_is_continued_with_its_tokenizer(
    trained: Path, shards: Path, tmp_path: Path, written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards in an object store have no copy of it that could be read."""
    run = shutil.copytree(trained, tmp_path / "run")
    newest = run / "checkpoints/step-00000004"
    reseal(newest, tokenizer={"fingerprint": read_meta(newest).tokenizer.fingerprint, "shards": "s3://b/s"})
    with pytest.raises(SystemExit, match="2"):
        written(run, "!#")
    assert "name the vocabulary of the shards with --tokenizer" in capsys.readouterr().err
    assert written(run, "!#", "--tokenizer", shards) == written(trained, "!#")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("!", "--temperature", "nan"), "must be 0 or more"),
        (("", "--tokens", "3"), "the prompt is empty"),
        (("!", "--temperature", "-1"), "must be 0 or more"),
        (("!", "--step", "3"), "has no checkpoint of step 3"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    trained: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["generate", str(trained), *arguments])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
