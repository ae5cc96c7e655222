"""Megatron-core: a dataset in the exact order, in place of its blended index.

Input: a View and the GPTDatasetConfig of the run. Output: `PretokDataset` with the samples that GPTDataset gives, for
`--dataloader-type single`, whose own sampler reads in order from `consumed_train_samples` on.

    def train_valid_test_datasets_provider(train_val_test_num_samples):
        config = core_gpt_dataset_config_from_args(get_args())
        return PretokDataset(view, config, train_val_test_num_samples[0]), None, None

In its checkpoint the position is `args.consumed_train_samples` (`torch.load(".../common.pt")["args"]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.datasets.utils import Split
from torch import Tensor

from pretok.base.tokens import IGNORE
from pretok.base.version import refuse_untried
from pretok.integrations.checks import check_length, check_model
from pretok.integrations.pytorch import Batch, make_batch
from pretok.stream import View
from pretok.stream.loader import read_batch

refuse_untried("megatron-core", "0.16")


class PretokDataset(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sample i is position i of the stream, with the fields of GPTDataset.

    These are tokens, labels, loss_mask, position_ids, each (L,), and attention_mask, (1, L, L), if the configuration
    asks for it. config: a GPTDatasetConfig, of which sequence_length, tokenizer, reset_position_ids,
    reset_attention_mask, eod_mask_loss and create_attention_mask are used. samples: how many the run reads. Raises
    MismatchError if the length or the tokenizer is not that of the mix, UsageError if the mix has fewer sequences.
    """

    index_split = Split.train

    def __init__(self, view: View, config: Any, samples: int | None = None) -> None:
        check_model(view, seq_len=config.sequence_length, rows=config.tokenizer.vocab_size)
        if samples is not None:
            check_length(view, samples)
        view.compare_places()
        self.view, self.config = view, config

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, index: int | None) -> dict[str, Tensor]:
        fields = self.__getitems__([index or 0])[0]
        if index is None:  # Megatron-core pads a batch with such samples
            fields["loss_mask"] = torch.zeros_like(fields["loss_mask"])
        return fields

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        """Return the samples of a whole micro-batch."""
        ids, learned = read_batch(self.view, indices, self.view.dtype)
        resets = self.config.reset_position_ids or self.config.reset_attention_mask
        batch = sample(make_batch(self.view, ids, resets, learned), self.view, self.config)
        return [{name: tensor[row] for name, tensor in batch.items()} for row in range(len(indices))]


def sample(batch: Batch, view: View, config: Any) -> dict[str, Tensor]:
    """Return the batch under the names of Megatron-core.

    Labels without loss are 0 and masked. In attention_mask True means hidden.
    """
    length = batch.inputs.shape[1]
    learned = batch.labels != IGNORE
    if config.eod_mask_loss:
        learned &= batch.inputs != view.eod_id
    plain = torch.arange(length).expand_as(batch.inputs)
    starts = batch.position_ids if batch.position_ids is not None else plain
    fields = {
        "tokens": batch.inputs,
        "labels": batch.labels.masked_fill(batch.labels == IGNORE, 0),
        "loss_mask": learned.float(),
        "position_ids": starts if config.reset_position_ids else plain,
    }
    if config.create_attention_mask:
        hidden = ~torch.ones(length, length, dtype=torch.bool).tril()
        document = (plain - starts) if config.reset_attention_mask else torch.zeros_like(plain)
        fields["attention_mask"] = (hidden | (document[:, :, None] != document[:, None, :]))[:, None]
    return fields
