"""Text to token files for language models: vocabulary, shards, mix, stream.

Programs import `pretok.stream`; everything else is reached through the `pretok` command.
"""

__version__ = "0.1.0"
