"""The host of an address, in SQL."""

from __future__ import annotations

HOST = r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/@]*@)?(?:www\.)?([^/:?#]+)"


def host(column: str) -> str:
    """SQL of the host of an address, without `www.`; null for what is no address."""
    return f"nullif(regexp_extract({column}, '{HOST}', 1), '')"
