"""results.json -> the tables of results.md, and which targets are met.

Input: what `benchmarks.measure.save` has kept. Output: `results.md` beside results.json.
"""

from __future__ import annotations

from typing import Any

from benchmarks.measure import RESULTS, load_results

ROWS = (
    ("pretok tokenize, 2 workers, from .jsonl.zst", "end_to_end", ("two_workers", "mb_s")),
    ("pretok tokenize, 2 workers, from Parquet", "end_to_end", ("two_workers_parquet", "mb_s")),
    ("pretok tokenize, 1 worker on 1 core, from .jsonl.zst", "end_to_end", ("one_core", "mb_s")),
    ("sum of the parts alone, 2 cores (limit)", "parts", ("limit_two_cores",)),
    ("gigatoken, 2 threads, text and ids in memory", "peers", ("gigatoken_in_memory_2_threads",)),
    (
        "gigatoken on a whole plain file + Megatron builder, 2 threads",
        "peers",
        ("gigatoken_whole_file_and_builder",),
    ),
    ("datasets.map + tokenizers, 2 processes", "peers", ("datasets_map_2_processes",)),
    ("datatrove, 2 processes", "peers", ("datatrove_2_processes",)),
)

MORE = {
    "loader": "loader processes of torch, sequences of 4,096 from memory",
    "trainers": "the same 1,000 steps in other trainers, and their loaders, sequences of 4,096, one core",
    "cold": "streams of 500 M tokens, micro-batches of 8 x 4,096",
    "files": "files of three documents, 2 workers",
    "remote": "from a server 50 ms away, one process",
}
"""Sections whose results are lines of a table as they are, and its title."""
NOT_SHOWN = ("load_average",)
"""What stands elsewhere in the report."""
WANTED = {
    "5,000 shards: open, ms": "under 1,000",
    "5,000 shards: peak memory, MB": "under 100",
    "files a second": "at least 5,000",
    "s again, with nothing to do": "under 3 for 100,000",
    "11 files .jsonl.zst: remote / local": "at least 0.9",
    "one .jsonl.zst: remote / local": "at least 0.9",
    "one plain .jsonl: remote / local": "at least 0.9",
    "11 files of Parquet: remote / local": "at least 0.9",
}


def _get(results: dict[str, Any], section: str, keys: tuple[str, ...]) -> float:
    value: Any = results[section]
    for key in keys:
        value = value[key]
    return float(value)


def _targets(results: dict[str, Any]) -> list[tuple[str, float, str]]:
    """(what, measured, wanted)."""
    two = _get(results, "end_to_end", ("two_workers", "mb_s"))
    peers = results["peers"]
    return [
        (
            "end to end / limit of the parts, 2 workers",
            two / results["parts"]["limit_two_cores"],
            "at least 0.7",
        ),
        ("end to end / datatrove", two / peers["datatrove_2_processes"], "at least 70"),
        ("end to end / whole file + builder", two / peers["gigatoken_whole_file_and_builder"], "at least 3"),
        ("end to end / gigatoken in memory", two / peers["gigatoken_in_memory_2_threads"], "at least 0.4"),
        ("Parquet / .jsonl.zst", results["end_to_end"]["two_workers_parquet"]["mb_s"] / two, "at least 1"),
    ]


TEXT = 4e12
CORES = 10 * 112
FILE_SYSTEM = 20e9
SHARD = float(1 << 30)


