"""Command line of the tokenization benchmarks.

python -m benchmarks all                # everything, about half an hour on two cores
python -m benchmarks parts end-to-end   # some sections; results.json keeps the others
python -m benchmarks loader cold files remote startup  # no peers needed
python -m benchmarks report             # the tables again from results.json
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cold import measure_cold
from benchmarks.end_to_end import measure_end_to_end
from benchmarks.files import measure_files
from benchmarks.inputs import Inputs, prepare
from benchmarks.loader import measure_loader
from benchmarks.measure import save
from benchmarks.parts import measure_parts
from benchmarks.peers import measure_peers
from benchmarks.remote import measure_remote
from benchmarks.report import write_report
from benchmarks.startup import measure_startup
from pretok.base.children import child_environment

SECTIONS: dict[str, Callable[[Inputs, int], dict[str, Any]]] = {
    "parts": measure_parts,
    "end-to-end": measure_end_to_end,
    "peers": measure_peers,
    "loader": measure_loader,
    "cold": measure_cold,
    "files": measure_files,
    "remote": measure_remote,
    "startup": measure_startup,
}


def main() -> None:
    """Measure the sections named and write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="+", choices=[*SECTIONS, "all", "report"])
    parser.add_argument(
        "--vocab", type=Path, help="folder with a tokenizer.json; default: train one of 50,000"
    )
    parser.add_argument("--work", type=Path, help="keep the derived files here; default: a temporary folder")
    parser.add_argument("--runs", type=int, default=3, help="runs of which the median counts (default 3)")
    arguments = parser.parse_args()
    # The worker processes import this package too.
    os.environ.update(child_environment())
    sections = list(SECTIONS) if "all" in arguments.sections else arguments.sections
    with tempfile.TemporaryDirectory(prefix="pretok-benchmarks-") as temporary:
        if sections != ["report"]:
            inputs = prepare(arguments.work or Path(temporary), arguments.vocab)
        for name in sections:
            if name in SECTIONS:
                save(name.replace("-", "_"), SECTIONS[name](inputs, arguments.runs))
    write_report()


if __name__ == "__main__":
    main()
