"""A training state -> a folder that is complete or invisible, and back.

- saved: a checkpoint's files, their sizes and checksums
- restore: a checkpoint's tensors; nothing in it is run
- save: writes in the background, keeps the newest
- tokenizer: the shards' own tokenizer for an export
- export: to transformers and back
"""
