"""A Trainer that reads a stream: where it goes on, what it refuses, what a model gets."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest
from handed import Handed, train_hashes
from support import make_shards, needs

import pretok.stream
from pretok.base.errors import MismatchError, UsageError
from pretok.stream import View

torch: Any = needs("torch")
transformers: Any = needs("transformers")
from pretok.integrations.pytorch import Loader
from pretok.integrations.transformers import PretokPosition, PretokTrainer

SEQ_LEN, STEPS = 16, 6


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    documents = {"it": [range(1, 50)] * 20}
    shards = make_shards(tmp_path_factory.mktemp("shards"), documents, vocab_size=60)
    return pretok.stream.open(shards, seq_len=SEQ_LEN)


def begin(callback: PretokPosition, saved: Any, step: int, max_steps: int) -> None:
    state = types.SimpleNamespace(global_step=step, max_steps=max_steps, stateful_callbacks=saved)
    callback.on_train_begin(types.SimpleNamespace(gradient_accumulation_steps=2), state, None)


def test_the_position_stands_in_the_trainers_state(view: View) -> None:
    callback = PretokPosition(Loader(view, 4, ranks=2, position=32))
    saved = json.loads(json.dumps({"PretokPosition": callback.state()}))
    resumed = PretokPosition(Loader(view, 2, ranks=1))
    begin(resumed, saved, 2, 8)
    assert resumed.loader is not None
    assert resumed.loader.position == 32
    with pytest.raises(UsageError, match=r"reads 6\d sequences, but the stream has 6\d"):
        begin(resumed, saved, 2, 10)
    with pytest.raises(MismatchError, match="another loader"):
        begin(resumed, {}, 2, 8)
    begin(resumed, {}, 0, 2)
    assert resumed.loader.position == 0


def model(rows: int = 64) -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=rows, **sizes))


def trainer(view: View, out: Path, rows: int = 64, **more: Any) -> PretokTrainer:
    settings: dict[str, Any] = {"max_steps": STEPS, "save_steps": 3, "per_device_train_batch_size": 2}
    settings |= {"gradient_accumulation_steps": 2, "report_to": "none", "use_cpu": True, "logging_steps": 1}
    arguments = transformers.TrainingArguments(output_dir=str(out), disable_tqdm=True, **settings | more)
    return PretokTrainer(model=model(rows), args=arguments, view=view)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_a_trainer_goes_on_with_another_micro_batch_and_learns_every_token(
    view: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("accelerate")
    seen: list[Any] = []
    forward = transformers.LlamaForCausalLM.forward

    def watched(self: Any, **inputs: Any) -> Any:
        result = forward(self, **inputs)
        seen.append((inputs["input_ids"], inputs["shift_labels"], result.loss, result.logits))
        return result

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", watched)
    trainer(view, tmp_path, max_steps=3).train()
    before = len(seen)
    resumed = trainer(view, tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=4)
    resumed.train(resume_from_checkpoint=True)
    handed = Handed(4)
    for inputs, labels, *_ in seen:
        handed.add(torch.cat([inputs, labels[:, -1:]], dim=1).numpy())
    shards = view.tokens.files.paths[0].parents[1]
    assert handed.hashes == train_hashes(tmp_path, shards, None, 4, STEPS * 4, seq_len=SEQ_LEN)
    ids = torch.from_numpy(view.batch(range(3 * 4, STEPS * 4)))
    for row, (_, _, loss, logits) in enumerate(
        seen[before:]
    ):  # the sum over a sequence, of the tokens of a step
        wanted = torch.nn.functional.cross_entropy(logits[0], ids[row, 1:], reduction="sum")
        assert loss.item() == pytest.approx(wanted.item() / (4 * SEQ_LEN), rel=1e-5)
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["PretokPosition"]["attributes"]["position"] == STEPS * 4


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_the_mixes_is_refused_before_the_first_step(view: View, tmp_path: Path) -> None:
    needs("accelerate")
    with pytest.raises(MismatchError, match="59 rows"):
        trainer(view, tmp_path, rows=59)
    with pytest.raises(UsageError, match="needs max_steps"):
        trainer(view, tmp_path, max_steps=-1)
    with pytest.raises(UsageError, match="reads 400 sequences"):
        trainer(view, tmp_path, max_steps=100).train()
