"""Points of a comparison -> one Parquet file, a table of paired differences, a picture.

Input: Points. Output: points.parquet with a row for each point and source, the table as text, compare.svg.

A difference is paired: of the same seed, thus of the same documents in the same order, at the same compute. Its
interval is that of Student's t over the seeds, 95 % for each line by itself. It holds what seeds change, weights and
order of text, and not what another corpus, another size or another learning rate would.

A small run first learns how often each token occurs, and bits per byte of that say nothing of models. Where the runs of
a pair lie less than LEAST_GAIN below what frequencies alone give, the verdict is *too short*.

*At equal text* is read off complete runs of several amounts of compute: a straight line over log text between the two
runs of the arm, of the same seed, that read less and more than the baseline did. Where there are no two, it says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from pretok.base.storage import atomic_open
from train.compare.point import Point, PointSpec

_QUANTILES = """
12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179 2.160 2.145 2.131
2.120 2.110 2.101 2.093 2.086 2.080 2.074 2.069 2.064 2.060 2.056 2.052 2.048 2.045 2.042
"""
T95 = tuple(float(value) for value in _QUANTILES.split())
"""Student's t, 97.5 %, by degrees of freedom from 1 to 30; the last is taken for more, which is a little too wide."""
LEAST_GAIN = 0.1
"""Of a run over the frequencies of tokens, below which its bits per byte are mostly theirs."""
OF_RUN = ("loss", "skipped", "seconds", "device", "torch")
"""What a Point says of its run apart from the scores."""
MIXED = "mix"
"""The line of all sources, each by its weight."""
LIMITS = """\
What this can say: a difference whose interval excludes 0 is one of these models on this text at this compute, and a
vocabulary that loses here has no claim of quality until larger runs give it one. What it cannot: that a winner here
wins in a large model. Small models pay a larger share of their compute for the output matrix and see each entry few
times; published gains of a few percent at small sizes shrank or turned around at larger ones. Runs at several amounts
of compute show in which direction a difference moves."""
BEGUN = """\
All arms begin with the weights of one model; 0 FLOPs is that model before its first step. Seeds change the order of the
text alone."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 56, 150, 14, 40
COLOURS = ("#1565c0", "#c62828", "#2e7d32", "#6a1b9a", "#ef6c00", "#00838f", "#4e342e", "#37474f")


@dataclass(frozen=True, slots=True)
class Difference:
    """An arm minus the baseline, bits per byte: mean over seeds, and half of the 95 % interval (None for one seed);
    baseline: the mean of the baseline; gain: the least of all these runs over frequencies of tokens."""

    arm: str
    compute: float
    source: str
    seeds: int
    mean: float
    half: float | None
    baseline: float
    gain: float

    @property
    def verdict(self) -> str:
        """What the interval allows to say."""
        if self.gain < LEAST_GAIN:
            return "too short"
        if self.half is None or abs(self.mean) <= self.half:
            return "no statement"
        return "worse" if self.mean > 0 else "better"


def paired_differences(points: Sequence[Point], baseline: str) -> list[Difference]:
    """Of every arm, amount of compute and source, and over all sources as `mix`."""
    by_key = {(p.spec.arm, p.spec.compute, p.spec.seed): p for p in points}
    found = []
    for arm, compute in _groups(points, baseline):
        pairs = [
            (by_key[arm, compute, seed], by_key[baseline, compute, seed])
            for name, amount, seed in sorted(by_key)
            if (name, amount) == (arm, compute) and (baseline, compute, seed) in by_key
        ]
        if pairs:
            for source in (MIXED, *pairs[0][0].spec.weights):
                values = [(_bits(point, source), _bits(base, source)) for point, base in pairs]
                gain = min(point.gain for pair in pairs for point in pair)
                found.append(_difference(arm, compute, source, values, gain))
    return found


def equal_text_differences(points: Sequence[Point], baseline: str) -> list[Difference]:
    """The same over all sources, the arm's bits read off at the text that the baseline read; see above."""
    found = []
    for arm, compute in _groups(points, baseline):
        values, gain = [], 1.0
        for base in points:
            if (base.spec.arm, base.spec.compute) == (baseline, compute):
                own = [p for p in points if (p.spec.arm, p.spec.seed) == (arm, base.spec.seed)]
                bits = _read_off(own, base.spec.text_bytes)
                if bits is not None:
                    values.append((bits, base.mixed))
                    gain = min([gain, base.gain, *(point.gain for point in own)])
        if values:
            found.append(_difference(arm, compute, MIXED, values, gain))
    return found


