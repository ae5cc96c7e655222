"""The companion trainer: reads shards made by `pretok`, writes checkpoints of a Llama-style model.

It needs torch, numpy, msgspec and safetensors, and imports `base`, `tokenizer`, `shards` and `stream` of `pretok`;
`train losses` also `documents`, to name them.
"""

import time

STARTED = time.monotonic()
"""`time.monotonic()` at process start, before torch is imported; start-up time is measured from here."""
