"""Kills and errors of files, injected from outside by strace into every command: the same command then ends with 0
and leaves what an undisturbed one leaves, byte for byte but for logs, and no file of its own more.

Each row of LINES and TRAIN is a command. It is killed before calls that change files, and gets SIGTERM there once and
twice. It is stopped there until another has done its work, and continues. Each row of LINES meets one error of each
kind on files of its folder and may end with 0 (tried again), 3 or 75, never with 1; with 2 for lack of room or
permission, in words that name a file. Of workers one, their parent and the whole group are killed.

PRETOK_FAULTS is how many faults of each kind meet a command (3; hundreds take hours), PRETOK_SEED which.

Kills elsewhere: workers and a driver in tests/base/test_execute.py, ranks in tests/train/test_train_resume.py, SIGTERM
in the middle of the work in tests/test_cli.py, who gets a lock in tests/base/test_lock.py.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import TASK_PATH, children, left, needs, until, write_inputs, write_recipe
from traced import can_trace, injected, kill_points, signalled, traced

import pretok.stream
from pretok.base.errors import FolderInUse, Stopped
from pretok.base.lock import STALE, is_lock
from pretok.cli import run_command
from pretok.commands.help import COMMANDS
from pretok.documents.removal import remove_job
from pretok.shards.manifest import UNFINISHED_REMOVAL, load_manifest
from train.__main__ import COMMANDS as TRAIN_COMMANDS

SHARDS, MIX = "{work}/shards", "{work}/mix.json"
INPUTS = ("it={work}/it.jsonl", "en={work}/en.jsonl")
HERE = ("--workers", "0")
HALVES = ("--weights", "it=0.5,en=0.5", "--seq-len", "16")
TOKENIZE = ("tokenize", *INPUTS, "--out", "{work}/new", "--vocab", SHARDS, *HERE)
LINES = {
    "tokenize": (*TOKENIZE, "--keep", "id"),
    "count": ("count", *INPUTS, "--out", "{work}/new", *HERE),
    "build-vocab": ("build-vocab", *INPUTS, "--out", "{work}/new", "--vocab-size", "370", *HERE),
    "run": ("run", "{work}/recipe.toml", *HERE),
    "plan": ("plan", *INPUTS, "--out", "{work}/new"),
    "annotate": ("annotate", SHARDS, "{work}/rows.jsonl", "--name", "q", "--by", "id"),
    "remove": ("remove", SHARDS, "--where", "id = 'it3'", "--reason", "why"),
    "verify": ("verify", SHARDS, *HERE),
    "inspect": ("inspect", SHARDS, "--source", "it", "--doc", "3"),
    "extend": ("build-vocab", *INPUTS, "--out", "{work}/new", "--extend", SHARDS, "--add", "20", *HERE),
    "append": (*TOKENIZE, "--append", "it={work}/more.jsonl"),
    "drop copies": (*TOKENIZE, "--duplicates=drop"),
    "pack": ("mix", SHARDS, "--out", "{work}/new.json", *HALVES, "--pack", "best-fit"),
    "continue": ("mix", SHARDS, "--out", "{work}/new.json", "--continue", MIX, "--at", "7", *HALVES[:2]),
    "materialize": ("mix", SHARDS, "--out", "{work}/new.json", *HALVES, "--materialize", "{work}/new", *HERE),
    "query": ("query", "{work}", "select count(*), sum(tokens) from documents"),
    "trace": ("trace", MIX, "--shards", SHARDS, "--position", "3"),
    "report": ("report", "{work}"),
    "disclose": ("disclose", "{work}", MIX, "--format", "json"),
    "mix": ("mix", SHARDS, "--out", "{work}/new.json", *HALVES, "--class", "good=it where doc < 25"),
    "export": ("export", SHARDS, "--to", "megatron", "--out", "{work}/new", *HERE),
    "status": ("status", "{work}"),
}
"""Command lines; {work} is a folder with inputs, shards of them and a mix."""
RUN = "{work}/run"
TRAIN = {
    "train": (
        *("train", "--shards", SHARDS, "--mix", MIX, "--out", RUN, "--model", "{work}/model.toml"),
        *("--global-batch", "4", "--steps", "4", "--lr", "0.01", "--warmup", "1", "--save-every", "1"),
        *("--keep-last", "2", "--milestone", "2", "--workers", "0"),
    ),
    "train export": ("train", "export", "--run", RUN, "--last", "2", "--out", "{work}/new"),
    "train verify": ("train", "verify", RUN),
    "certify": ("certify", RUN, "--step", "1", "--out", "{work}/new"),
}
"""Those of `train` and of its runs, in a world of one on the processor; all but the first work on what it leaves."""
LEFT_OUT = {
    "submit": "writes a chain for Slurm and no data",
    "preflight": "looks at the machine, not at files",
    "init": "reads and writes no file",
    "train plan": "reads the folder of the shards and writes nothing",
    "train tune": "measures, anew each time",
    "train generate": "reads a checkpoint as export does and writes nothing",
    "train losses": "reads a checkpoint as export does, documents as trace does, and writes nothing",
}
READ, PLACE, SYNC = "read,pread64", "rename,link,linkat", "fsync"
ONE_OF_EACH = (("openat", "EIO", "1"), (READ, "ESTALE", "2"), (PLACE, "EIO", "1"), (SYNC, "ESTALE", "1"))
"""Calls, what they give, and at which of them on a file of the folder."""
ALONE = [
    (calls, error, when)
    for calls in ("openat", READ, PLACE, SYNC)
    for error, when in (("EIO", "2"), ("ESTALE", "3"), ("EIO", "5"), ("EIO", "1+"))
]
"""Of which some pass, and "1+" stays."""
ROOM = [(PLACE, "EDQUOT", "1"), ("write,pwrite64", "ENOSPC", "2")]
ROOM += [("openat", "EACCES", "2"), (PLACE, "EACCES", "1")]
"""What a person mends."""
FAULTS = int(os.environ.get("PRETOK_FAULTS", "3"))
ENDS = {"KILL": (0, -signal.SIGKILL), "TERM": (0, Stopped.exit_code, -signal.SIGTERM)}
"""Signals, and what a command may end with for them; 0 where it was done, or the call did not come."""
WRITERS = ("tokenize", "count", "append", "mix", "annotate", "remove", "export", "run", "train")
"""Rows whose command holds what it writes to."""
SEED = os.environ.get("PRETOK_SEED", "0")
COUNTING = ("count", "build-vocab", "extend", "run")
"""Counts of inputs that stay unreadable are finished without them: they end with 3 and are deleted by hand."""
pytestmark = [
    pytest.mark.usefixtures("few_buckets"),
    pytest.mark.skipif(bool(why := can_trace()) and not os.environ.get("CI"), reason=why),
    *([pytest.mark.timeout(0)] if FAULTS > 3 else []),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    """A folder that every command can work on."""
    work = tmp_path_factory.mktemp("faults") / "work"
    work.mkdir()
    write_inputs(work)
    recipe = f'out = "new"\n[vocab]\npath = "{vocab_dir}"\n[sources.it]\ninputs = ["it.jsonl"]\n'
    (work / "recipe.toml").write_text(recipe + "[mix]\nweights = {it = 1}\nseq_len = 16\n")
    model = "vocab_size = 1500\ndim = 16\nlayers = 1\nheads = 2\nkv_heads = 1\nhidden = 16\ntied = true\n"
    (work / "model.toml").write_text(model)
    tokens = ("tokenize", *INPUTS, "--out", "{work}", "--vocab", str(vocab_dir), "--keep", "id", *HERE)
    for line in (tokens, ("mix", SHARDS, "--out", MIX, *HALVES)):
        assert run_command([part.format(work=work) for part in line]) == 0
    return work


@pytest.fixture
def work(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it at a place of the same name in its folder: inputs are known by their paths."""
    monkeypatch.setattr(remove_job, "_now", lambda manifest: "2026-01-01T00:00:00.000Z")
    return shutil.copytree(made, tmp_path / "work")


