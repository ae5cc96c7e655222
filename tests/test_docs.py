"""What the documents say can be done: every command parses, those marked `<!-- run -->` run, links lead somewhere.

A `sh` block holds commands and nothing else. A block behind the line `<!-- run -->` is typed on small data, all blocks
of a page in one folder, in their order.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import html
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer
from support import ROOT

from pretok.cli import app, run_command

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "slurm" / "README.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(
    r"(?P<mark>^<!-- run -->\n)?^(?P<indent> *)```(?:sh|bash)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
LAUNCHERS = ("torchrun", "srun", "python3", ".venv/bin/python")
GROUP = typer.main.get_command(app)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a block: lines that go on are joined, `&&` and `|` and `;` part commands."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = next((n for n, word in enumerate(words) if word in ("&&", "|", ";", "||")), len(words))
            if words[:end]:
                yield words[:end]
            words = words[end + 1 :]


def ours(words: list[str]) -> list[str] | None:
    """A command of ours as `pretok ...` or `train ...`; None for those of others."""
    if "-m" in words and Path(words[0]).name in ("torchrun", "python", "python3"):
        words = words[words.index("-m") + 1 :]
    head = Path(words[0]).name
    return [head, *words[1:]] if head in ("pretok", "train") else None


CASES = [
    pytest.param(found, id=f"{name(page)}: {shlex.join(found)[:70]}")
    for page in PAGES
    for block in BLOCK.finditer(page.read_text(encoding="utf-8"))
    for words in commands(block["text"])
    if (found := ours(words))
]


@pytest.mark.parametrize("words", CASES)
def test_every_command_parses(words: list[str]) -> None:
    """Options exist and have values of their type; nothing is opened."""
    if words[0] == "train":
        train_parses(words[1:])
        return
    context = GROUP.make_context("pretok", words[1:], resilient_parsing=True)
    command, rest = GROUP.get_command(context, words[1]), words[2:]
    with command.make_context(words[1], list(rest), parent=context):
        pass


@functools.cache
def train_help(command: str) -> str:
    from train.__main__ import main

    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([command, "--help"])
    return shown.getvalue()


def train_parses(words: list[str]) -> None:
    import argparse

    from train.__main__ import COMMANDS
    from train.config import add_flags

    if words and words[0] in COMMANDS:
        pytest.importorskip("torch")
        for word in words[1:]:
            if word.startswith("--"):
                assert word.split("=")[0] in train_help(words[0]), word
        return
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    parser.parse_args(words)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "<!-- run -->" in page.read_text("utf-8")], ids=name
)
def test_the_marked_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "pipelines", tmp_path / "pipelines")
    _make_messy(tmp_path / "messy")
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["mark"]:
            for words in commands(block["text"]):
                assert words[0] == "pretok", f"{words}: only commands of pretok can be run"
                assert run_command(words[1:]) == 0, words


def _make_messy(folder: Path) -> None:
    """A folder as docs/messy-data.md has it: nested, two names of the text, bad lines, a damaged file, other files."""
    texts = [f"Il documento numero {number} parla del mare e della luna." for number in range(200)]
    for name in ("text", "testo"):
        (folder / name).mkdir(parents=True)
        lines = "".join(json.dumps({name: text}) + "\n" for text in texts).encode()
        (folder / name / "a.jsonl.gz").write_bytes(gzip.compress(lines + b'{"broken": \n{"other": 1}\n'))
        (folder / name / "_SUCCESS").touch()
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines)[:-40])
    (folder / "notes.pdf").write_bytes(b"%PDF")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder in which the first block of docs/trainers.md ran, and the names that it left."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("torch")
    lines = _python_blocks("# Other trainers and Python")[0].replace("size=32_000", "size=1_000")
    assert len(lines.splitlines()) <= 12
    texts = [f"{n} ships and {n * n} waves on the sea" for n in range(900)]
    known = {"dataset": datasets.Dataset.from_dict({"text": texts})}
    folder = tmp_path_factory.mktemp("made")
    with contextlib.chdir(folder):
        exec(lines, known)
    return folder, known


def _python_blocks(heading: str) -> list[str]:
    """The Python blocks of docs/trainers.md below a heading."""
    page = (ROOT / "docs" / "trainers.md").read_text("utf-8")
    part = page.partition(f"{heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("few_buckets")
def test_the_ten_lines_from_a_dataset_run(made: tuple[Path, dict[str, Any]]) -> None:
    import torch

    known = made[1]
    assert torch.equal(known["inputs"][:, 1:], known["targets"][:, :-1])
    assert known["inputs"].shape[1] == 1024


@pytest.mark.usefixtures("few_buckets")
@pytest.mark.parametrize("heading", ["PyTorch and accelerate", "transformers", "nanoGPT", "Python"])
def test_blocks_of_the_page_run_as_printed_on_a_cpu(
    made: tuple[Path, dict[str, Any]], heading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a model of the reader; only numbers of steps and sizes of batches are smaller."""
    import torch

    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(made[0])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    if heading == "transformers":
        pytest.importorskip("accelerate")
        config = transformers.LlamaConfig(vocab_size=1_000, **sizes)
        transformers.LlamaForCausalLM(config).save_pretrained("base")
    known: dict[str, Any] = {
        "rank": 0, "ranks": 1, "steps": 1, "global_batch": 8, "resumed": False, "checkpoint": {},
        "cross_entropy": torch.nn.functional.cross_entropy, "model": torch.nn.Embedding(1_000, 1_000),
        "batch_size": 2, "device": "cpu",
    }  # fmt: skip
    smaller = {
        "max_steps=1000": "max_steps=2", "train_batch_size=8": "train_batch_size=1", "12_345": "5",
        "accumulation_steps=4": "accumulation_steps=2", "[7, 3, 9_000]": "[7, 3, 5]",
    }  # fmt: skip
    for block in _python_blocks(f"## {heading}"):
        for large, small in smaller.items():
            block = block.replace(large, small)
        exec(block, known)
    if heading == "PyTorch and accelerate":
        assert known["loader"].state_dict()["position"] == 8
        assert torch.isfinite(known["loss"])
    elif heading == "transformers":
        assert known["trainer"].state.global_step == 2
    elif heading == "nanoGPT":
        inputs, targets = known["get_batch"]("train")
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
    else:
        assert known["work"].sources == ("en",)


