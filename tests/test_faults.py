"""Kills and errors of files, injected from outside by strace into every command: the same command then ends with 0
and leaves what an undisturbed one leaves, byte for byte but for logs, and no file of its own more.

Each row of LINES is a command. It is killed before calls that change files; a few of them here, of which the seed
PRETOK_SEED chooses, and all with PRETOK_FAULTS=1 (many minutes). And it meets one error of each kind on files of its
folder and may end with 0 (tried again), 3 or 75, never with 1; with 2 for want of room or permission, in words that
name a file. PRETOK_FAULTS=1 injects each call of each kind by itself as well, and errors that stay.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
from pathlib import Path

import pytest
from support import needs
from traced import can_trace, injected, kill_points, killed_at, traced

import pretok.stream
from pretok.cli import run_command
from pretok.commands.help import COMMANDS
from pretok.shards.manifest import load_manifest
from train.__main__ import COMMANDS as TRAIN_COMMANDS

SHARDS, MIX = "{work}/shards", "{work}/mix.json"
INPUTS = ("it={work}/it.jsonl", "en={work}/en.jsonl")
HERE = ("--workers", "0")
HALVES = ("--weights", "it=0.5,en=0.5", "--seq-len", "16")
LINES = {
    "tokenize": ("tokenize", *INPUTS, "--out", "{work}/new", "--vocab", SHARDS, "--keep", "id", *HERE),
    "count": ("count", *INPUTS, "--out", "{work}/new", *HERE),
    "build-vocab": ("build-vocab", *INPUTS, "--out", "{work}/new", "--vocab-size", "400", *HERE),
    "run": ("run", "{work}/recipe.toml", *HERE),
    "plan": ("plan", *INPUTS, "--out", "{work}/new"),
    "annotate": ("annotate", SHARDS, "{work}/rows.jsonl", "--name", "q", "--by", "id", *HERE),
    "remove": ("remove", SHARDS, "--where", "id = 'it3'", "--reason", "why"),
    "verify": ("verify", SHARDS, *HERE),
    "stats": ("stats", SHARDS),
    "inspect": ("inspect", SHARDS, "--source", "it", "--doc", "3"),
    "superwords": (
        "build-vocab",
        *INPUTS,
        "--out",
        "{work}/new",
        "--vocab-size",
        "400",
        "--superwords",
        "20",
        *HERE,
    ),
    "extend": ("build-vocab", *INPUTS, "--out", "{work}/new", "--extend", SHARDS, "--add", "20", *HERE),
    "append": (
        "tokenize",
        *INPUTS,
        "--append",
        "it={work}/more.jsonl",
        "--out",
        "{work}/new",
        "--vocab",
        SHARDS,
        *HERE,
    ),
    "drop copies": (
        "tokenize",
        *INPUTS,
        "--out",
        "{work}/new",
        "--vocab",
        SHARDS,
        "--drop-duplicates",
        *HERE,
    ),
    "pack": ("mix", SHARDS, "--out", "{work}/new.json", *HALVES, "--pack", "best-fit"),
    "continue": ("mix", SHARDS, "--out", "{work}/new.json", "--continue", MIX, "--at", "7", *HALVES[:2]),
    "materialize": ("mix", SHARDS, "--out", "{work}/new.json", *HALVES, "--materialize", "{work}/new", *HERE),
    "query": ("query", "{work}", "select count(*), sum(tokens) from docs"),
    "trace": ("trace", MIX, "--shards", SHARDS, "--position", "3"),
    "certify": ("certify", MIX, "--shards", SHARDS, "--doc", "it3", "--out", "{work}/new"),
    "report": ("report", "{work}"),
    "disclose": ("disclose", "{work}", "--mix", MIX),
    "mix": ("mix", SHARDS, "--out", "{work}/new.json", *HALVES, "--class", "good=it where doc < 25"),
    "export": ("export", SHARDS, "--to", "megatron", "--out", "{work}/new", *HERE),
    "status": ("status", "{work}"),
    "watch": ("watch", "{work}", "--once"),
}
"""Command lines; {work} is a folder with inputs, shards of them and a mix."""
RUN = "{work}/run"
TRAIN = {
    "train": (
        *("train", "--shards", SHARDS, "--mix", MIX, "--out", RUN, "--model", "{work}/model.toml"),
        *("--global-batch", "4", "--steps", "4", "--lr", "0.01", "--warmup", "1", "--save-every", "1"),
        *("--keep-last", "2", "--milestone", "2", "--copy-to", "{work}/copies", "--workers", "0"),
    ),
    "train export": ("train", "export", "--run", RUN, "--out", "{work}/new"),
    "train average": ("train", "average", "--run", RUN, "--last", "2", "--out", "{work}/new"),
    "train verify": ("train", "verify", RUN),
}
"""Those of `train`, in a world of one on the processor; all but the first work on what it leaves."""
LEFT_OUT = {
    "submit": "writes a chain for Slurm and no data",
    "preflight": "looks at the machine, not at files",
    "init": "reads and writes no file",
    "train plan": "reads the folder of the shards and writes nothing",
    "train tune": "measures, anew each time",
    "train compare": "its runs are processes of their own, stopped in tests/train",
}
READ, PLACE, SYNC = "read,pread64", "rename,link,linkat", "fsync"
ONE_OF_EACH = (
    ("openat", "EIO", "1"),
    (READ, "ESTALE", "2"),
    (PLACE, "EIO", "1"),
    (SYNC, "ESTALE", "1"),
)
"""Calls, what they give, and at which of them on a file of the folder."""
ALONE = [
    *(
        (calls, error, str(when))
        for calls in ("openat", READ, PLACE, SYNC)
        for error in ("EIO", "ESTALE")
        for when in range(1, 7)
    ),
    *((calls, "EIO", "1+") for calls in ("openat", READ, PLACE, SYNC)),
]
ROOM = (
    (PLACE, "EDQUOT", "1"),
    ("write,pwrite64", "ENOSPC", "2"),
    ("openat", "EACCES", "2"),
    (PLACE, "EACCES", "1"),
)
"""What a person mends."""
FEW = 3
"""Kills of each command, unless all are wanted: then of calls alike."""
EVERYTHING = bool(os.environ.get("PRETOK_FAULTS"))
SEED = os.environ.get("PRETOK_SEED", "0")
COUNTING = ("count", "build-vocab", "superwords", "extend", "run")
"""Counts of inputs that stay unreadable are finished without them: they end with 3 and are deleted by hand."""
LOGS = re.compile(r"(^|/)logs/|\.lock$")
"""And locks: that of a dead job holds nothing, and who writes there next takes it over."""
DIFFERS = re.compile(r"/annotations/|\.html$|(^|/)goodput\.jsonl$|/\.metadata$")
"""Files of which only that they are there is compared: they hold times, and torch's a random name of the save."""
TIMES = {"time", "seconds", "tokens_per_second", "tokens_per_second_per_device", "data_wait"}
"""What differs in a line of metrics.jsonl or segments.jsonl."""
ANNOTATION = re.compile(r"(?<=-)[0-9a-f]{8}(?=\.parquet$)")
"""What tells the files of one annotation from those of another."""