def run(line: list[str]) -> int:
    """The exit code of an undisturbed command, of `train` in the process where torch is."""
    return traced(line)[0] if line[0] == "train" else run_command(line)


def test_every_command_is_here() -> None:
    assert not why  # where CI is set
    assert set(COMMANDS) | {f"train {name}" for name in TRAIN_COMMANDS} == (
        {line[0] for line in LINES.values()} | TRAIN.keys() - {"train"} | LEFT_OUT.keys()
    )


def row(name: str) -> Any:
    """A row of LINES; further ones of the same command are for the slow tests."""
    first = next(other for other, line in LINES.items() if line[0] == LINES[name][0])
    return pytest.param(name, marks=[pytest.mark.slow] * (name != first))


def prepared(name: str, work: Path) -> tuple[list[str], Path]:
    """A row's command line, and a copy of the folder in which it can be run."""
    if name in TRAIN:
        needs("torch")
    if name in TRAIN and name != "train":
        assert run([part.format(work=work) for part in TRAIN["train"]]) == 0
    line = [part.format(work=work) for part in (LINES | TRAIN)[name]]
    return line, shutil.copytree(work, work.parent / "fresh")


def anew(work: Path, fresh: Path) -> None:
    shutil.rmtree(work)
    shutil.copytree(fresh, work)


