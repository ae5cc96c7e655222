"""Why records are rejected; numbers of records of each source -> complaints about sources with too few documents.

Input: records read and rejected by source. Output: sentences; the commands end with code 3 if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil

OK, MALFORMED, NOT_AN_OBJECT, MISSING, NULL, NOT_A_STRING, SURROGATE, EMPTY, TOO_LONG = range(9)
REASONS = (
    "",
    "malformed_json",
    "not_an_object",
    "missing_field",
    "null_text",
    "text_not_a_string",
    "lone_surrogate",
    "empty_text",
    "too_long",
    "invalid_utf8",
    "duplicate",
    "contaminated",
    "unencodable",
    "bad_messages",
    "template_refused",
    "removed",
    "unknown_id",
    "special_token",
    "damaged_file",
)
"""Reason for each status, and reasons of later steps."""
DAMAGED_FILE = REASONS[-1]
"""The reason of a whole file."""
NOT_LOST = frozenset(("too_long", "duplicate", "contaminated", "removed", DAMAGED_FILE))
"""Reasons that do not count as loss: a setting asked for them."""
DAMAGED = ".damaged.json"
"""The file that a partition leaves until it is done: path -> why this file is damaged."""
CONVERT = "iconv -f ISO-8859-1 -t UTF-8"
"""Command that converts most text of Western European languages that is not UTF-8."""


def poor_sources(
    limit: Fraction, sources: Mapping[str, tuple[int, Mapping[str, int]]], where: Callable[[str], str]
) -> list[str]:
    """Return a sentence for each source without documents, or with more than the share `limit` of its records rejected.

    sources: name -> (records read, rejected by reason); where: name -> which files have the most, and where to look.
    """
    complaints = []
    for name, (read, rejected) in sources.items():
        nothing = read == sum(rejected.values())
        counted = {reason: n for reason, n in rejected.items() if nothing or reason not in NOT_LOST}
        number = sum(counted.values())
        if number <= limit * read and not nothing:
            continue
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(counted.items()))
        lost = f"{number:,} of {read:,} records were rejected ({reasons})"
        if not read:
            complaint = f"source {name} has no documents: its inputs hold no record"
        elif nothing:
            complaint = f"source {name} has no documents: {lost}; {where(name)}"
        else:
            enough = f"{ceil(Fraction(100 * number, read)) / 100:g}"
            complaint = (
                f"source {name}: {lost}, more than the share of {float(limit):g} that max_reject_share allows; "
                f"{where(name)}\n    fix the inputs or the field, or allow more: max_reject_share = "
                f"{enough} under [shards] of a recipe (pretok init)"
            )
        if "invalid_utf8" in counted:
            complaint += f"; convert what is not UTF-8, from Latin-1 by {CONVERT} OLD > NEW"
        complaints.append(complaint)
    return complaints
