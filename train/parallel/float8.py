"""Matrix products in float8, by torchao.

Input: a Decoder on the meta device. Output: the same Decoder whose blocks multiply in float8 (Micikevicius et al.
2022), forward and backward, each row of a matrix with a scale of its own, taken anew in each product. Parameters, their
names, the embedding, the output matrix and the loss stay as they are. No GPU has run it yet.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pretok.base.errors import UsageError
from train.model.transformer import Decoder
from train.parallel.devices import HOPPER, Device


def float8_products(model: Decoder, device: Device) -> None:
    """Convert the blocks, in place. UsageError where the device or the package is not there."""
    if device.generation < HOPPER:
        raise UsageError(f"--precision float8 needs an H100 or newer, and this is {device.name}: use bf16")
    if find_spec("torchao") is None:
        raise UsageError("--precision float8 needs the package torchao: pip install torchao")
    convert(model)


def convert(model: Decoder, **changes: Any) -> None:
    """The same without a look at the device. changes: to torchao's configuration."""
    float8 = import_module("torchao.float8")
    recipe = float8.Float8LinearConfig.from_recipe_name("rowwise")
    for name, value in changes.items():
        object.__setattr__(recipe, name, value)  # it is frozen
    for block in model.layers:
        float8.convert_to_float8_training(block, config=recipe)
