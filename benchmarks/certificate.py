"""What a certificate costs: its bytes, to make it, to check it.

Input: the shards of the corpus. Output: for one step of 512 sequences, plain and packed, the size of the file, and the
CPU seconds to make and to check it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pretok
import pretok.stream
from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, in_turns, timed
from pretok.base.records import to_json
from pretok.base.storage import write_json
from pretok.documents.certificate.certify import certify_step
from pretok.documents.certificate.check import check_certificate
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_file import mix_json
from pretok.stream.segments import SEGMENTS, RunSegment

SEQ_LEN = 4096


def write_run(folder: Path, shards: Path, batch: int, pack: str = "none") -> None:
    """What `train` leaves of a run of two steps, over all sources alike."""
    mix, names = folder / "mix.json", list(load_manifest(shards).sources)
    folder.mkdir(parents=True, exist_ok=True)
    weights, tokens = dict.fromkeys(names, 1 / len(names)), (2 * batch + 8) * SEQ_LEN
    pretok.mix(shards, mix, weights=weights, tokens=tokens, seq_len=SEQ_LEN, pack=pack)
    view = pretok.stream.open(shards, mix)
    segment = RunSegment(
        step=0, tokens=0, position=0, global_batch=batch, seq_len=SEQ_LEN, seed=0, stream=view.fingerprint,
        shards=str(shards), mix=str(mix), order=mix_json(view.mix),
    )  # fmt: skip
    (folder / SEGMENTS).write_text(json.dumps(to_json(segment)) + "\n")
    write_json(folder / "config.json", {"model": "debug", "resolved": {"model": {}, "steps": 2}})
    saved = {"step": 2, "progress": {"position": 2 * batch}}
    write_json(folder / "checkpoints" / "step-2" / "meta.json", saved)


def certify(run: Path) -> Row:
    """Make the certificate of the second step, and check it."""
    path = run / "certificate"
    making, made = timed(lambda: certify_step(run, 2, None, path))
    checking, checked = timed(lambda: check_certificate(path, made.root, 2))
    return {
        "MB": path.stat().st_size / 1e6,
        "shards": checked.shards,
        "made in CPU s": making["CPU s"],
        "checked in CPU s": checking["CPU s"],
    }


def measure(inputs: Inputs) -> Table:
    """Plain sequences and packed ones."""
    cases = {}
    for pack in ("none", "best-fit"):
        run = inputs.folder / f"run-{pack}"
        write_run(run, inputs.shards, inputs.scaled(512), pack)
        cases[f"pack = {pack}"] = lambda run=run: certify(run)
    return in_turns(cases, inputs.runs)
