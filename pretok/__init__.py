"""Text to token files for language models: vocabulary, shards, mix, stream.

Programs import `pretok.stream`, and `pretok.open` for finished work; everything else is reached through the `pretok`
command. Nothing is loaded before it is used.
"""

from typing import TYPE_CHECKING

from pretok.base.version import PRETOK_VERSION

if TYPE_CHECKING:
    from pretok.opened.work import open_work as open

__all__ = ["__version__", "open"]
__version__ = PRETOK_VERSION


def __getattr__(name: str) -> object:
    """`open` is loaded when it is asked for: it needs pyarrow, which `pretok.stream` does not."""
    if name != "open":
        raise AttributeError(f"module 'pretok' has no attribute {name!r}")
    from pretok.opened.work import open_work

    return open_work