pytestmark = [
    pytest.mark.skipif(bool(why := can_trace()) and not os.environ.get("CI"), reason=why),
    *([pytest.mark.timeout(0)] if EVERYTHING else []),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    """A folder that every command can work on."""
    work = tmp_path_factory.mktemp("faults") / "work"
    work.mkdir()
    for name in ("it", "en"):
        rows = [{"id": f"{name}{n}", "text": f"Il numero {n} di {name}, non di più."} for n in range(50)]
        (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "more.jsonl").write_text('{"id": "more", "text": "Ancora un testo, più tardi."}\n')
    (work / "rows.jsonl").write_text('{"id": "it3", "score": 7}\n')
    (work / "recipe.toml").write_text(
        f'out = "new"\n[vocab]\npath = "{vocab_dir}"\n[sources.it]\ninputs = ["it.jsonl"]\n'
        "[mix]\nweights = {it = 1}\nseq_len = 16\n"
    )
    (work / "model.toml").write_text(
        "vocab_size = 1500\ndim = 16\nlayers = 1\nheads = 2\nkv_heads = 1\nhidden = 16\ntied = true\n"
    )
    tokens = ("tokenize", *INPUTS, "--out", "{work}", "--vocab", str(vocab_dir), "--keep", "id", *HERE)
    mix = ("mix", SHARDS, "--out", MIX, "--weights", "it=0.5,en=0.5", "--seq-len", "16")
    for line in (tokens, mix):
        assert run_command([part.format(work=work) for part in line]) == 0
    return work


@pytest.fixture
def work(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it at a place of the same name in its folder: inputs are known by their paths."""
    monkeypatch.setattr("pretok.removal.job._now", lambda manifest: "2026-01-01T00:00:00.000Z")
    return shutil.copytree(made, tmp_path / "work")


def left(work: Path) -> dict[str, bytes]:
    """What stands in a folder, without what differs from run to run."""
    files = {str(path.relative_to(work)): path for path in work.rglob("*") if path.is_file()}
    at = str(work).encode()
    return {
        ANNOTATION.sub("", name): b"" if DIFFERS.search(name) else _same(path).replace(at, b"")
        for name, path in files.items()
        if not LOGS.search(name)
    }


def _same(path: Path) -> bytes:
    """The bytes of a file, less what differs from run to run in those of `train`."""
    data = path.read_bytes()
    if path.name in ("metrics.jsonl", "segments.jsonl"):
        lines = [json.loads(line) for line in data.splitlines()]
        data = json.dumps(
            [{key: line[key] for key in sorted(line.keys() - TIMES)} for line in lines]
        ).encode()
    if path.name == "meta.json":  # and with the checksum of `.metadata` the seal
        meta = json.loads(data)
        del meta["seal"], meta["files"][".metadata"]["checksum"]
        data = json.dumps(meta).encode()
    return data


def run(line: list[str]) -> int:
    """The exit code of an undisturbed command, of `train` in the process where torch is."""
    return traced(line)[0] if line[0] == "train" else run_command(line)


def test_every_command_is_here() -> None:
    assert not why  # where CI is set
    assert set(COMMANDS) | {f"train {name}" for name in TRAIN_COMMANDS} == (
        {line[0] for line in LINES.values()} | TRAIN.keys() - {"train"} | LEFT_OUT.keys()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LINES, *TRAIN])
def test_a_killed_command_is_finished_by_the_same_again(name: str, work: Path) -> None:
    """What stands after the kill is true as far as it goes, and nothing is left beside the result."""
    if name in TRAIN:
        needs("torch")
    if name.startswith("train "):
        assert run([part.format(work=work) for part in TRAIN["train"]]) == 0
    line = [part.format(work=work) for part in (LINES | TRAIN)[name]]
    fresh = shutil.copytree(work, work.parent / "fresh")
    points = kill_points(line, work, FEW)
    wanted = left(work)
    if not EVERYTHING:
        points = random.Random(f"{SEED} {name}").sample(points, min(FEW, len(points)))
    killed = 0
    for call, when in points:
        shutil.rmtree(work)
        shutil.copytree(fresh, work)
        code, said = killed_at(line, call, when)
        assert code in (0, -signal.SIGKILL), (call, when, said)
        killed += code != 0
        for path in work.rglob("manifest.json"):
            load_manifest(path.parent)
        if line[0] == "mix" and (work / "new.json").exists():
            pretok.stream.open(work / "shards", work / "new.json")[3]
        assert run(line) == 0, (call, when)
        assert left(work) == wanted, (call, when)
    print(f"{name}: {killed} kills at {len(points)} points")
    assert killed or not points


@pytest.mark.parametrize("name", LINES)
def test_a_command_gets_over_errors_of_files(name: str, work: Path) -> None:
    line = [part.format(work=work) for part in LINES[name]]
    fresh = shutil.copytree(work, work.parent / "fresh")
    assert run_command(line) == 0
    wanted, paths = left(work), {str(path) for path in work.rglob("*")}
    cases = [ONE_OF_EACH, (random.Random(f"{SEED} {name}").choice(ROOM),)]
    if EVERYTHING:
        cases += [(fault,) for fault in ROOM]
        cases += [(fault,) for fault in ALONE if name not in COUNTING or not fault[2].endswith("+")]
    for faults in cases:
        shutil.rmtree(work)
        shutil.copytree(fresh, work)
        code, said = injected(line, paths, faults)
        assert code in (0, 3, 75) or (code == 2 and faults[0] in ROOM and str(work) in said), (
            faults,
            code,
            said,
        )
        assert "Traceback" not in said, (faults, said)
        assert run_command(line) == 0, faults
        assert left(work) == wanted, faults


@pytest.mark.parametrize(("error", "code"), [("EIO", 75), ("EACCES", 2)])
def test_what_stays_is_said_with_the_file(work: Path, error: str, code: int) -> None:
    manifest = work / "shards" / "manifest.json"
    found, said = injected(["stats", f"{work}/shards"], {str(manifest)}, (("openat", error, "1+"),))
    assert (found, str(manifest) in said) == (code, True), said
    assert ("run the same command again" in said) is (code == 75)
