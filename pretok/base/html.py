"""HTML in which every text from outside is escaped: what notebooks show of our objects, and what fills our pages.

Input: a title, names of columns, rows. Output: a table without styles of its own, so that it follows the notebook's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
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


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A table with a title above and, where there is one, a line below it. Whole numbers get separators."""
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    above, below = f"<p><b>{_text(title)}</b></p>", f"<p>{_text(note)}</p>" if note else ""
    return f"{above}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _text(value: object) -> str:
    return escape(visible(str(value)))


def _cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td style="text-align: right">{value:,}</td>'
    return f'<td style="text-align: left">{_text(value)}</td>'
