"""What is counted of a column of documents, in SQL."""

from __future__ import annotations

HOST = r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/@]*@)?(?:www\.)?([^/:?#]+)"


def host(column: str) -> str:
    """The host of an address, `www.` left off; null for what is no address."""
    return f"nullif(regexp_extract({column}, '{HOST}', 1), '')"