def drawn(name: str, some: list[Any], count: int) -> list[Any]:
    """Some of these, by the seed."""
    return random.Random(f"{SEED} {name}").choices(some, k=count) if some else []


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LINES, *TRAIN])
def test_a_killed_command_is_finished_by_the_same_again(name: str, work: Path) -> None:
    """What stands after the kill is true as far as it goes, and nothing is left beside the result."""
    line, fresh = prepared(name, work)
    points = kill_points(line, work, FAULTS)
    wanted = left(work)
    ends = ["KILL"] * FAULTS + ["TERM", "TERM twice"] * (-(-FAULTS // 3))
    killed = 0
    for end, (call, when) in zip(ends, drawn(name, points, len(ends)), strict=False):
        case = (end, call, when)
        anew(work, fresh)
        code, said = signalled(line, end[:4], call, f"{when}" if " " not in end else f"{when}..{when + 1}")
        assert code in ENDS[end[:4]], (case, code, said)
        killed += code == -signal.SIGKILL
        for path in work.rglob("manifest.json"):
            if not (path.parent / UNFINISHED_REMOVAL).exists():  # which readers refuse by name
                load_manifest(path.parent)
        if line[0] == "mix" and (work / "new.json").exists():
            pretok.stream.open(work / "shards", work / "new.json")[3]
        assert run(line) == 0, case
        assert left(work) == wanted, case
    assert killed or not points


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_command_that_stood_still_harms_no_other(
    name: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped for so long that the same command, somewhere else, has taken its lock and done the work."""
    monkeypatch.setattr("pretok.base.lock.HEARTBEAT", 0.05)  # who takes a lock looks at it for two
    line, fresh = prepared(name, work)
    points = kill_points(line, work, FAULTS)
    wanted = left(work)
    old = time.time() - STALE - 1
    taken: list[tuple[str, int]] = []

    def take_over() -> None:
        for path in filter(is_lock, work.rglob("*")):
            os.utime(path, (old, old))
        taken.append(point)
        assert run(line) == 0, point
        assert left(work).items() >= wanted.items(), point

    for point in drawn(name, points, FAULTS - 1):
        anew(work, fresh)
        code, said = signalled(line, "STOP", point[0], f"{point[1]}", take_over)
        assert code in (0, FolderInUse.exit_code, Stopped.exit_code, -signal.SIGTERM), (point, code, said)
        assert "Traceback" not in said, (point, said)
        assert run(line) == 0, point
        assert left(work) == wanted, point
    assert taken


@pytest.mark.parametrize("more", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [row(name) for name in LINES])
def test_a_command_gets_over_errors_of_files(name: str, more: bool, work: Path) -> None:
    """more: one of those that a person mends, and some alone; else one of each that pass."""
    line = [part.format(work=work) for part in LINES[name]]
    fresh = shutil.copytree(work, work.parent / "fresh")
    assert run_command(line) == 0
    wanted, paths = left(work), {str(path) for path in work.rglob("*")}
    alone = [fault for fault in ALONE if name not in COUNTING or not fault[2].endswith("+")]
    chosen = [(fault,) for fault in (*drawn(name, ROOM, 1), *drawn(name, alone, FAULTS - 1))]
    for faults in chosen if more else [ONE_OF_EACH]:
        anew(work, fresh)
        code, said = injected(line, paths, faults)
        mended = code == 2 and faults[0] in ROOM and str(work) in said
        assert code in (0, 3, 75) or mended, (faults, code, said)
        assert "Traceback" not in said, (faults, said)
        assert run_command(line) == 0, faults
        assert left(work) == wanted, faults


@pytest.mark.parametrize(("error", "code"), [("EIO", 75), ("EACCES", 2)])
def test_what_stays_is_said_with_the_file(work: Path, error: str, code: int) -> None:
    manifest, line = str(work / "shards" / "manifest.json"), ["verify", f"{work}/shards", *HERE]
    found, said = injected(line, {manifest}, (("openat", error, "1+"),))
    assert (found, manifest in said) == (code, True), said
    assert ("run the same command again" in said) is (code == 75)


@pytest.mark.slow
def test_killed_workers_are_got_over(tmp_path: Path, vocab_dir: Path) -> None:
    """First a worker, whose task another one does, and their parent; then, as a shell or Slurm does, the whole group.
    Of the driver alone tests/base/test_execute.py has a test."""
    for n in range(2):
        text = json.dumps({"text": "una frase qualunque, abbastanza lunga. " * 50}) + "\n"
        (tmp_path / f"{n}.jsonl").write_text(text * 7_000)  # 28 MB: about a second of work
    recipe = write_recipe(tmp_path / "r.toml", {"it": f"{tmp_path}/*.jsonl"}, shards={"size": "128KiB"})
    line = ["tokenize", recipe, "--vocab", str(vocab_dir), "--out"]
    state = tmp_path / "out" / "shards" / ".state" / "it"

    def done() -> int:
        return len(list(state.glob("it-0*.json")))

    for killed, code in (("nursery", 75), ("group", -signal.SIGKILL)):
        driver = subprocess.Popen(
            [sys.executable, "-m", "pretok", *line, str(tmp_path / "out"), "--workers", "2"],
            start_new_session=True,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": TASK_PATH},
        )
        try:
            before = done()
            until(lambda before=before: done() > before)
            (nursery,) = children(driver.pid)
            if killed == "nursery":
                os.kill(children(nursery)[0], signal.SIGKILL)
                before = done() + 2
                until(lambda before=before: done() > before)
                os.kill(nursery, signal.SIGKILL)
            else:
                os.killpg(driver.pid, signal.SIGKILL)
            said = driver.communicate(timeout=200)[1]
            assert driver.returncode == code, said
            assert "Traceback" not in said
            until(lambda nursery=nursery: not Path(f"/proc/{nursery}").exists())
        finally:
            driver.kill()
    for out in ("out", "undisturbed"):
        assert run_command([*line, str(tmp_path / out), *HERE]) == 0
    assert left(tmp_path / "out") == left(tmp_path / "undisturbed")