def _model(results: dict[str, Any]) -> list[tuple[str, str]]:
    """The cost of 4 TB by docs/running.md, from one core's speed and the corpus's own ratios."""
    run = results["end_to_end"]["one_core"]
    speed = run["mb_s"] * 1e6
    per_token = run["text_mb"] * 1e6 / run["tokens"]
    compressed = run["text_mb"] / run["compressed_mb"]
    moved = TEXT * (1 / compressed + 2 / per_token)
    partitions = 2 * TEXT / per_token / SHARD
    return [
        ("speed of one core, MB/s", f"{speed / 1e6:.0f}"),
        ("bytes of text per token; per compressed byte", f"{per_token:.2f}; {compressed:.2f}"),
        ("core-hours", f"{TEXT / speed / 3600:.1f}"),
        ("tokens, billions", f"{TEXT / per_token / 1e9:.0f}"),
        ("read and written, TB", f"{TEXT / compressed / 1e12:.2f} and {2 * TEXT / per_token / 1e12:.2f}"),
        ("seconds, if 1,120 cores are the limit", f"{TEXT / speed / CORES:.0f}"),
        ("GB/s they would move then", f"{moved / (TEXT / speed / CORES) / 1e9:.0f}"),
        ("seconds, if a file system of 20 GB/s is", f"{moved / FILE_SYSTEM:.0f}"),
        ("cores that saturate it", f"{FILE_SYSTEM / (moved / TEXT * speed):.0f}"),
        ("shards of 1 GiB; files", f"{partitions:.0f}; {3 * partitions:.0f} and a handful"),
    ]


def markdown(results: dict[str, Any]) -> str:
    """The tables."""
    machine = results["machine"]
    values = [(label, _get(results, section, keys)) for label, section, keys in ROWS]
    best = values[0][1]
    load = max(section["load_average"] for section in results.values() if "load_average" in section)
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB; load average up to {load}. "
        f"{results['end_to_end']['two_workers']['text_mb']:.0f} MB of Italian and English text, 50,000 entries; "
        "MB/s of text, start-up aside, medians.",
        "",
        "| | MB/s | pretok is |",
        "|---|---:|---:|",
        *(f"| {label} | {value:.3g} | {best / value:.2g}x |" for label, value in values),
        "",
        "| ratio | measured | wanted |",
        "|---|---:|---|",
        *(f"| {what} | {value:.3g} | {wanted} |" for what, value, wanted in _targets(results)),
        "",
        "| part, one core | MB/s |",
        "|---|---:|",
        *(f"| {name} | {value:.0f} |" for name, value in results["parts"]["parts_mb_s"].items()),
    ]
    if "versus" in results:
        rows = results["versus"]["seconds"].items()
        lines += [
            "",
            f"| in turns | at {results['versus']['commit']} | now | times as fast |",
            "|---|---:|---:|---:|",
        ]
        lines += [
            f"| {name} | {both['before']:.3g} | {both['now']:.3g} | {both['before'] / both['now']:.2f} |"
            for name, both in rows
        ]
    for section, title in MORE.items():
        lines += _rows(title, results.get(section, {}))
    lines += ["", "| 4 TB on 10 nodes of 112 cores | |", "|---|---:|"]
    lines += [f"| {what} | {value} |" for what, value in _model(results)]
    return "\n".join(lines) + "\n"


def _rows(title: str, values: dict[str, Any]) -> list[str]:
    """The results of one section, a line each; why it was left out, if it was."""
    shown = {name: value for name, value in values.items() if name not in NOT_SHOWN}
    if not shown:
        return []
    wanted = {name: WANTED.get(name, WANTED.get(name.rpartition(": ")[2], "")) for name in shown}
    rows = [f"| {name} | {_shown(value)} | {wanted[name]} |" for name, value in shown.items()]
    return ["", f"| {title} | measured | wanted |", "|---|---:|---|", *rows]


def _shown(value: float | str) -> str:
    """Three digits, or all before the point; words as they are."""
    if isinstance(value, str):
        return value
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def write_report() -> None:
    """Write the tables of what has been measured. Needs the sections parts, end_to_end and peers."""
    results = load_results()
    if missing := {"parts", "end_to_end", "peers"} - results.keys():
        print(f"no report yet: measure {', '.join(sorted(missing))} first")
        return
    text = markdown(results)
    RESULTS.with_name("results.md").write_text(text, encoding="utf-8")
    print(text)
