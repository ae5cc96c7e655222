"""What a checkpoint holds of a model in training, each tensor by its own name.

Enters: a model on its mesh, its optimizer, other tensors. Leaves: a state dict of the very tensors, so that loading
fills them in place. A parameter is known by its name and by nothing else: not by its place among the parameters, nor by
the group of the optimizer it is in, both of which depend on the mesh. Hyper-parameters are settings and not here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretok.base.errors import MismatchError, PretokError
from pretok.base.records import to_json
from train.checkpoint.restore import restore
from train.checkpoint.save import open_checkpoint
from train.model.sizes import ModelConfig
from train.parallel.mesh import clean_name


def named_state(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, guard: dict[str, Tensor] | None = None
) -> dict[str, Any]:
    """{'model': name -> parameter, 'optimizer': {'state': name -> moments and step}, 'guard': ...}; what is None is not
    in it."""
    named = {clean_name(name): parameter for name, parameter in model.named_parameters()}
    state: dict[str, Any] = {"model": {name: parameter.detach() for name, parameter in named.items()}}
    if optimizer is not None:
        moments = {name: dict(optimizer.state[parameter]) for name, parameter in named.items()}
        state["optimizer"] = {"state": moments}
    if guard is not None:
        state["guard"] = guard
    return state


def load_weights(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    checkpoint: Path,
    config: ModelConfig,
    report: Callable[[str], None],
) -> None:
    """Load the model from a checkpoint folder of any mesh, and the moments where an optimizer is given.

    Another rope_theta is told. Raises IntegrityError for a damaged checkpoint, MismatchError for one of other sizes.
    """
    opened = open_checkpoint(checkpoint, None)
    if isinstance(opened, PretokError):
        raise opened
    meta, reader = opened
    saved = to_json(meta.identity.model)
    different = [
        f"{name} {saved[name]} (here {value})"
        for name, value in to_json(config).items()
        if name not in ("seq_len", "rope_theta") and saved[name] != value
    ]
    if different:
        raise MismatchError(f"{checkpoint} holds a model of other sizes: {', '.join(different)}")
    if saved["rope_theta"] != config.rope_theta:
        report(f"rope_theta was {saved['rope_theta']} in {checkpoint}, is {config.rope_theta}")
    restore(named_state(model, optimizer), reader)
