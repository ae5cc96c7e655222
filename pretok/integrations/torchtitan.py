"""torchtitan: a dataloader that its configuration names.

Input: `PretokDataLoader.Config` in a config registry of torchtitan, which builds it for each rank. Output: what its
trainer takes, ({"input": (n, L), "positions": (n, L)}, labels (n, L)), and a state with one position, the same for
all ranks, so that a checkpoint goes on with any number of them.

    config.dataloader = PretokDataLoader.Config(shards="work/shards", mix="work/mix.json")

In its checkpoint the position is the entry `dataloader.position` of DCP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torchtitan.components.dataloader import BaseDataLoader

import pretok.stream
from pretok.base.errors import UsageError
from pretok.base.version import refuse_untried
from pretok.integrations.checks import check_model
from pretok.integrations.pytorch import Batch, Loader

refuse_untried("torchtitan", "0.3")


def _form(batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    inputs = {"input": batch.inputs}
    if batch.position_ids is not None:
        inputs["positions"] = batch.position_ids
    return inputs, batch.labels


class PretokDataLoader(BaseDataLoader):  # type: ignore[misc]
    """The exact order of a mix in torchtitan. Raises MismatchError where length or tokenizer are not the mix's."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """What a run reads. Its own field `dataset` stays empty."""

        shards: str = ""
        """Folder of shards."""

        mix: str | None = None
        """mix.json; None: every sequence once."""

        sequences: int | None = None
        """Steps x global batch: refused before the first step if the mix has fewer."""

        documents: bool = True
        """Give `positions`, 0 at each document's first token, from which attention inside documents is made."""

        num_workers: int = 0
        """Processes that read ahead."""

        pin_memory: bool = False
        """Copy to pinned memory first."""

        digests: str | None = None
        """Folder for what each rank is handed (`pretok.integrations.digests`)."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        if not config.shards:
            raise UsageError("PretokDataLoader.Config needs `shards`, a folder of shards")
        view = pretok.stream.open(config.shards, config.mix, seq_len=seq_len)
        check_model(view, tokenizer=getattr(tokenizer, "tokenizer_path", None))
        self.loader = Loader(
            view,
            local_batch_size,
            rank=dp_rank,
            ranks=dp_world_size,
            sequences=config.sequences,
            workers=config.num_workers,
            pin_memory=config.pin_memory,
            documents=config.documents,
            digests=config.digests,
            form=_form,
        )

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """See `pytorch.Loader`."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `pytorch.Loader`. An empty one, as of a checkpoint of weights alone, begins at the first sequence."""
        if state_dict:
            self.loader.load_state_dict(state_dict)
