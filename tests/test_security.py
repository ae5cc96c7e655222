"""What somebody who controls a file can and cannot do: the rows of CONTRIBUTING.md that no other test holds.

The others are tests of their area, which the page names; that each of them exists is tested here.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import socket
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from serving import serve
from support import ROOT, make_shards

from pretok.base.errors import IntegrityError, UsageError
from pretok.base.records import to_json
from pretok.base.visible import masked
from pretok.chat.template import ChatTemplate, TemplateError
from pretok.chat.text import Trace
from pretok.cli import run_command
from pretok.config.changes import shared_inputs
from pretok.read import paths
from pretok.read.files import InputFile
from pretok.read.recognise import Listing, list_inputs
from pretok.shards.manifest import FILE_NAME, load_manifest


def test_the_tests_that_contributing_names_are_there() -> None:
    """`tests/FILE.py::NAME`: the promises and who may do what."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert len(named) > 40
    texts = {file: (ROOT / file).read_text("utf-8") for file, _ in named}
    assert [(file, name) for file, name in named if f"def {name}(" not in texts[file]] == []


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


SECRET_URL = "vault://anna:pass-1@host{}?token={}"


@pytest.fixture
def vault(tmp_path: Path) -> dict[str, str]:
    """A server that gives files of the disk to who has the password and today's token."""
    opened = {"token": "token-1", "broken": ""}

    def local(name: object) -> Path:
        path, _, query = str(name).removeprefix("anna:pass-1@host").partition("?")
        if query != f"token={opened['token']}" or Path(path).name == opened["broken"]:
            raise PermissionError(13, f"no entry for vault://{name}", f"vault://{name}")
        return Path(path)

    def info(_: object, path: str, **__: object) -> dict[str, object]:
        return {"name": path, "size": local(path).stat().st_size, "type": "file", "ETag": "1"}

    def read(path: object, start: int, end: int) -> bytes:
        return local(path).read_bytes()[start:end]

    serve("vault", read, info=info, async_impl=True, glob=lambda _, url: [url])
    return opened


SECRET = re.compile(r"pass-\d|token-\d")


def secrets_below(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if SECRET.search(path.read_text("latin-1"))]


def test_no_file_keeps_the_secrets_of_a_url(
    vault: dict[str, str], tmp_path: Path, vocab_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in logs, nor where inputs and errors are stored; and another token names the same inputs."""
    for name in ("a.jsonl", "b.jsonl"):
        rows = [json.dumps({"text": f"Il testo {n} di {name}."}) for n in range(300)]
        (tmp_path / name).write_text("\n".join(rows))
    table = pa.table({"text": [f"La riga {n}." for n in range(300)]})
    pq.write_table(table, tmp_path / "c.parquet")
    work = tmp_path / "work"

    def typed(command: str, *more: str) -> int:
        names = ("a.jsonl", "b.jsonl", "c.parquet")
        urls = [SECRET_URL.format(tmp_path / name, vault["token"]) for name in names]
        recipe = tmp_path / "r.toml"
        recipe.write_text(f"[sources.it]\ninputs = {json.dumps(urls)}\n[shards]\nmax_reject_share = 0.5\n")
        inputs = [str(recipe)] if command == "tokenize" else [f"it={url}" for url in urls]
        return run_command([command, *inputs, "--out", str(work), "--workers", "0", *more])

    assert typed("count") == 0
    vault["broken"] = "b.jsonl"
    tokenize = ("--vocab", str(vocab_dir), "--val-fraction", "0")
    assert typed("tokenize", *tokenize) == 3
    vault |= {"broken": "", "token": "token-2"}
    assert typed("count") == 0
    assert typed("tokenize", *tokenize) == 0
    manifest = load_manifest(work / "shards")
    vault["token"] = "token-3"
    assert typed("tokenize", *tokenize) == 0
    assert load_manifest(work / "shards").fingerprint == manifest.fingerprint
    assert manifest.sources["it"].documents == 900
    assert run_command(["status", str(work)]) == 0
    printed = capsys.readouterr()
    assert not SECRET.search(printed.out + printed.err)
    assert secrets_below(work) == []
    name = f"vault://***@host{tmp_path / 'a.jsonl'}?***"
    assert name in pq.read_table(manifest.of("it")[0].ledger_path)["file"].to_pylist()
    assert f"it={name}" in next((work / "logs").glob("count-*")).read_text()


@pytest.mark.parametrize(
    ("protocol", "says", "codes"),
    [
        ("https", "", (2, 75)),
        ("s3", "", (2, 75)),
        ("ftp", "refused", (75,)),
        ("nowhere", "Protocol not known: nowhere", (2,)),
    ],
)
def test_a_url_that_cannot_be_opened_is_named_without_its_secrets(
    protocol: str, says: str, codes: tuple[int, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whether or not the package for it is installed."""
    url = f"{protocol}://anna:pass-1@127.0.0.1:1/a.jsonl?token=token-1&x='y'"
    with contextlib.chdir(tmp_path):
        assert run_command(["count", f"it={url}", "--out", "work"]) in codes
    printed = capfd.readouterr()
    assert f"{protocol}://***@127.0.0.1:1/a.jsonl?***" in printed.err
    assert says in printed.err
    assert "Traceback" not in printed.err
    assert not SECRET.search(printed.out + printed.err)
    assert secrets_below(tmp_path) == []


def test_secrets_of_a_url_go_to_other_processes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_urls", {})
    url = SECRET_URL.format("/a.jsonl", "token-1")
    file = InputFile(paths.name_url(url), "jsonl", "", 1, "")
    assert "token" not in json.dumps(to_json(file)) + repr(file)
    sent = pickle.dumps(file)
    monkeypatch.setattr(paths, "_urls", {})
    assert pickle.loads(sent) == file
    assert paths.url_of(file.path) == url


def test_two_urls_of_one_name_are_refused(vault: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    urls = [SECRET_URL.format(tmp_path / "a.jsonl", token) for token in ("token-1", "token-2")]
    with pytest.raises(UsageError, match=r"a\.jsonl\?\*\*\* stands for two URLs"):
        list_inputs(urls, "auto")
    one, other = (InputFile(paths.name_url(urls[0]), "jsonl", "", size, "") for size in (1, 2))
    with pytest.raises(UsageError, match="stands for two URLs"):
        shared_inputs({"it": [Listing([one], [], {})], "en": [Listing([other], [], {})]})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@h/a?b=c&d", "https://***@h/a?***"),
        ("no 'https://u@h/a?b': 404, at http://h/x?y.", "no 'https://***@h/a?***': 404, at http://h/x?***."),
        ("zip://*.csv::s3://k:s@b/c.zip", "zip://*.csv::s3://***@b/c.zip"),
        ("s3:/k:s@b/c", "s3:/***@b/c"),
        ("https://h/a@b.jsonl and why? a@b", "https://h/a@b.jsonl and why? a@b"),
        ({"a": ["https://u@h/", 1]}, {"a": ["https://***@h/", 1]}),
    ],
)
def test_masked(text: object, shown: object) -> None:
    assert masked(text) == masked(masked(text)) == shown


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
        ("disclose", work, "--format", "json"),
    ):
        assert run_command(list(line)) == 0
