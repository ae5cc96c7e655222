"""The rules of the house: which stage may import which, what CONTRIBUTING says of folders."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest
from support import ROOT

MODULES = sorted([*ROOT.glob("pretok/**/*.py"), *ROOT.glob("train/**/*.py")])


@functools.cache
def tree(path: Path) -> ast.Module:
    """A module, parsed once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a module imports, anywhere in it, also by `import_module`; names imported from a package as if
    they were modules."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    return frozenset(found)


MAY_IMPORT = {
    "base": "",
    "kernels": "base",
    "tokenizer": "base kernels",
    "read": "base kernels tokenizer",
    "chat": "base kernels read tokenizer",
    "config": "base read tokenizer chat",
    "screen": "base kernels read chat",
    "vocab": "base kernels read config tokenizer chat",
    "shards": "base kernels read config tokenizer chat screen",
    "stream": "base kernels config tokenizer shards",
    "integrations": "base tokenizer stream",
    "overview": "base kernels read config tokenizer chat vocab shards stream",
    "documents": "base config read tokenizer screen vocab shards stream overview",
    "cluster": "base config",
    "train": "base tokenizer shards stream documents",
    "session": "base config screen vocab train",
    "steps": "base config tokenizer vocab shards stream documents cluster",
    "commands": "base read config tokenizer vocab shards stream documents cluster overview train session steps",
    "api": "base config vocab shards stream documents session steps",
    "cli": "base commands",
    "__main__": "base cli",
}
"""Room -> the rooms it may import, from the ground up: nothing points upward, and nothing unused is on the list."""
LIGHT = ("pretok.shards.manifest", "pretok.stream", "pretok.stream.loader", "pretok.stream.object_store")
"""What runs beside torch on a GPU node: numpy, msgspec and the standard library."""
TRAIN = ("train.loop", "train.checkpoint.export", "train.plan", "train.tune", "train.__main__")
HEAVY = {"pydantic", "ray", "gigatoken", "pyarrow", "fsspec", "typer", "rich", "numba", "tokenizers", "torch"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room(path: Path) -> str:
    """`pretok/read/files.py` -> `read`, `pretok/cli.py` -> `cli`, `train/loop.py` -> `train`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "train" if parts[0] == "train" else parts[1]


def test_each_stage_imports_only_those_before_it():
    used: dict[str, set[str]] = {name: set() for name in MAY_IMPORT}
    for path in MODULES:
        if relative(path) == "pretok/__init__.py":
            continue
        for module in imports(path):
            head, *rest = module.split(".")
            other = rest[0] if head == "pretok" and rest else head
            if head in ("pretok", "train") and other in MAY_IMPORT and other != room(path):
                used[room(path)].add(other)
                assert other in MAY_IMPORT[room(path)].split(), f"{relative(path)} imports {module}"
    assert used == {name: set(allowed.split()) for name, allowed in MAY_IMPORT.items()}
    rooms = list(MAY_IMPORT)
    for number, name in enumerate(rooms):
        assert used[name] <= set(rooms[:number]), f"{name} imports upward"


def test_what_a_worker_runs_knows_no_driver():
    for path in MODULES:
        if path.stem.endswith("task"):
            assert not any(module.split(".")[-1].endswith("job") for module in imports(path)), relative(path)


def test_one_module_imports_ray_and_few_torch():
    places = {"ray": ("pretok/base/execute.py",), "torch": ("train/", "pretok/integrations/")}
    for package, allowed in places.items():
        for path in MODULES:
            if any(f"{one}.".startswith(f"{package}.") for one in imports(path)):
                assert relative(path).startswith(allowed), f"{relative(path)} imports {package}"


@pytest.mark.parametrize("modules", [LIGHT, pytest.param(TRAIN, marks=pytest.mark.slow)])
def test_what_runs_on_a_gpu_node_loads_nothing_heavy(modules):
    heavy = HEAVY - {"torch"} if modules is TRAIN else HEAVY
    code = f"import sys, {', '.join(modules)}; print(*{heavy!r} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""


def test_no_import_cycles():
    names = {relative(p)[:-3].replace("/", ".").removesuffix(".__init__"): p for p in MODULES}
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


def test_contributing_names_every_folder_and_a_folder_its_modules():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = page.split("## The code")[1].split("```")[1]
    named = {line.split()[0].rstrip("/") for line in listed.splitlines() if line.startswith("  ")}
    for path in MODULES:
        assert ast.get_docstring(tree(path)), relative(path)
        parts = path.relative_to(ROOT).parts
        top = parts[1].removesuffix(".py")
        if not top.startswith("__"):
            assert {parts[1], top} & named, f"{relative(path)}: {parts[1]} is not in the tree of CONTRIBUTING"


def test_the_docstring_of_a_folder_lists_what_is_in_it():
    for init in (path for path in MODULES if path.stem == "__init__" and path.parent.parent != ROOT):
        page = ast.get_docstring(tree(init)) or ""
        listed = re.findall(r"^ *([a-z_0-9]+\.[a-z]+|[a-z]+(?=/)).? ", page, re.MULTILINE)
        inside = [
            path for path in init.parent.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
        ]
        held = {path.name for path in inside} - {"__init__.py"}
        assert {*listed} - {"page.html", "card.md"} == held, relative(init)


def test_the_picture_of_the_rooms_is_true():
    made = run_path(str(ROOT / "docs" / "rooms.py"))
    drawn = made["PICTURE"].read_text(encoding="utf-8")
    assert drawn == made["picture"](), "make it again: python docs/rooms.py"


def test_a_word_names_one_thing():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Words")[1].split("## Where")[0]
    rows = re.findall(r"^\| ([a-z]+) \|.*\| (?:`(\w+)`)? ?\|$", page, flags=re.MULTILINE)
    assert 20 <= len(rows) <= 30
    words = {name: owner for word, owner in rows for name in (word.title(), f"{word.title()}s")}
    classes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(relative(path))
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}
    tables = "pretok/config/settings.py"  # its classes are named after the tables of a recipe
    known = words.keys() & classes.keys()
    assert [name for name in known if words[name] != name and classes[name] != [tables]] == []


def test_fifteen_rooms():
    assert sum(path.is_dir() and path.name != "__pycache__" for path in (ROOT / "pretok").iterdir()) <= 15
