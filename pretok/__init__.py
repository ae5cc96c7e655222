"""Text to token files for language models: vocabulary, shards, mix, stream.

`pretok.build_vocab`, `pretok.tokenize` and `pretok.mix` do what the commands do, `pretok.open` opens what they left,
training reads it by `pretok.stream`. They raise the errors of `pretok.errors`. Nothing is loaded before it is used.
"""

TYPE_CHECKING = False  # without `typing`: a command is stopped by signals only after this file

if TYPE_CHECKING:
    from pretok.api import build_vocab, mix, tokenize
    from pretok.base import errors
    from pretok.base.errors import PretokError
    from pretok.documents.work import open_work as open

    __version__: str

__all__ = ["PretokError", "__version__", "build_vocab", "errors", "mix", "open", "tokenize"]


def __getattr__(name: str) -> object:
    """Load a name when it is asked for: the functions need pyarrow, which `pretok.stream` does not."""
    if name == "__version__":
        from pretok.base.version import PRETOK_VERSION

        return PRETOK_VERSION
    if name in ("errors", "PretokError"):
        from pretok.base import errors

        return errors if name == "errors" else errors.PretokError
    if name == "open":
        from pretok.documents.work import open_work

        return open_work
    if name in __all__:
        from pretok import api

        return getattr(api, name)
    raise AttributeError(f"module 'pretok' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
