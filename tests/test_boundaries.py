"""The shape of the project: who may import what, how large a file may grow, what the README says of files."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

MODULES = sorted([*ROOT.glob("pretok/**/*.py"), *ROOT.glob("train/*.py")])
STREAM_SIDE = [
    "pretok.stream",
    "pretok.loader",
    "pretok.mix",
    "pretok.stop",
    "pretok.lock",
    "pretok.storage",
    "pretok.manifest",
    "pretok.units",
]
HEAVY = [
    "pydantic",
    "msgspec",
    "ray",
    "gigatoken",
    "pyarrow",
    "typer",
    "rich",
    "numba",
    "datasets",
    "tokenizers",
]


def imports(path: Path) -> set[str]:
    """Every module a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def importers(package: str, paths: list[Path]) -> set[str]:
    return {
        relative(p) for p in paths if any(i == package or i.startswith(package + ".") for i in imports(p))
    }


def test_one_module_imports_ray():
    assert importers("ray", MODULES) == {"pretok/engine.py"}


def test_pretok_imports_no_torch_and_only_its_commands_import_train():
    pretok = [p for p in MODULES if relative(p).startswith("pretok/")]
    assert importers("torch", pretok) == set()
    # A command checks the whole recipe, [train] too, which no other module may know.
    assert {Path(path).parent for path in importers("train", pretok)} <= {Path("pretok/commands")}


def test_train_sees_only_the_streaming_side():
    allowed = {*STREAM_SIDE, "pretok.errors", "pretok"}
    for path in MODULES:
        if relative(path).startswith("train/"):
            modules = {i for i in imports(path) if i.startswith("pretok")}
            assert {".".join(m.split(".")[:2]) for m in modules} <= allowed, relative(path)


def test_stages_do_not_import_jobs_nor_jobs_commands():
    stages = [p for p in MODULES if p.parent.name == "pretok" and p.name not in ("cli.py", "__main__.py")]
    assert importers("pretok.jobs", stages) == set()
    assert importers("pretok.commands", [p for p in MODULES if p.parent.name != "commands"]) == {
        "pretok/cli.py"
    }


@pytest.mark.parametrize("module", ["pretok", *STREAM_SIDE])
def test_the_streaming_side_loads_nothing_heavy(module):
    """On a GPU node only numpy is there beside torch."""
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""


def test_no_import_cycles():
    names = {relative(p)[:-3].replace("/", "."): p for p in MODULES}
    graph = {name: {i for i in imports(path) if i in names and i != name} for name, path in names.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_files_and_functions_stay_readable():
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 430, relative(path)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno <= 70, f"{relative(path)}: {node.name}"


def test_every_module_says_what_it_is():
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), relative(path)


def test_the_readme_names_every_module():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = readme.split("## The code")[1].split("```")[1]
    named = {line.split()[0] for line in tree.splitlines() if line.startswith("  ")}
    for path in MODULES:
        if path.parent.name in ("pretok", "train") and path.stem not in ("__init__", "__main__"):
            assert path.name in named, f"{relative(path)} is not in the README's tree"
    for name in named:
        assert list(ROOT.glob(f"*/{name}")), f"the README's tree names {name}, which is not there"
