"""A process of ours ends with a code and a sentence from its first line to its last."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support import ROOT, needs

AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            for number in {numbers}:
                os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder())
"""
"""Signals come when a module is about to be imported."""
AT_END = """
import os, sys
class Last:
    def __del__(self, kill=os.kill, me=os.getpid()):
        for number in {numbers}:
            kill(me, number)
sys.kept = Last()
"""
"""Signals come when Python frees its modules."""
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
TERM, USR1, INT = ALL = [int(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]


def ended(code: str, handler: Any = signal.SIG_DFL, **values: object) -> subprocess.CompletedProcess[str]:
    """Run a program of Python. handler: of its signals when it starts, whatever this process was started with."""
    return run("-c", code.format(**values), first=lambda: [signal.signal(one, handler) for one in ALL])


def run(*arguments: str, first: Callable[[], object]) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in the checkout, where `first` is called before all."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, preexec_fn=first)


@pytest.mark.parametrize(
    ("command", "module", "number"),
    [
        (["pretok", "plan", "x"], "pretok.cli", INT),
        (["pretok", "plan", "x"], "typer", TERM),
        (["pretok", "plan", "x"], "pretok.commands.recipe", USR1),
        (["train", "plan"], "pretok.base.errors", TERM),
        (["train", "plan"], "train.plan", INT),
    ],
)
def test_a_signal_while_a_command_loads_is_code_75_and_a_line(command, module, number):
    entry = PRETOK if command[0] == "pretok" else TRAIN
    done = ended(AT_IMPORT + COMMAND, arguments=command, module=module, numbers=[number], **entry)
    line = f"{command[0]}: interrupted; run the same command again to continue\n"
    assert (done.returncode, done.stdout, done.stderr) == (75, "", line)


@pytest.mark.parametrize(
    ("entry", "number"), [("train.launch", TERM), ("train.preflight", USR1), ("train.launch", INT)]
)
def test_a_signal_while_a_module_of_the_trainer_loads_torch_is_code_75_and_a_line(entry, number):
    needs("torch")
    done = ended(AT_IMPORT + MODULE, arguments=[entry], entry=entry, module="torch", numbers=[number])
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.endswith("interrupted; run the same command again to continue\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("signals", "handler", "more"),
    [(AT_IMPORT, signal.SIG_IGN, {"module": "pretok.cli"}), (AT_END, signal.SIG_DFL, {})],
    ids=["ignored by the parent", "after the end"],
)
def test_signals_that_change_nothing(signals, handler, more):
    """Those that the parent had ignored, as shells do it for SIGINT in the background; and those after the end."""
    arguments = ["pretok", "--version"]
    done = ended(signals + COMMAND, handler, arguments=arguments, numbers=ALL, **more, **PRETOK)
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


@pytest.mark.parametrize(
    ("module", "option", "limit"),
    [("pretok", "v", 1_000_000), ("pretok", "d", 500_000), ("train", "v", 2_000_000)],
)
def test_a_process_without_addresses_is_code_2_and_a_line(module, option, limit):
    name = {"v": resource.RLIMIT_AS, "d": resource.RLIMIT_DATA}[option]
    limits = (limit << 10, limit << 10)
    done = run("-m", module, "plan", "it=sample:it", first=lambda: resource.setrlimit(name, limits))
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert f"`ulimit -{option}` limits this process to " in line
    assert f": ulimit -{option} unlimited" in line