@pytest.mark.slow
def test_the_notebook_goes_from_text_to_a_trained_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("nbclient", "ipykernel", "matplotlib"):
        pytest.importorskip(package, reason="needs pip install nbclient ipykernel matplotlib")
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # for the kernel, which starts elsewhere
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "save it without its output"
    with warnings.catch_warnings(action="ignore"):  # those of the client's event loop
        resources = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, kernel_name="python3", resources=resources).execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in data for data in shown) == 3
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(losses) > 30
    assert losses[-1] < losses[0] - 1


def test_the_picture_of_the_report_is_of_this_page() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    assert len(headings := made["headings"]()) > 5
    assert made["headings_of"](made["PICTURE"].read_bytes()) == headings, "run python docs/pictures.py"


def anchors(page: Path) -> set[str]:
    """What headings are called in links."""
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_names_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in LINK.findall(text):
        if "://" in link:
            continue
        target, _, anchor = unquote(link).partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name(page)}: {link}"
        assert not anchor or anchor in anchors(path), f"{name(page)}: {link}"
    file = r"`(?:python |bash )?((?:tests|benchmarks|pipelines)/[\w/.-]+\.\w+)"
    assert not [path for path in re.findall(file, page.read_text("utf-8")) if not (ROOT / path).exists()]


def test_messages_that_are_explained_are_messages_of_ours() -> None:
    page = (ROOT / "docs" / "running.md").read_text("utf-8")
    table = page.partition("\n## Messages\n")[2].partition("\n## ")[0]
    sources = "".join(
        path.read_text("utf-8") for top in ("pretok", "train") for path in (ROOT / top).rglob("*.py")
    )
    messages = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert len(messages) > 7
    assert not [message for message in messages if message not in sources]


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "docs" / "site.yml").read_text(encoding="utf-8")
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if f": {page.name}\n" not in text]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The docs as a site."""
    pytest.importorskip("zensical", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, str(ROOT / "docs" / "site.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_the_site_fetches_nothing(site: Path) -> None:
    assert "pretok.stream.View" in (site / "api" / "index.html").read_text(encoding="utf-8")
    fetched = r'<(?:link|script|img)[^>]*(?:href|src)="https?://'
    pages = {str(page): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    assert len(pages) > 10
    assert not [name for name, text in pages.items() if re.search(fetched, text)]


MEASURE = """<script>addEventListener("load", () => {
  const cut = [], article = document.querySelector("article").getBoundingClientRect();
  const edge = (innerWidth < 800 ? innerWidth : article.right) + 1;  // a block is as wide as a small screen
  if (document.documentElement.scrollWidth > innerWidth + 1) cut.push("the page is wider than the window");
  const blocks = document.querySelectorAll("article pre > code, article table, article img");
  for (const block of blocks) {
    const scrolls = ["auto", "scroll"].includes(getComputedStyle(block).overflowX);
    const right = block.getBoundingClientRect().right, over = block.scrollWidth > block.clientWidth + 1;
    const held = block.closest(".md-typeset__scrollwrap");
    if ((right > edge && !held) || (block.tagName == "CODE" && over && !scrolls))
      cut.push(block.textContent.trim().slice(0, 60));
  }
  document.title = JSON.stringify({ cut, blocks: blocks.length });
});</script></body>"""
"""Writes the blocks that are cut into the title of a page, and how many there are."""


@pytest.mark.parametrize("width", [390, 1400])
def test_no_block_of_the_site_is_cut(site: Path, width: int) -> None:
    """All pages as one, in a real browser: what is too wide wraps or can be scrolled."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("needs chromium")
    articles = re.compile(r"(<article[^>]*>)(.*)(</article>)", re.DOTALL)
    home = (site / "index.html").read_text(encoding="utf-8")
    texts = [page.read_text(encoding="utf-8") for page in site.rglob("index.html")]
    inner = "".join(found[2] for text in texts if (found := articles.search(text)))
    whole = articles.sub(lambda found: found[1] + inner + found[3], home).replace("</body>", MEASURE)
    (site / "all.html").write_text(whole, encoding="utf-8")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},900"]
    command = [browser, *flags, "--allow-file-access-from-files", "--dump-dom", f"file://{site}/all.html"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout, re.DOTALL)
    assert title, done.stderr[-500:]
    found = json.loads(html.unescape(title[1]))
    assert found["cut"] == []
    assert found["blocks"] > 100


def test_every_practice_has_its_option_and_its_test() -> None:
    """The list of docs/training.md: an option of `train` or a command of it, and a test that exists."""
    from train.__main__ import COMMANDS
    from train.config import add_flags, command_parser

    add_flags(parser := command_parser("train", "", ""))
    known = {*parser._option_string_actions, *(f"train {name}" for name in COMMANDS)}
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").partition("## Practices")[2]
    rows = re.findall(r"^- (.+): `([^`]+)`, `([^`]+)`$", page, re.MULTILINE)
    named = {practice for practice, _, _ in rows}
    assert len(named) == len(rows) >= 15
    for practice, option, test in rows:
        assert option in known, practice
        file, _, function = test.partition("::")
        assert f"\ndef {function}(" in (ROOT / file).read_text(encoding="utf-8"), practice