def _groups(points: Sequence[Point], baseline: str) -> list[tuple[str, float]]:
    """(arm, compute) of all arms but the baseline: arms as they come, compute rising."""
    arms = dict.fromkeys(point.spec.arm for point in points if point.spec.arm != baseline)
    amounts = sorted({point.spec.compute for point in points})
    return [(arm, amount) for arm in arms for amount in amounts]


def _bits(point: Point, source: str) -> float:
    return point.mixed if source == MIXED else point.bits[source]


def _difference(
    arm: str, compute: float, source: str, values: Sequence[tuple[float, float]], gain: float
) -> Difference:
    differences = [one - base for one, base in values]
    count = len(differences)
    mean = sum(differences) / count
    half = None
    if count > 1:
        variance = sum((value - mean) ** 2 for value in differences) / (count - 1)
        half = T95[min(count - 1, len(T95)) - 1] * math.sqrt(variance / count)
    return Difference(arm, compute, source, count, mean, half, sum(base for _, base in values) / count, gain)


def _read_off(points: Sequence[Point], text_bytes: float) -> float | None:
    """Bits of an arm at an amount of text between two of its runs; None where there are none."""
    for low, high in pairwise(sorted(points, key=lambda point: point.spec.text_bytes)):
        first, last = low.spec.text_bytes, high.spec.text_bytes
        if 0 < first <= text_bytes <= last and first < last:
            part = math.log(text_bytes / first) / math.log(last / first)
            return low.mixed + part * (high.mixed - low.mixed)
    return None


def write_points(points: Sequence[Point], path: Path) -> None:
    """A row for each point and source; `spec` holds the whole PointSpec as JSON, so that points can be read again."""
    import pyarrow as pa  # no rank of a run needs it
    import pyarrow.parquet as pq

    from pretok.base.records import to_json

    rows: list[dict[str, Any]] = []
    for point in points:
        spec = point.spec
        shared = {
            name: getattr(spec, name) for name in ("arm", "compute", "seed", "model", "steps", "tokens")
        }
        shared |= {"flops": spec.flops, "text_bytes": spec.text_bytes}
        shared |= {"vocab_size": spec.sizes.vocab_size, "parameters": spec.sizes.parameters}
        shared |= {name: getattr(point, name) for name in OF_RUN}
        shared["spec"] = json.dumps(to_json(spec), sort_keys=True)
        for source, bits in point.bits.items():
            scored = {"source": source, "bits_per_byte": bits, "frequency_bits": point.frequency_bits[source]}
            counts = {"val_bytes": spec.val_bytes[source], "val_tokens": point.val_tokens[source]}
            rows.append(shared | scored | counts)
    with atomic_open(path) as file:
        pq.write_table(pa.Table.from_pylist(rows), file, compression="zstd")


def read_points(path: Path) -> list[Point]:
    """The points that `write_points` wrote."""
    import pyarrow.parquet as pq

    from pretok.base.records import read_record

    groups: dict[tuple[str, float, int], list[dict[str, Any]]] = {}
    with pq.ParquetFile(path) as file:
        table = file.read()
    for row in table.to_pylist():
        groups.setdefault((row["arm"], row["compute"], row["seed"]), []).append(row)
    return [
        Point(
            spec=read_record(PointSpec, json.loads(rows[0]["spec"]), path),
            bits={row["source"]: row["bits_per_byte"] for row in rows},
            frequency_bits={row["source"]: row["frequency_bits"] for row in rows},
            val_tokens={row["source"]: row["val_tokens"] for row in rows},
            **{name: rows[0][name] for name in OF_RUN},
        )
        for rows in groups.values()
    ]


