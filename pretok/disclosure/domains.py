"""Hosts -> registrable domains, by the public suffix list, with what was read of each.

Input: the figures of sources that keep an address. Output: CSV with all domains, those with most bytes of documents
first: `news.bbc.co.uk` and `bbc.co.uk` are one, `a.github.io` and `b.github.io` are two. The list is the one that the
package publicsuffixlist brings; nothing is fetched.
"""

from __future__ import annotations

import csv
import io
import ipaddress
from collections.abc import Callable, Sequence

from pretok.base.errors import UsageError
from pretok.disclosure.count import MOST_VALUES, ReadFigures
from pretok.shards.values import ValueCounts

NO_ADDRESS = "no source keeps an address: keep a column `url`, or name it with --column domain=COLUMN"
COLUMNS = ("domain", "documents", "document_bytes", "tokens", "token_bytes")


def domains_csv(figures: Sequence[ReadFigures]) -> str:
    """A row for each registrable domain; the last one, without a name, has the documents without an address. UsageError
    where no source keeps an address, for too many of them, or where the library is not installed."""
    if not any("domain" in source.values for source in figures):
        raise UsageError(NO_ADDRESS)
    found = by_host(figures, registrable_domains())
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    rows = found.largest(by=2)
    for domain, (documents, tokens, document_bytes, token_bytes) in sorted(
        rows, key=lambda row: row[0] is None
    ):
        writer.writerow((domain or "", documents, document_bytes, tokens, token_bytes))
    return out.getvalue()


def by_host(figures: Sequence[ReadFigures], of: Callable[[str], str]) -> ValueCounts:
    """What was read by what `of` makes of each host; None: documents without an address, of sources that keep it.
    UsageError for too many hosts."""
    found = ValueCounts(MOST_VALUES)
    for source in figures:
        counts = source.values.get("domain")
        if counts is None:
            continue
        if counts.sums is None:
            raise UsageError(f"there are more than {MOST_VALUES:,} hosts: count them with pretok query")
        for host, sums in counts.sums.items():
            found.merge({None if host is None else of(host): sums})
    return found


def registrable_domains() -> Callable[[str], str]:
    """The registrable domain of a host; of an address of numbers, and of what has none, the host itself."""
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
