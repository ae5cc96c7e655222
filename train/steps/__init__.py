"""A stream of sequences -> micro-batches -> optimizer steps.

- data: a stream -> micro-batches on the device, one ahead
- optim: AdamW, schedules, the guard that skips bad steps
- step: one optimizer step without waiting for the device
- evaluate: validation loss of every source
"""
