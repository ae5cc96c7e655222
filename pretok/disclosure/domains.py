"""Hosts -> registrable domains, by the public suffix list, with what was read of each.

Input: the figures of sources that keep an address. Output: CSV with all domains, those with most bytes of documents
first: `news.bbc.co.uk` and `bbc.co.uk` are one, `a.github.io` and `b.github.io` are two. The list comes with
the package publicsuffixlist; nothing is fetched.
"""

from __future__ import annotations

import csv
import io
import ipaddress
from collections import Counter
from collections.abc import Callable, Sequence

from pretok.base.errors import UsageError
from pretok.disclosure.figures import AMOUNTS, Figures

NO_ADDRESS = "no source keeps an address: keep a column `url`, or name it with --column domain=COLUMN"


def domains_csv(figures: Figures) -> str:
    """Return a row for each registrable domain of what is `read`; the last one, without a name, has the documents
    without an address. Raises UsageError if no source keeps an address, or if the library is not installed."""
    if not figures.tells("read", "domain"):
        raise UsageError(NO_ADDRESS)
    found = by_host(figures, ("read",), registrable_domains())
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("domain", *AMOUNTS))
    for domain, amount in sorted(
        found.items(), key=lambda row: (row[0] is None, -row[1]["document_bytes"], row[0])
    ):
        writer.writerow((domain or "", *(amount[name] for name in AMOUNTS)))
    return out.getvalue()


def by_host(
    figures: Figures, extents: Sequence[str], of: Callable[[str], str]
) -> dict[str | None, Counter[str]]:
    """Return the AMOUNTS of some extents by `of(host)`; None: documents without an address."""
    found: dict[str | None, Counter[str]] = {}
    for extent in extents:
        for row in figures.by_value(extent, "domain")["listed"]:
            host = row.pop("value")
            found.setdefault(None if host is None else of(host), Counter()).update(row)
    return found


def registrable_domains() -> Callable[[str], str]:
    """Return the function that gives the registrable domain of a host, or the host itself if it has none."""
    try:
        from publicsuffixlist import PublicSuffixList
    except ImportError:
        raise UsageError("this needs publicsuffixlist: pip install publicsuffixlist") from None
    suffixes = PublicSuffixList()

    def of(host: str) -> str:
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            return suffixes.privatesuffix(host) or host.lower()

    return of
