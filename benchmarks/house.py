"""The shape of the code, measured from the code: rooms, arrows, walks, names, annotations, comments, lengths.

    python -m benchmarks house          # this checkout; python -m benchmarks.house CHECKOUT for another

Enters: a checkout (default: this one). Leaves: figures on standard output. A room is what one sees in `pretok/` and
`train/`: a folder or a module beside it. An arrow is one room that imports another; it points upward when the other
stands above in the order that the arrows themselves give (a circle cannot be ordered, and its arrows are counted).
The walks are measured, not drawn: a document is tokenized and a position is read while the interpreter reports every
call, and the rooms and modules that are entered are counted.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

HOUSES = ("pretok", "train")
ARRAY_MODULES = ("_numba", "kernels")
"""Modules of compiled code, whose annotations Numba's signatures stand in for."""

WALK = """
import json, sys, tempfile
from pathlib import Path
root = Path(sys.argv[1])
work = Path(tempfile.mkdtemp())
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from {pretokenize} import PATTERNS
texts = ["L'acqua del mare è salata. " * 20, "The sea is deep and the sky is wide. " * 20]
made = Tokenizer(models.BPE())
split = pre_tokenizers.Split(Regex(PATTERNS["cl100k"]), "isolated")
made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, False, use_regex=False)])
made.decoder = decoders.ByteLevel()
special = ["<|endoftext|>", "<|pad|>"]
alphabet = pre_tokenizers.ByteLevel.alphabet()
made.train_from_iterator(texts, trainers.BpeTrainer(
    vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
(work / "vocab").mkdir()
made.save(str(work / "vocab" / "tokenizer.json"))
(work / "a.jsonl").write_text("".join(json.dumps({{"text": text}}) + "\\n" for text in texts), encoding="utf-8")
from pretok.cli import run_command
walk = [f"it={{work}}/a.jsonl", "--out", str(work / "out"), "--vocab", str(work / "vocab"), "--workers", "0"]
entered, inside = [], [False]
def note(frame, event, value):
    if event not in ("call", "return"):
        return
    name = frame.f_code.co_filename
    if not name.startswith((f"{{root}}/pretok/", f"{{root}}/train/")):
        return
    if frame.f_code.co_name == START[0]:
        inside[0] = event == "call"
    if inside[0] and event == "call" and not (entered and entered[-1] == name):
        entered.append(name)
import threading
START = ["tokenize_partition"]
threading.setprofile(note)
sys.setprofile(note)
run_command(["tokenize", *walk])
sys.setprofile(None)
threading.setprofile(None)
document = list(entered)
import pretok.stream
view = pretok.stream.open(work / "out" / "shards", seq_len=8)
entered.clear()
START[0] = "__getitem__"
sys.setprofile(note)
view[3]
sys.setprofile(None)
print(json.dumps([document, entered]))
"""


def main(checkout: Path) -> None:
    """Print every figure of `checkout`."""
    for house in HOUSES:
        rooms, arrows, upward = shape(checkout, house)
        print(f"{house}: {len(rooms)} rooms, {len(arrows)} arrows, {len(upward)} upward")
        for a, b in sorted(upward):
            print(f"  upward: {a} -> {b}")
    whole, arrows, upward = shape(checkout, *HOUSES)
    print(f"both: {len(whole)} rooms, {len(arrows)} arrows, {len(upward)} upward")
    document, position = walks(checkout)
    print(f"a document passes {len(document)} rooms from its task to the shard: {', '.join(document)}")
    print(f"a position passes {len(position)} modules to its tokens: {', '.join(position)}")
    for name, places in names_used_twice(checkout).items():
        print(f"name used twice: {name}: {', '.join(places)}")
    slots, free, dicts = annotations(checkout)
    print(f"Any in {free} of {slots} annotation slots ({free / slots:.1%}); dict[str, Any] {dicts} times")
    comments, lines = comment_density(checkout)
    print(f"{comments / lines * 100:.2f} comments per 100 lines of code, {lines} lines")
    print("longest modules: " + ", ".join(f"{name} {n}" for n, name in longest_modules(checkout)))
    print("longest functions: " + ", ".join(f"{name} {n}" for n, name in longest_functions(checkout)))


def modules(checkout: Path, *houses: str) -> Iterator[Path]:
    """The modules of the houses, sorted."""
    for house in houses or HOUSES:
        yield from sorted((checkout / house).rglob("*.py"))


def room_of(checkout: Path, path: Path) -> str:
    """`pretok/read/files.py` -> `pretok/read`; `pretok/cli.py` -> `pretok/cli`."""
    return "/".join(path.relative_to(checkout).with_suffix("").parts[:2])


