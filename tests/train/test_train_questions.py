"""Questions asked in a run, against answers worked out one row at a time."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import needs

torch = needs("torch")
tokenizers = needs("tokenizers")
from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import replace
from pretok.base.storage import read_lines, write_json
from pretok.kernels.pretokenize import PATTERNS
from pretok.tokenizer.vocabulary import tokenizer_data
from tests.support import make_shards
from tests.train_support import add_tokenizer, filled, model_file, run_jobs, tiny_config
from train import loop, setup
from train.config import TrainConfig, parse_files
from train.data import documents_of
from train.model.sizes import model_config
from train.model.transformer import initial_tensor
from train.questions import Row, load_questions, pack, passes

LENGTH = 64
MERGES = [
    (b" ", b"R"),
    (b" R", b"o"),
    (b"m", b"a"),
    (b" Ro", b"ma"),
    (b"t", b"h"),
    (b"th", b"e"),
    (b"?", b"?"),
]
VOCABULARY = 257 + len(MERGES)
CHOICES: list[dict[str, Any]] = [
    {"question": "Qual è la capitale d'Italia?", "choices": ["Roma", "Parigi", "Il Cairo"], "answer": 0},
    {
        "question": "The capital of France is",
        "choices": ["Rome", "Paris, on the Seine", "X"],
        "answer": 1,
        "id": 7,
    },
    {"context": "Il Colosseo è nell'", "choices": ["antica Roma", "Africa"], "answer": 0},
    {"question": "Domanda: perché?\nRisposta: ", "choices": ["perché sì", "né", "<eod>", "boh"], "answer": 3},
]
CLOZE = [
    {"context": "All roads lead to", "continuation": " Rome"},
    {"context": "Tutte le strade portano a ", "continuation": "Roma"},
    {"context": "x", "continuation": "a"},
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, VOCABULARY, size=rng.integers(20, 90)).tolist() for _ in range(60)]
    folder = make_shards(tmp_path_factory.mktemp("shards"), {"it": documents}, vocab_size=VOCABULARY)
    add_tokenizer(folder, tokenizer_data(PATTERNS["cl100k"], ["<eod>"], MERGES))
    return folder


def write(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def files(folder: Path) -> str:
    return f"facts={write(folder / 'a.jsonl', CHOICES)},words={write(folder / 'b.jsonl', CLOZE)}"


def pairs(record: dict[str, Any]) -> list[tuple[str, str]]:
    """(context, continuation) as documented, white space before the boundary moved over it."""
    first = record.get("question", record.get("context"))
    found = []
    for second in record.get("choices", [record.get("continuation")]):
        joined = f" {second}" if "question" in record and not first[-1].isspace() else second
        found.append((first.rstrip(), first[len(first.rstrip()) :] + joined))
    return found


def expected(config: TrainConfig, shards: Path, records: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    tokenizer = tokenizers.Tokenizer.from_file(str(shards / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    sizes = replace(model_config(config.model), vocab_size=VOCABULARY, seq_len=LENGTH)
    model = filled(sizes, scale=5)
    right, nats, size = 0, 0.0, 0
    for record in records:
        losses, greedy = [], True
        for context, continuation in pairs(record):
            before, after = tokenizer.encode(context).ids, tokenizer.encode(continuation).ids
            assert before + after == tokenizer.encode(context + continuation).ids
            ids = torch.tensor([[0, *before, *after]])
            inside = documents_of(ids[:, :-1], 0, config)
            with torch.no_grad():
                logits = model(ids[:, :-1], documents=inside)[0, -len(after) :, :VOCABULARY].double()
            losses.append(-sum(logits.log_softmax(1)[n, token].item() for n, token in enumerate(after)))
            greedy = logits.argmax(1).tolist() == after
        per_byte = [
            loss / len(continuation.encode())
            for loss, (_, continuation) in zip(losses, pairs(record), strict=True)
        ]
        answer = record.get("answer", 0)
        right += min(range(len(losses)), key=per_byte.__getitem__) == answer if len(losses) > 1 else greedy
        nats, size = nats + losses[answer], size + len(pairs(record)[answer][1].encode())
    return {"accuracy": right / len(records), "bits_per_byte": nats / math.log(2) / size}


@pytest.mark.parametrize("attention", ["causal", "document"])
def test_answers_equal_those_of_one_row_at_a_time(
    shards: Path,
    tmp_path: Path,
    attention: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Weights that are sure of themselves; 0.0 keeps them.
    monkeypatch.setattr(setup, "initial_tensor", lambda *given, **more: initial_tensor(*given, **more) * 5)
    sizes = {"seq_len": LENGTH, "global_batch": 4, "micro_batch": 2, "steps": 3, "lr": 0.0}
    asked = {"evaluate": files(tmp_path), "evaluate_every": 2}
    config = tiny_config(shards, tmp_path, attention=attention, **sizes, **asked)
    loop.train(config)
    found = read_lines(tmp_path / "run/evaluation.jsonl")
    assert [record["step"] for record in found] == [2, 3]
    assert found[0]["questions"] == found[1]["questions"]
    for name, records in (("facts", CHOICES), ("words", CLOZE)):
        result = found[0]["questions"][name]
        assert result["questions"] == len(records)
        wanted = expected(config, shards, records)
        assert {key: result[key] for key in wanted} == pytest.approx(wanted, rel=1e-5)
    assert found[0]["questions"]["facts"]["chance"] == pytest.approx((1 / 3 + 1 / 3 + 1 / 2 + 1 / 4) / 4)
    assert found[0]["questions"]["words"]["chance"] is None
    assert "answers: facts " in capsys.readouterr().out


def test_answers_do_not_depend_on_the_mesh(shards: Path, tmp_path: Path) -> None:
    common: list[object] = ["--shards", shards, "--model", model_file(tmp_path, tied=False), "--warmup", 1]
    common += ["--seq-len", LENGTH, "--global-batch", 6, "--steps", 2, "--workers", 0, "--lr", 0.01]
    common += ["--evaluate", files(tmp_path), "--save-every", "never"]
    meshes: list[tuple[int, list[object]]] = [(1, []), (3, ["--shard", 3]), (2, ["--tensor", 2])]
    meshes += [(2, ["--pipeline", 2, "--micro-batch", 3]), (2, ["--context", 2])]
    jobs = [(count, [*common, *own, "--out", tmp_path / str(n)]) for n, (count, own) in enumerate(meshes)]
    run_jobs(jobs, tmp_path)
    found = [read_lines(tmp_path / str(number) / "evaluation.jsonl") for number in range(len(meshes))]
    answers = [record["questions"] for (record,) in found]
    for name in ("facts", "words"):
        one, *others = (
            [answer[name][key] for key in ("accuracy", "bits_per_byte", "questions")] for answer in answers
        )
        assert others == [pytest.approx(one, rel=1e-4)] * 4


def test_a_continuation_right_after_its_context_keeps_the_boundary(shards: Path, tmp_path: Path) -> None:
    """'m' and 'a' are one token together: a row has them apart, and the bytes of the continuation alone."""
    path = write(
        tmp_path / "a.jsonl",
        [{"context": "m", "continuation": "a"}, {"context": "<eod>", "continuation": "a"}],
    )
    (questions,) = load_questions({"x": path}, shards, 0, LENGTH)
    encode = tokenizers.Tokenizer.from_file(str(shards / "tokenizer.json")).encode
    ((m,), (a,), (one,)) = (encode(text).ids for text in ("m", "a", "ma"))
    assert one not in (m, a)
    assert questions.items[0].rows == [Row([0, m, a], 1, 1)]
    row = questions.items[1].rows[0]  # the name of a special token is text
    assert (len(row.ids), row.ids.count(0), row.scored) == (1 + 5 + 1, 1, 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "a.jsonl:2: Expecting"),
        ("[1]", '"question" or "context"'),
        ('{"choices": ["a", "b"], "answer": 0}', '"question" or "context"'),
        ('{"question": "q", "answer": 0}', '"continuation" is needed'),
        ('{"question": "q", "choices": ["a"], "answer": 0}', "at least two"),
        ('{"question": "q", "choices": "ab", "answer": 0}', "at least two"),
        ('{"question": "q", "choices": ["a", ""], "answer": 0}', "not empty"),
        (
            '{"question": "q", "choices": ["a", "b"], "answer": 2}',
            '"answer" is 2; it is the number .* 0 to 1',
        ),
        ('{"question": "q", "choices": ["a", "b"], "answer": true}', '"answer" is True'),
        ('{"question": "q", "choices": ["a", "b"]}', '"answer" is None'),
        ('{"context": "q", "continuation": "a"}', "other kind"),
        (
            '{"question": "%s", "choices": ["a", "b"], "answer": 0}' % ("e" * LENGTH),
            "67 tokens; the model is trained on",
        ),
    ],
)
def test_what_is_no_question_is_refused_with_its_line(
    shards: Path, tmp_path: Path, line: str, message: str
) -> None:
    path = write(tmp_path / "a.jsonl", CHOICES[:1])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UsageError, match=message) as caught:
        load_questions({"x": path}, shards, 0, LENGTH)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_what_is_missing_is_named(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", [])
    with pytest.raises(UsageError, match="holds no question"):
        load_questions({"x": path}, shards, 0, LENGTH)
    with pytest.raises(UsageError, match="cannot be read"):
        load_questions({"x": tmp_path}, shards, 0, LENGTH)
    other = tmp_path / "shards"
    other.mkdir()
    with pytest.raises(UsageError, match=r"needs .*tokenizer\.json"):
        load_questions({"x": path}, other, 0, LENGTH)
    (other / "manifest.json").write_bytes((shards / "manifest.json").read_bytes())
    write_json(other / "tokenizer.json", tokenizer_data(".", ["<eod>"], []))
    with pytest.raises(MismatchError, match="another tokenizer"):
        load_questions({"x": path}, other, 0, LENGTH)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="pip install tokenizers"):
        load_questions({"x": path}, shards, 0, LENGTH)


def test_files_are_named() -> None:
    assert parse_files("a=x.jsonl, b=y=z") == {"a": Path("x.jsonl"), "b": Path("y=z")}
    for text in ("x.jsonl", "a=", "=x", "a=x,a=y", ""):
        with pytest.raises(UsageError, match="NAME=FILE"):
            TrainConfig(evaluate=text)


def test_every_row_is_in_one_pass_that_fits() -> None:
    rng = np.random.default_rng(0)
    rows = [Row([0] * size, 1, 1) for size in rng.integers(2, 300, size=200)]
    found = passes(rows, 512, 299)
    assert sorted(number for numbers in found for number in numbers) == list(range(200))
    for numbers in found:
        inputs, targets = pack(
            [rows[number] for number in numbers],
            min(299, -(-max(len(rows[n].ids) - 1 for n in numbers) // 64) * 64),
            5,
        )
        assert inputs.numel() <= 512
        assert (targets >= 0).sum(1).tolist() == [1] * len(numbers)
    assert len(found) < 110
