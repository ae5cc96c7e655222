"""The docs as a site, by zensical: python docs/site.py [FOLDER] [--serve].

Input: README.md, slurm/README.md, benchmarks/results.md and docs/*.md, whose links are those of a checkout. Output: the
same texts as pages in FOLDER/site, `build` by default, with links inside the site. A link to a file that is no page is
code: the site has no copy of it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath

ROOT = Path(__file__).parent.parent
ELSEWHERE = {"README.md": "index.md", "slurm/README.md": "slurm.md", "benchmarks/results.md": "results.md"}
"""File of the checkout -> page."""
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")


def page(source: str) -> str:
    """Return the text of a file of the checkout with the links of the site. Raises FileNotFoundError for a dead one."""
    folder = PurePosixPath(source).parent

    def as_page(link: re.Match[str]) -> str:
        path = normpath(str(folder / link["target"]))
        target = ELSEWHERE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if target is None:
            if not (ROOT / path).exists():
                raise FileNotFoundError(f"{source}: {path}")
            return f"`{path}`"
        return f"[{link['text']}]({target}{link['anchor'] or ''})"

    return LINK.sub(as_page, (ROOT / source).read_text(encoding="utf-8"))


def write_pages(out: Path) -> None:
    """Write the pages, what they show, and the settings of the site to `out`."""
    shutil.copytree(
        ROOT / "docs", out / "docs", ignore=shutil.ignore_patterns("*.py", "*.yml", "__pycache__")
    )
    sources = {f"docs/{path.name}": path.name for path in (ROOT / "docs").glob("*.md")} | ELSEWHERE
    for source, name in sources.items():
        (out / "docs" / name).write_text(page(source), encoding="utf-8")
    shutil.copy(ROOT / "docs" / "site.yml", out / "mkdocs.yml")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the docs as a site.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build")
    parser.add_argument("--serve", action="store_true", help="show it at http://localhost:8000")
    options = parser.parse_args()
    shutil.rmtree(options.folder / "docs", ignore_errors=True)
    write_pages(options.folder)
    what = ["serve"] if options.serve else ["build", "--strict"]
    sys.exit(
        subprocess.run([sys.executable, "-m", "zensical", *what], cwd=options.folder, check=False).returncode
    )
