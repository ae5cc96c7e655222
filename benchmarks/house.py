"""The shape of the code, counted from the code: lines, folders, imports between them, types, comments.

    python -m benchmarks house                   # this checkout
    python -m benchmarks.house BEFORE [AFTER]    # two checkouts, side by side

Input: checkouts. Output: one table on standard output. A room is a folder or a module of `pretok/` or `train/`; an
arrow is one room that imports another. It points upward where rooms import each other in a circle.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

HOUSES = ("pretok", "train")


def main(*checkouts: Path) -> None:
    """Print the figures of each checkout in a column."""
    columns = [figures(checkout) for checkout in checkouts]
    for name in columns[0]:
        print(f"{name:32}" + "".join(f"{column[name]:>12,}" for column in columns))


def figures(checkout: Path) -> dict[str, int]:
    """Name of a figure -> its value."""
    rooms, arrows = shape(checkout)
    trees = [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in modules(checkout)]
    classes = [node for _, tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    comments, code = _comments(checkout)
    pages = [checkout / "README.md", *(checkout / "docs").glob("*.md")]
    return {
        **{
            f"lines of {name}": _lines((checkout / name).rglob("*.py"))
            for name in (*HOUSES, "tests", "benchmarks")
        },
        "words of README and docs": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "files": len(trees),
        "rooms": len(rooms),
        "arrows": len(arrows),
        "arrows upward": len(upward(rooms, arrows)),
        "types": len(classes),
        "functions": sum(isinstance(node, ast.FunctionDef) for _, tree in trees for node in ast.walk(tree)),
        "lines of code": code,
        "comments": comments,
    }


def modules(checkout: Path) -> Iterator[Path]:
    """The modules of the houses, sorted."""
    for house in HOUSES:
        yield from sorted((checkout / house).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module that a module imports, anywhere in it, also by `import_module`; names imported from a package as if
    they were modules."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    return found


def shape(checkout: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """Rooms, and arrows between them. An `__init__.py` of a house is no room."""
    room_of = {}
    for path in modules(checkout):
        parts = path.relative_to(checkout).with_suffix("").parts
        room_of[".".join(parts).removesuffix(".__init__")] = "/".join(parts[:2])
    arrows = set()
    for path in modules(checkout):
        here = "/".join(path.relative_to(checkout).with_suffix("").parts[:2])
        there = {room_of[name] for name in imports(path) if name in room_of}
        arrows |= {(here, other) for other in there if other != here and not other.endswith("/__init__")}
    return {room for room in room_of.values() if not room.endswith("/__init__")}, arrows


def upward(rooms: set[str], arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows of circles: what is left when rooms without an arrow in, or without one out, are taken away."""
    left = set(arrows)
    while ends := rooms - ({a for a, _ in left} & {b for _, b in left}):
        rooms = rooms - ends
        left = {(a, b) for a, b in left if a in rooms and b in rooms}
    return left


def _lines(paths: Iterator[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def _comments(checkout: Path) -> tuple[int, int]:
    """(comments that say something, lines that are neither empty nor docstring)."""
    comments = lines = 0
    for path in modules(checkout):
        text = path.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments += not token.string.startswith(("# type:", "# noqa", "# fmt:"))
        docstrings = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        lines += sum(
            bool(line.strip()) and n not in docstrings for n, line in enumerate(text.splitlines(), 1)
        )
    return comments, lines


if __name__ == "__main__":
    main(*(Path(path).resolve() for path in sys.argv[1:]))
