"""A training state -> a folder that is complete or invisible, and back.

- saved.py: a checkpoint's files, their sizes and checksums
- restore.py: a checkpoint's tensors; nothing in it is run
- save.py: writes in the background, keeps the newest
- tokenizer.py: the shards' own tokenizer for an export
- export.py: to transformers and back
"""