def imports(path: Path) -> set[str]:
    """Every module that a module imports, anywhere in it; names imported from a package as if they were modules."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def shape(checkout: Path, *houses: str) -> tuple[set[str], set[tuple[str, str]], set[tuple[str, str]]]:
    """Rooms, arrows between them, and those that point upward. An `__init__.py` without code is no room."""
    by_module: dict[str, str] = {}
    for path in modules(checkout, *houses):
        name = ".".join(path.relative_to(checkout).with_suffix("").parts).removesuffix(".__init__")
        by_module[name] = room_of(checkout, path)
    arrows = set()
    for path in modules(checkout, *houses):
        here = room_of(checkout, path)
        there = {by_module[name] for name in imports(path) if name in by_module}
        arrows |= {(here, other) for other in there if other != here and not other.endswith("/__init__")}
    rooms = {room for room in by_module.values() if not room.endswith("/__init__")}
    return rooms, arrows, _upward(rooms, arrows)


def _upward(rooms: set[str], arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Arrows left over when rooms that nothing open is imported by are taken away again and again: circles."""
    left = set(arrows)
    open_rooms = set(rooms)
    while removable := {room for room in open_rooms if not any(a == room for a, _ in left)}:
        open_rooms -= removable
        left = {(a, b) for a, b in left if b not in removable}
    while removable := {room for room in open_rooms if not any(b == room for _, b in left)}:
        open_rooms -= removable
        left = {(a, b) for a, b in left if a not in removable}
    return left


def walks(checkout: Path) -> tuple[list[str], list[str]]:
    """Rooms a document's text enters from `tokenize_partition` on; modules a position enters from `View[...]` on."""
    flat = (checkout / "pretok" / "pretokenize.py").exists()
    script = WALK.format(pretokenize="pretok.pretokenize" if flat else "pretok.kernels.pretokenize")
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(checkout)],
        capture_output=True, text=True, check=False, env=environment, cwd=checkout,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the walk failed:\n{done.stderr}")
    document, position = json.loads(done.stdout.splitlines()[-1])
    rooms = dict.fromkeys(room_of(checkout, Path(name)) for name in document)
    return list(rooms), list(dict.fromkeys(str(Path(name).relative_to(checkout)) for name in position))


def names_used_twice(checkout: Path) -> dict[str, list[str]]:
    """Public classes, functions and types at module level that two modules define; commands share names with jobs."""
    places = defaultdict(list)
    for path in modules(checkout):
        if "commands" in path.parts or path.name == "__main__.py":
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            name = _defined(node)
            if name and not name.startswith("_") and name != "main":
                places[name].append(str(path.relative_to(checkout)))
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def _defined(node: ast.stmt) -> str | None:
    """The class, function or type (`Tokens = NDArray[...]`, in mixed case; no TypeVar) that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        name, made = node.targets[0].id, ast.unparse(node.value)
        if name[0].isupper() and not name.isupper() and not made.startswith("TypeVar"):
            return name
    return None


def annotations(checkout: Path) -> tuple[int, int, int]:
    """(annotation slots, slots that name Any, times `dict[str, Any]` stands), compiled code apart."""
    counts: Counter[str] = Counter()
    for path in modules(checkout):
        text = path.read_text(encoding="utf-8")
        if "njit" in text or any(part in path.parts for part in ARRAY_MODULES):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                arguments += [extra for extra in (node.args.vararg, node.args.kwarg) if extra]
                slots = [a.annotation for a in arguments if a.annotation] + (
                    [node.returns] if node.returns else []
                )
            elif isinstance(node, ast.AnnAssign):
                slots = [node.annotation]
            else:
                continue
            for slot in slots:
                written = ast.unparse(slot)
                counts["slots"] += 1
                # An array of any element type is as exact as a signature can be.
                counts["any"] += "Any" in written.replace("NDArray[Any]", "").replace("dtype[Any]", "")
                counts["dicts"] += written.count("dict[str, Any]")
    return counts["slots"], counts["any"], counts["dicts"]


def comment_density(checkout: Path) -> tuple[int, int]:
    """(comments that say something, lines that are neither empty nor docstring)."""
    comments = lines = 0
    for path in modules(checkout):
        text = path.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments += not token.string.startswith(("# type:", "# noqa", "# fmt:"))
        inside: set[int] = set()
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                inside |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        lines += sum(bool(line.strip()) and n not in inside for n, line in enumerate(text.splitlines(), 1))
    return comments, lines


def longest_modules(checkout: Path) -> list[tuple[int, str]]:
    """The three longest modules in lines."""
    found = [
        (p.read_text(encoding="utf-8").count("\n"), str(p.relative_to(checkout))) for p in modules(checkout)
    ]
    return sorted(found, reverse=True)[:3]


def longest_functions(checkout: Path) -> list[tuple[int, str]]:
    """The three longest functions in lines."""
    found = [
        ((node.end_lineno or 0) - node.lineno + 1, f"{path.relative_to(checkout)}:{node.name}")
        for path in modules(checkout)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return sorted(found, reverse=True)[:3]


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).parent.parent)
