"""The formats of inputs, by name: a line here, and a module with the members of `pretok.read.format.Format`.

parquet.py      Parquet
arrow.py        Arrow files and streams
tables.py       what both have in common
arrow_types.py what the values of Arrow's types mean
jsonl.py        JSON Lines
json_parser.py  lines -> texts and kept columns, in Numba
json_scan.py    the grammar of JSON, byte by byte
wet.py          WET
text.py         plain text
tokens.py       token ids of Megatron-LM, datatrove and OLMo
"""

from __future__ import annotations

from pretok.read.format import Format
from pretok.read.formats import arrow, jsonl, parquet, text, tokens, wet

FORMATS: dict[str, Format] = {
    "parquet": parquet,
    "arrow": arrow,
    "wet": wet,
    "jsonl": jsonl,
    "tokens": tokens,
    "text": text,
}
"""In the order in which a file is asked whether it has the format; none is known to hold tokens unless its source says
so."""
