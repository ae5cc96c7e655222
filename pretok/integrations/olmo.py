"""OLMo-core: a data loader for its Trainer.

Input: a View and a global batch in tokens, as OLMo-core counts it. Output: batches of this rank's whole share with
`input_ids`, `labels`, `index` and, for documents, `doc_lens` and `max_doc_lens`; a state with one position.

    data_loader = PretokDataLoader(view, global_batch_size=512 * view.seq_len, work_dir="/tmp/olmo",
                                   dp_world_size=get_world_size(dp_group), dp_rank=get_rank(dp_group))
    trainer = trainer_config.build(train_module, data_loader)

In its checkpoint the position is `data_loader.position` of train/rank0.pt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from olmo_core.data.data_loader import DataLoaderBase
from torch import Tensor

from pretok.base.errors import UsageError
from pretok.base.version import refuse_untried
from pretok.integrations.pytorch import Batch, Loader
from pretok.stream import View

refuse_untried("ai2-olmo-core", "3.0")


class PretokDataLoader(DataLoaderBase):  # type: ignore[misc]
    """The exact order of a mix, one epoch of it. work_dir: OLMo-core asks every loader for one; nothing is written.

    The global batch may be changed by a callback between two steps. Raises UsageError for one that the ranks cannot
    divide into whole sequences, or where a second epoch is asked for: a mix has its epochs inside.
    """

    def __init__(
        self,
        view: View,
        *,
        global_batch_size: int,
        work_dir: str | Path,
        dp_world_size: int = 1,
        dp_rank: int = 0,
        fs_local_rank: int | None = None,
        sequences: int | None = None,
        workers: int = 0,
        documents: bool = True,
        digests: str | Path | None = None,
    ) -> None:
        super().__init__(
            work_dir=work_dir,
            global_batch_size=global_batch_size,
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
            fs_local_rank=fs_local_rank,
        )
        if view.seq_len * dp_world_size > global_batch_size or global_batch_size % (
            view.seq_len * dp_world_size
        ):
            raise UsageError(
                f"a global batch of {global_batch_size} tokens is no whole number of sequences of {view.seq_len} "
                f"tokens on each of {dp_world_size} ranks"
            )
        self.view, self._options = view, {"workers": workers, "documents": documents, "digests": digests}
        self._sequences = sequences
        self.loader = self._loader(0)

    def _loader(self, position: int) -> Loader:
        return Loader(
            self.view,
            self.rank_batch_size // self.view.seq_len,
            rank=self.dp_rank,
            ranks=self.dp_world_size,
            position=position,
            sequences=self._sequences,
            form=_form,
            **self._options,  # type: ignore[arg-type]
        )

    @property
    def total_batches(self) -> int:
        """Whole global batches of the stream."""
        return int(self.batches_processed) + len(self.loader)

    def reshuffle(self, epoch: int | None = None, **_: Any) -> None:
        """Nothing is shuffled anew: the mix is the order."""
        if epoch not in (None, 1):
            raise UsageError(
                f"the mix of {len(self.view):,} sequences is read to its end and epoch {epoch} is asked for: end the "
                "run with Duration.steps, or make a longer mix (pretok mix --continue)"
            )
        self._epoch = 1

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        size = 0
        while size != self.global_batch_size:  # at first, and after a callback changed it
            size = self.global_batch_size
            self.loader = self._loader(self.loader.position)
            for batch in self.loader:
                yield batch
                if size != self.global_batch_size:
                    break

    def state_dict(self) -> dict[str, Any]:
        """That of `pytorch.Loader`, and the batches that the trainer counts."""
        return {**self.loader.state_dict(), "batches_processed": self.batches_processed, "epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state, with any ranks and any global batch. MismatchError for one of another stream."""
        self.loader.load_state_dict(state_dict)
        self.batches_processed = self.loader.position * self.view.seq_len // self.global_batch_size
        self._epoch = state_dict["epoch"] or self._epoch

    def get_mock_batch(self) -> dict[str, Any]:
        """The first sequences of the stream, for the trainer's dry run; nothing counts as read."""
        rows = self.rank_batch_size // self.view.seq_len
        return next(iter(Loader(self.view, rows, documents=bool(self._options["documents"]), form=_form)))

    def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:  # noqa: ARG002
        """Tokens that all ranks have in a step."""
        return int(self.global_batch_size)


def _form(batch: Batch) -> dict[str, Any]:
    found: dict[str, Any] = {"input_ids": batch.inputs, "labels": batch.labels}
    if batch.position_ids is not None:
        lengths = _document_lengths(batch.position_ids)
        found |= {"doc_lens": lengths, "max_doc_lens": lengths.max(dim=1).values.tolist()}
    return found


def _document_lengths(position_ids: Tensor) -> Tensor:
    """(n, most documents in a row) int32: the lengths of each row's documents, then 0."""
    rows = [
        torch.diff(torch.nonzero(row == 0).flatten(), append=torch.tensor([len(row)])) for row in position_ids
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).int()
