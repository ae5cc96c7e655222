"""A process of ours ends with a code and a sentence from its first line to its last."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from typing import Any

import pytest
from support import ROOT, needs

from pretok.base.begin import SIGNALS

AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
"""
"""A signal comes when a module is about to be imported."""
AT_END = """
import os, sys
class Last:
    def __del__(self, kill=os.kill, me=os.getpid()):
        kill(me, {number})
sys.kept = Last()
"""
"""A signal comes when Python frees its modules."""
COMMAND = """
import sys, importlib
sys.argv = {arguments!r}
getattr(importlib.import_module({entry!r}), {function!r})()
"""
MODULE = """
import runpy, sys
sys.argv = {arguments!r}
runpy.run_module({entry!r}, run_name="__main__", alter_sys=True)
"""
PRETOK = {"entry": "pretok.__main__", "function": "main"}
TRAIN = {"entry": "train.__main__", "function": "start"}


def ended(code: str, handler: Any = signal.SIG_DFL, **values: object) -> subprocess.CompletedProcess[str]:
    """Run a program of Python. handler: of its signals when it starts, whatever this process was started with."""
    return subprocess.run(
        [sys.executable, "-c", code.format(**values)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        preexec_fn=lambda: [signal.signal(number, handler) for number in SIGNALS],
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize(
    ("command", "module"),
    [
        (["pretok", "plan", "x"], "pretok.cli"),
        (["pretok", "plan", "x"], "typer"),
        (["pretok", "plan", "x"], "pretok.commands.recipe"),
        (["train", "plan"], "pretok.base.errors"),
        (["train", "plan"], "train.plan"),
    ],
)
def test_a_signal_while_a_command_loads_is_code_75_and_a_line(command, module, number):
    entry = PRETOK if command[0] == "pretok" else TRAIN
    done = ended(AT_IMPORT + COMMAND, arguments=command, module=module, number=int(number), **entry)
    line = f"{command[0]}: interrupted; run the same command again to continue\n"
    assert (done.returncode, done.stdout, done.stderr) == (75, "", line)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("entry", ["train.launch", "train.preflight"])
def test_a_signal_while_a_module_of_the_trainer_loads_torch_is_code_75_and_a_line(entry, number):
    needs("torch")
    done = ended(AT_IMPORT + MODULE, arguments=[entry], entry=entry, module="torch", number=int(number))
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.endswith("interrupted; run the same command again to continue\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_the_parent_had_ignored_stays_ignored(number):
    """As shells do it for SIGINT in the background."""
    values = {"arguments": ["pretok", "--version"], "module": "pretok.cli", "number": int(number)}
    done = ended(AT_IMPORT + COMMAND, signal.SIG_IGN, **values, **PRETOK)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pretok" in done.stdout


def test_nothing_is_loaded_before_signals_are_handled():
    """Only the modules of the entry itself, and what Python loads anyway."""
    code = "import sys, pretok.__main__; print(*sys.modules)"
    bare = "import sys, atexit, os, signal; print(*sys.modules)"
    ours, pythons = (set(ended(one).stdout.split()) for one in (code, bare))
    assert ours - pythons == {
        "__future__", "pretok", "pretok.__main__", "pretok.base", "pretok.base.begin", "types",
    } - pythons  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_after_the_end_changes_nothing(number):
    done = ended(AT_END + COMMAND, arguments=["pretok", "--version"], number=int(number), **PRETOK)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["pretok", "train"])
@pytest.mark.parametrize(("option", "limit"), [("v", 1_000_000), ("v", 2_000_000), ("d", 500_000)], ids=str)
def test_a_process_without_addresses_is_code_2_and_a_line(module, option, limit):
    name = {"v": resource.RLIMIT_AS, "d": resource.RLIMIT_DATA}[option]
    done = subprocess.run(
        [sys.executable, "-m", module, "plan", "it=sample:it"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(name, (limit << 10, limit << 10)),
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert f"`ulimit -{option}` limits this process to " in line
    assert f": ulimit -{option} unlimited" in line
