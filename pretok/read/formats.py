"""The formats of inputs, by name: a line here, and a module with the members of `pretok.read.format.Format`."""

from __future__ import annotations

from pretok.read import arrow, lines, parquet, text
from pretok.read.format import Format

FORMATS: dict[str, Format] = {
    "parquet": parquet,
    "arrow": arrow,
    "jsonl": lines,
    "text": text,
}
"""In the order in which a file is asked whether it has the format; any file may be text."""
