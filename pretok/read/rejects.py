"""What was read of each source -> complaints about those that gave too little.

Enters: records read and rejected by source. Leaves: sentences; the commands end with code 3 where there are any.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction


def poor_sources(
    limit: Fraction, sources: Mapping[str, tuple[int, Mapping[str, int]]], where: str
) -> list[str]:
    """A sentence for each source that gave no document or of which more than `limit` of the records were rejected.

    sources: name -> (records read, rejected by reason); where: what to look at, for the message.
    """
    complaints = []
    for name, (read, rejected) in sources.items():
        count = sum(rejected.values())
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in sorted(rejected.items()))
        if read == count:
            what = (
                f"source {name} gave no document: {read:,} records were read, all were rejected ({reasons})"
            )
            complaints.append(
                f"{what}; {where}" if read else f"source {name} gave no document: it has no records"
            )
        elif Fraction(count, read) > limit:
            complaints.append(
                f"source {name}: {count:,} of {read:,} records were rejected ({reasons}), more than the share of "
                f"{float(limit):g} that max_reject_share allows; {where}, mend the inputs or the field, or allow more"
            )
    return complaints
