"""transformers: a Trainer that reads a stream in its exact order.

Input: a View, in addition to the arguments of a Trainer. Output: `PretokTrainer`, which resumes on any number of ranks.

    trainer = PretokTrainer(model=model, args=TrainingArguments(max_steps=1000, ...), view=view)
    trainer.train(resume_from_checkpoint=True)

In its checkpoint the position is `stateful_callbacks.PretokPosition.attributes.position` of trainer_state.json.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from pretok.base.errors import MismatchError, UsageError
from pretok.base.version import refuse_untried
from pretok.integrations.checks import check_length, check_model
from pretok.integrations.pytorch import Batch, Loader
from pretok.stream import View

refuse_untried("transformers", "5")


def _form(batch: Batch) -> dict[str, Tensor]:
    """Return the inputs of a causal model. Labels are already shifted, so they are also passed as `shift_labels`."""
    inputs = {"input_ids": batch.inputs, "labels": batch.labels, "shift_labels": batch.labels}
    if batch.position_ids is not None:
        inputs["position_ids"] = batch.position_ids
    return inputs


class PretokPosition(TrainerCallback, ExportableState):
    """Keeps the position in trainer_state.json, and restores it when a run begins."""

    def __init__(self, loader: Loader | None = None) -> None:
        self.loader = loader

    def state(self) -> dict[str, Any]:
        """Return what trainer_state.json keeps."""
        return {"args": {}, "attributes": self.loader.state_dict() if self.loader else {}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Continue from the checkpoint's position.

        Raises MismatchError for a checkpoint without a position, or of another stream; UsageError if the run would read
        more sequences than there are.
        """
        assert self.loader is not None
        self.loader.position = 0
        if state.global_step:
            saved = state.stateful_callbacks.get(type(self).__name__)
            if not saved:
                raise MismatchError(
                    "the checkpoint has no position of pretok: it was written with another loader"
                )
            self.loader.load_state_dict(saved["attributes"])
        batch = self.loader.micro_batch * self.loader.ranks * args.gradient_accumulation_steps
        check_length(self.loader.view, self.loader.position + (state.max_steps - state.global_step) * batch)


class PretokTrainer(Trainer):
    """A Trainer whose training data is a stream.

    view: the stream. documents: pass `position_ids` that restart at every document. TrainingArguments must have
    max_steps; dataloader_num_workers, dataloader_prefetch_factor and dataloader_pin_memory are used. Raises UsageError,
    and MismatchError if the model or the tokenizer is not that of the mix.
    """

    def __init__(self, *arguments: Any, view: View, documents: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.args.max_steps <= 0:
            raise UsageError("TrainingArguments needs max_steps, because a mix already contains its epochs")
        if (shared := self.get_tp_size() * self.get_cp_size() * self.get_sp_size()) > 1:
            raise UsageError(
                f"{shared} ranks of tensor, context or sequence parallelism read the same data, which is not supported "
                "here: use pretok.integrations.pytorch with the number of the data-parallel rank"
            )
        model: Any = self.model
        check_model(
            view,
            rows=model.get_input_embeddings().weight.shape[0],
            tokenizer=getattr(self.processing_class, "name_or_path", None) or None,
        )
        self.args.ignore_data_skip = True  # the position already says where to continue
        self.loader = Loader(
            view,
            self._train_batch_size,
            rank=self.args.process_index,
            ranks=self.args.world_size,
            workers=self.args.dataloader_num_workers,
            prefetch=self.args.dataloader_prefetch_factor or 2,
            pin_memory=self.args.dataloader_pin_memory,
            documents=documents,
            form=_form,
        )
        self.add_callback(PretokPosition(self.loader))

    def get_train_dataloader(self) -> Any:
        """Return the micro-batches of this rank.

        An iterator has no length, so the Trainer counts steps, not epochs. It begins at the position that
        `PretokPosition` sets later, because nothing is read before the first step.
        """
        return iter(self.loader)
