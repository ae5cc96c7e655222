"""Command line of the benchmarks.

python -m benchmarks all                           # those of results.md that README and docs quote, half an hour
python -m benchmarks removal documents             # some sections; results.json keeps the others
python -m benchmarks removal --scale 0.01 --runs 1 # smaller, to see that it works: prints, and keeps nothing
python -m benchmarks report                        # results.md again from results.json
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import RESULTS, load_results, markdown, save
from pretok.base.children import child_environment

TITLES = {
    "peers": "Tokenization by pretok and others, same tokenizer.json, without start-up, MB/s of text",
    "plain": "From one plain file, as a user starts it; and a bad record among six documents",
    "end_to_end": "`pretok tokenize`, without start-up",
    "parts": "Each part of tokenization alone, one core, MB/s of text",
    "startup": "From the command to the prompt, seconds",
    "scale": "A long job with new words all the time, 2 workers",
    "files": "Many files of three documents, 2 workers",
    "remote": "Inputs from an S3 server 50 ms away, one process",
    "loader": "Loaders of torch, sequences of 4,096 from memory, ms per million tokens",
    "reading": "Reading shuffled sequences of 4,096",
    "object_store": "Training from an object store, sequences of 4,096",
    "packing": "Packing the documents of the corpus",
    "vocab": "Training a vocabulary of 50,000 entries",
    "chats": "Conversations and the same text as plain documents, one core, MB/s",
    "removal": "Removing documents from 100 shards",
    "documents": "Commands that show documents",
    "certificate": "The certificate of a step of 512 sequences of 4,096",
    "train_ranks": "A checkpoint of 9 billion parameters by the number of ranks, CPU seconds of rank 0",
    "start": "What the hosts of a run do at its start, by the number of ranks",
}
"""The sections in the order of results.md; each is `measure` of the module of that name."""
CHANGES = {"changes": "Before and after a change, in turns"}
"""A section that no module measures: each row is from the commit that made the change, and notes say what brought
nothing."""
BUSY = 4
"""Load average from which on other programs took part of the two cores: the section before leaves 2 to 3."""
QUOTED = ("peers", "end_to_end", "parts", "startup", "files", "remote", "loader")


def report(results: dict[str, Any]) -> str:
    """The page of all that has been measured."""
    sessions = Counter(map(_session, filter(None, map(results.get, TITLES))))
    usual = sessions.most_common(1)[0][0]
    pages = []
    for name, title in (TITLES | CHANGES).items():
        if section := results.get(name):
            notes = [*section.get("notes", ())]
            if name in TITLES and _session(section) != usual:
                notes.append(f"Not of the same session: {_session(section)}.")
            if section.get("load", 0) > BUSY:
                notes.append(f"Beside other programs, load average {section['load']}.")
            pages.append(
                "\n".join([f"## {title}", "", markdown(section["rows"]), *(f"{n}\n" for n in notes)])
            )
    head = (
        "Made from results.json by `python -m benchmarks`; the figures are medians. Results vary by machine. "
        f"These are of {usual}."
    )
    return "\n".join(["# Measurements", "", head, "", *pages])


def _session(section: dict[str, Any]) -> str:
    """Say where and when a section was measured."""
    return f"{section['date']}, {section['machine']}"


def main() -> None:
    """Measure the sections named, and write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="+", choices=[*TITLES, "all", "report"], metavar="SECTION")
    parser.add_argument(
        "--vocab", type=Path, help="folder with a tokenizer.json. Default: train 50,000 entries"
    )
    parser.add_argument(
        "--work", type=Path, help="make the temporary folder of all files here, on the disk to measure"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each case (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="size in proportion to that of results.md")
    parser.add_argument("--gigabytes", type=float, default=15, help="text of the section scale (default 15)")
    arguments = parser.parse_args()
    os.environ.update(child_environment())  # worker processes import this package too
    sections = QUOTED if "all" in arguments.sections else arguments.sections
    with tempfile.TemporaryDirectory(prefix="pretok-", dir=arguments.work) as folder:
        inputs = Inputs(Path(folder), arguments.vocab, arguments.scale, arguments.runs, arguments.gigabytes)
        for name in sections:
            if name == "report":
                continue
            load = os.getloadavg()[0]
            table = import_module(f"benchmarks.{name}").measure(inputs)
            print(f"{TITLES[name]}\n{markdown(table)}", flush=True)
            if arguments.scale == 1:
                save(name, table, load)
    if arguments.scale == 1:
        RESULTS.with_suffix(".md").write_text(report(load_results()), encoding="utf-8")


if __name__ == "__main__":
    main()
