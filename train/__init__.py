"""The companion trainer: shards made by `pretok` -> checkpoints of a Llama-style model.

Needs torch, numpy, msgspec and safetensors; sees of `pretok` only stream, loader, manifest, storage, stop and errors.
"""

import time

STARTED = time.monotonic()
"""When this process began, before torch is imported: start-up time is measured from here."""
