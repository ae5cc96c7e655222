"""What fills the templates of our pages: every text from outside is escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretok.base.visible import visible

if TYPE_CHECKING:
    from jinja2 import Environment


def page_environment() -> Environment:
    """What fills the templates of our pages: every text is escaped, and its control characters are spelled out."""
    from jinja2 import Environment, StrictUndefined

    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # not of markup of our own
    )