def report_points(points: Sequence[Point]) -> str:
    """The table in words; the arm of the first point is the baseline."""
    arms = {point.spec.arm: point for point in points}
    baseline = points[0].spec.arm
    lines = ["", "bytes of validation text per token"]
    for arm, point in arms.items():
        shares = [
            f"{name} {point.spec.val_bytes[name] / count:.3f}" for name, count in point.val_tokens.items()
        ]
        lines.append(f"  {arm:<16}{point.spec.sizes.vocab_size:>8,} entries  {', '.join(shares)}")
    head = f"{'':<18}{'FLOPs':>8}  {'source':<8}{'seeds':>5}{baseline[:12]:>13}{'difference':>12}{'+-':>8}"
    head += f"{'%':>8}{'learned':>9}"
    lines += [
        "",
        f"bits per byte at equal compute, against {baseline} (less is better); learned: by how many %, at",
    ]
    lines += ["least, the runs lie below what the frequencies of tokens alone give", head]
    lines += [_row(difference) for difference in paired_differences(points, baseline)]
    lines += ["", "at equal text, read off between runs of the arm", head]
    lines += [_row(difference) for difference in equal_text_differences(points, baseline)] or [
        f"  no arm has runs that read less and more text than {baseline}: add an amount of compute"
    ]
    if points[0].spec.beginning is not None:
        lines += ["", BEGUN]
    return "\n".join([*lines, "", LIMITS])


def _row(difference: Difference) -> str:
    d = difference
    half = "n/a" if d.half is None else f"{d.half:.4f}"
    return (
        f"  {d.arm:<16}{d.compute:>8.3g}  {d.source:<8}{d.seeds:>5}{d.baseline:>13.4f}{d.mean:>+12.4f}{half:>8}"
        f"{100 * d.mean / d.baseline:>+8.2f}{100 * d.gain:>9.1f}  {d.verdict}"
    )


def draw_points(points: Sequence[Point], path: Path) -> None:
    """SVG: bits per byte over all sources by compute; a dot a run, a line through the means of each arm."""
    amounts = sorted({point.spec.compute for point in points})
    lowest = next((amount for amount in amounts if amount), 1.0) / 3  # 0 FLOPs have a place as well
    first, last = (math.log(max(amount, lowest)) for amount in (amounts[0], amounts[-1]))
    values = [point.mixed for point in points]
    low, high = min(values), max(values)

    def at(compute: float, bits: float) -> tuple[float, float]:
        along = (math.log(max(compute, lowest)) - first) / (last - first) if amounts[1:] else 0.5
        up = (bits - low) / (high - low) if high > low else 0.5
        x, y = LEFT + 16 + along * (WIDTH - LEFT - RIGHT - 32), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    parts = []
    for tick in range(5):
        bits = low + (high - low) * tick / 4
        _, y = at(amounts[0], bits)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{bits:.2f}</text>')
    for compute in amounts:
        x, _ = at(compute, low)
        parts.append(f'<text x="{x}" y="{HEIGHT - 22}" text-anchor="middle">{compute:.3g}</text>')
    arms = dict.fromkeys(point.spec.arm for point in points)
    for number, arm in enumerate(arms):
        parts += _curve(arm, number, [p for p in points if p.spec.arm == arm], at)
    label = "bits per byte of validation text, by training FLOPs; a dot is a run"
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">{label}</text>')
    with atomic_open(path, "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" font-family="sans-serif" font-size="12" role="img" aria-label="{label}">'
            f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
        )


def _curve(
    arm: str, number: int, points: Sequence[Point], at: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    """The dots, the line and the name of one arm."""
    colour, name = COLOURS[number % len(COLOURS)], escape(arm)
    parts, means = [], []
    for amount in sorted({point.spec.compute for point in points}):
        bits = [point.mixed for point in points if point.spec.compute == amount]
        means.append("{},{}".format(*at(amount, sum(bits) / len(bits))))
        for value in bits:
            x, y = at(amount, value)
            title = f"<title>{name}: {value:.4f}</title>"
            parts.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}">{title}</circle>')
    parts.append(f'<polyline points="{" ".join(means)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    x, y = WIDTH - RIGHT + 12, TOP + 10 + 18 * number
    return [*parts, f'<text x="{x}" y="{y}" fill="{colour}">{name}</text>']
