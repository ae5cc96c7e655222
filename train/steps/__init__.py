"""A stream of sequences -> micro-batches -> optimizer steps.

- data.py: a stream -> micro-batches on the device, one ahead
- optim.py: AdamW, schedules, the guard that skips bad steps
- step.py: one optimizer step without waiting for the device
- evaluate.py: validation loss of every source
- questions.py: a user's questions -> rows of token ids
- score.py: questions -> how well the model answers them
"""
