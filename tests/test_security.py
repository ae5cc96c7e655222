"""What somebody who controls a file can and cannot do: the rows of docs/security.md that no other test holds.

The others are tests of their area, which the pages name; that each of them is there is held here.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tomllib
from pathlib import Path

import pytest
from support import ROOT, make_shards

from pretok.base.errors import IntegrityError
from pretok.chat.template import ChatTemplate, TemplateError
from pretok.chat.text import Trace
from pretok.cli import run_command
from pretok.shards.manifest import FILE_NAME, load_manifest

PAGES = ("security.md", "promises.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_a_page_names_are_there(page: str) -> None:
    """`tests/FILE.py::NAME`, and in a list or table only the name where the file is that of the one before."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / page).read_text())
    assert len(named) > 7
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []


def test_every_package_is_named_with_its_hashes() -> None:
    """In the versions of the tests; pip itself refuses a package that is needed and not there."""

    def versions(file: str, line: str) -> dict[str, str]:
        found = re.findall(r"^([\w.-]+)==" + line, (ROOT / file).read_text(), re.MULTILINE)
        return {plain(name): version for name, version in found}

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    locked = versions("requirements.txt", r"(\S+) \\\n    --hash=sha256:[0-9a-f]{64}")
    assert locked.items() <= versions("constraints.txt", r"(\S+)$").items()
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {plain(re.split("[><=]", line)[0]) for line in needed} <= locked.keys()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return make_shards(tmp_path / "shards", {"it": [[5, 6, 7], [8, 9]]})


@pytest.mark.parametrize(
    "condition",
    [
        "(SELECT count(*) FROM read_text('{secret}')) = 1",
        "(SELECT count(*) FROM '{secret}') = 1",
        "1) FROM rows); COPY (SELECT 1) TO '{made}'; SELECT (1",
        "getenv('HOME') = 'x'",
    ],
)
def test_a_condition_of_a_class_reads_and_writes_no_file(
    condition: str, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, made = tmp_path / "secret.csv", tmp_path / "made.csv"
    secret.write_text("a\n1\n")
    text = condition.format(secret=secret, made=made)
    line = ["mix", str(shards), "--out", str(tmp_path / "mix.json"), "--seq-len", "2"]
    assert run_command([*line, "--class", f"good=it where {text}", "--weights", "good=1"]) == 2
    assert not made.exists()
    assert not (tmp_path / "mix.json").exists()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self.__init__.__globals__ }}",
    ],
)
def test_a_template_runs_no_code(template: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(template, {}).run([{"role": "user", "content": "x"}], Trace())


def test_a_manifest_nested_without_end_is_damaged(shards: Path) -> None:
    """Where one library gives up and the next does not depends on the depth of the stack."""
    data = json.loads((shards / FILE_NAME).read_text())
    text = json.dumps({**data, "config": {"a": None}})
    for depth in (100, *range(700, 1000, 4), 5_000, 200_000):
        (shards / FILE_NAME).write_text(text.replace("null", "[" * depth + "]" * depth, 1))
        with pytest.raises(IntegrityError, match=re.escape(FILE_NAME)):
            load_manifest(shards)


def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path, vocab_dir: Path) -> None:
    """Also those that are made under another name first."""
    (tmp_path / "a.jsonl").write_text('{"text": "uno"}\n' * 5)
    before = os.umask(0o077)
    try:
        line = ["tokenize", f"it={tmp_path}/a.jsonl", "--out", f"{tmp_path}/w", "--vocab", str(vocab_dir)]
        assert run_command([*line, "--workers", "0"]) == 0
    finally:
        os.umask(before)
    made = list((tmp_path / "w").rglob("*"))
    assert len(made) > 5
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_no_connection_is_opened(tmp_path: Path, vocab_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By commands that work in this process. Ray's processes talk to each other."""

    def connect(self: socket.socket, address: object) -> None:
        raise AssertionError(f"asked for {address}")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    (tmp_path / "a.jsonl").write_text('{"text": "uno due tre"}\n' * 20)
    work = str(tmp_path / "w")
    given, here = (f"it={tmp_path}/a.jsonl", "--out", work), ("--workers", "0")
    for line in (
        ("plan", *given),
        ("count", *given, *here),
        ("tokenize", *given, "--vocab", str(vocab_dir), *here),
        ("mix", work, "--out", f"{work}/mix.json", "--seq-len", "4"),
        ("verify", work, *here),
        ("report", work),
        ("disclose", work),
    ):
        assert run_command(list(line)) == 0
