"""What a certificate costs: its bytes, to make it, to check it.

    python -m benchmarks.certificate WORK [--batch 512] [--pack] [--runs 3]

Input: a folder with finished shards. Output: of one step that reads `--batch` sequences of 4,096 tokens, for both
widths of ids: bytes of the file, seconds to make and to check it, the best of some runs; int32 is the same shards with
twice the bytes, whose ids are right and whose ledgers and indexes are made again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SEQ_LEN = 4096


def widened(shards: Path, to: Path) -> Path:
    """The same shards with ids of four bytes."""
    from pretok.base.records import replace
    from pretok.shards.format import ShardReader
    from pretok.shards.manifest import load_manifest, write_manifest
    from pretok.shards.writer import ShardWriter

    manifest = load_manifest(shards)
    shutil.copytree(shards, to, ignore=shutil.ignore_patterns("*.bin", "*.idx", "*.nodes", "manifest.json"))
    entries = []
    for shard in manifest.shards:
        reader = ShardReader(shard.prefix)
        with ShardWriter(to / shard.path.removesuffix(".bin"), np.dtype("<i4")) as writer:
            writer.append(reader.tokens.astype("<i4"), reader.lengths)
            sealed, _ = writer.seal(shard.source, shard.split)
        changed = {"root": sealed.root, "index_root": sealed.index_root, "file_bytes": sealed.file_bytes}
        entries.append(replace(shard, **changed))
    tokenizer = replace(manifest.tokenizer, vocab_size=70_000, dtype="int32")
    write_manifest(to, replace(manifest, shards=tuple(entries), tokenizer=tokenizer))
    return to


def write_run(folder: Path, shards: Path, batch: int, pack: bool) -> None:
    """What `train` leaves of a run of two steps."""
    import pretok.stream
    from pretok.base.records import to_json
    from pretok.base.storage import write_json
    from pretok.shards.manifest import load_manifest
    from pretok.stream.mix_file import mix_json
    from pretok.stream.segments import SEGMENTS, RunSegment

    mix = folder / "mix.json"
    names = list(load_manifest(shards).sources)
    weights = ",".join(f"{name}={1 / len(names)}" for name in names)
    command = [sys.executable, "-m", "pretok", "mix", str(shards), "--out", str(mix), "--weights", weights]
    command += ["--tokens", str(2 * batch * SEQ_LEN + 8 * SEQ_LEN), "--seq-len", str(SEQ_LEN)]
    command += ["--pack", "best-fit"] if pack else []
    subprocess.run(command, check=True, capture_output=True)
    view = pretok.stream.open(shards, mix)
    segment = RunSegment(
        step=0, tokens=0, position=0, global_batch=batch, seq_len=SEQ_LEN, seed=0, stream=view.fingerprint,
        shards=str(shards), mix=str(mix), order=mix_json(view.mix),
    )  # fmt: skip
    (folder / SEGMENTS).write_text(json.dumps(to_json(segment)) + "\n")
    write_json(folder / "config.json", {"model": "debug", "resolved": {"model": {}, "steps": 2}})
    write_json(
        folder / "checkpoints" / "step-2" / "meta.json", {"step": 2, "progress": {"position": 2 * batch}}
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--pack", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    from pretok.certificate.check import check_certificate
    from pretok.certificate.make import certify_step
    from pretok.shards.manifest import load_manifest

    with tempfile.TemporaryDirectory(dir=arguments.work) as name:
        for dtype in ("uint16", "int32"):
            folder = Path(name) / dtype
            folder.mkdir()
            shards = arguments.work / "shards"
            if load_manifest(shards).tokenizer.dtype != dtype:
                shards = widened(shards, folder / "shards")
            write_run(folder, shards, arguments.batch, arguments.pack)
            made, checked, whole = [], [], []
            for _ in range(arguments.runs):
                began = time.process_time()
                out = certify_step(folder, 2, None, folder / "certificate")
                middle = time.process_time()
                found = check_certificate(folder / "certificate", out.root, 2)
                made.append(middle - began)
                checked.append(time.process_time() - middle)
                before = os.times()
                command = ["certify", "--check", str(folder / "certificate"), "--root", out.root]
                subprocess.run([sys.executable, "-m", "pretok", *command], check=True, capture_output=True)
                after = os.times()
                whole.append(sum(after[2:4]) - sum(before[2:4]))
            print(
                f"{dtype}: {found.sequences} sequences of {SEQ_LEN:,} tokens in {found.shards} shards, "
                f"{found.documents:,} documents: {out.file_bytes / 1e6:.2f} MB, made in {min(made):.2f} s, checked in "
                f"{min(checked):.3f} s, {min(whole):.2f} s with the start of the command (CPU)"
            )


if __name__ == "__main__":
    main()
