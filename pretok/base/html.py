"""Templates of our HTML pages, in which every text from outside is escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretok.base.visible import visible

if TYPE_CHECKING:
    from jinja2 import Environment


def page_environment() -> Environment:
    """Return a Jinja environment that escapes every text and spells out its control characters."""
    from jinja2 import Environment, StrictUndefined

    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # but not our own markup
    )
