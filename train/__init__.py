"""The companion trainer: reads shards made by `pretok`, writes checkpoints of a Llama-style model.

It needs torch, numpy, msgspec and safetensors, and imports only `base`, `shards` and `stream` of `pretok`.
"""

import time

STARTED = time.monotonic()
"""`time.monotonic()` at process start, before torch is imported; start-up time is measured from here."""
