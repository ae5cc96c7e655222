"""pretok and Megatron-LM's own script from the same plain file, as a user starts them; what each does with bad records.

Input: the corpus as one uncompressed file, once and seven times; a file of six good documents with a bad record in the
middle. Output: MB/s with and without start-up (a run on a tiny file), memory, and how many of the good documents are in
what was written. MEGATRON_LM names a checkout of Megatron-LM of August 2026 or later, whose builder adds documents in
bulk; without it the installed megatron-core adds them one by one.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs, text_bytes
from benchmarks.measure import Row, Table, fresh, in_turns

COPIES = (1, 7)
"""How often the corpus stands in the file: 0.3 and 2 GB."""
GOOD = [f"un documento buono, numero {number}" for number in range(6)]
BAD = {
    "a line cut in the middle": b'{"text": "tagli',
    "invalid UTF-8": b'{"text": "ab\xff"}',
    "no text": b'{"other": "a"}',
    "text null": b'{"text": null}',
    "a lone surrogate": b'{"text": "a\\ud800b"}',
    "text with <|endoftext|>": b'{"text": "prima<|endoftext|>dopo"}',
}


def pretok(plain: Path, vocab: Path, out: Path) -> None:
    """Run pretok tokenize with two workers."""
    command = [sys.executable, "-m", "pretok", "--quiet", "tokenize", f"all={plain}", "--vocab", str(vocab)]
    subprocess.run([*command, "--out", str(out), "--workers", "2"], check=False, capture_output=True)


def megatron(plain: Path, vocab: Path, out: Path) -> None:
    """Run what Megatron-LM's preprocess_data_fast.py does, with two threads."""
    out.mkdir(parents=True, exist_ok=True)
    call = f"whole_file(Path({str(plain)!r}), Path({str(vocab / 'tokenizer.json')!r}), Path({str(out / 'all')!r}))"
    code = f"from pathlib import Path\nfrom benchmarks.peers import whole_file\n{call}"
    environment = {**os.environ, "RAYON_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, env=environment)


PROGRAMS = {"pretok tokenize": pretok}
if os.environ.get("MEGATRON_LM") or find_spec("megatron"):
    PROGRAMS["Megatron-LM's preprocess_data_fast"] = megatron


def run(program: str, plain: Path, vocab: Path, out: Path) -> Row:
    """Run a program in a process of its own; its seconds, and the memory of its largest process."""
    began = time.perf_counter()
    PROGRAMS[program](plain, vocab, out)
    seconds = time.perf_counter() - began
    written = sum(path.stat().st_size for path in out.rglob("*.bin"))
    shutil.rmtree(out, ignore_errors=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {"s": seconds, "peak MB": peak / 1e6, "written": written}


def documents(program: str, plain: Path, vocab: Path, out: Path) -> Row:
    """Run a program on the file with a bad record; how many good documents and EODs are in its `.bin`, as text."""
    import numpy as np
    from tokenizers import Tokenizer

    PROGRAMS[program](plain, vocab, out)
    tokenizer = Tokenizer.from_file(str(vocab / "tokenizer.json"))
    kind = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.int32
    ids: Any = np.concatenate([np.empty(0, kind), *(np.fromfile(path, kind) for path in out.rglob("*.bin"))])
    shutil.rmtree(out, ignore_errors=True)
    text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
    return {
        "good": sum(good in text for good in GOOD),
        "ends": int((ids == tokenizer.token_to_id("<|endoftext|>")).sum()),
    }


def measure(inputs: Inputs) -> Table:
    """Both programs in turns, then the bad records."""
    vocab, out, tiny = inputs.vocab, inputs.folder / "made", inputs.folder / "tiny.jsonl"
    tiny.write_text('{"text": "ciao"}\n')
    table: Table = {}
    for copies in COPIES:
        plain = inputs.folder / f"plain-{copies}.jsonl"
        plain.write_bytes(inputs.plain.read_bytes() * copies)
        megabytes = text_bytes(inputs.plain) * copies / 1e6

        def case(program: str, plain: Path = plain, megabytes: float = megabytes) -> Row:
            whole, start = (fresh(run, program, path, vocab, out) for path in (plain, tiny))
            if not whole["written"]:
                return {}
            return {
                "MB/s with start-up": megabytes / whole["s"],
                "MB/s without": megabytes / (whole["s"] - start["s"]),
                "start-up s": start["s"],
                "largest process MB": whole["peak MB"],
            }

        cases = {
            f"{program}, {megabytes / 1000:.1f} GB of text": lambda program=program, case=case: case(program)
            for program in PROGRAMS
        }
        table |= in_turns(cases, inputs.runs)  # type: ignore[arg-type]
        plain.unlink()
    for what, bad in BAD.items():
        plain = inputs.folder / "bad.jsonl"
        lines = [json.dumps({"text": good}).encode() for good in GOOD]
        plain.write_bytes(b"\n".join([*lines[:3], bad, *lines[3:]]) + b"\n")
        row: Row = {}
        for program in PROGRAMS:
            found = fresh(documents, program, plain, vocab, out)
            row |= {f"{program}: good documents of 6": found["good"], f"{program}: EODs": found["ends"]}
        table[f"six documents, and {what}"] = row
    return table
