"""mkdocs: pages that lie elsewhere in the repository, and links between files as links between pages.

Input: README.md, slurm/README.md, benchmarks/results.md and docs/*.md, whose links are those of a checkout. Output:
the same texts with links inside the site. A link to a file that is no page is code: the site has no copy of it.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ELSEWHERE = {"README.md": "index.md", "slurm/README.md": "slurm.md", "benchmarks/results.md": "results.md"}
"""File of the checkout -> page."""
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere."""
    for source, page in ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them."""
    source = next((s for s, p in ELSEWHERE.items() if p == page.file.src_uri), f"docs/{page.file.src_uri}")
    folder = PurePosixPath(source).parent

    def as_page(link: re.Match[str]) -> str:
        path = normpath(str(folder / link["target"]))
        target = ELSEWHERE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if target is None:
            if not (ROOT / path).exists():
                raise FileNotFoundError(f"{source}: {path}")
            return f"`{path}`"
        return f"[{link['text']}]({target}{link['anchor'] or ''})"

    return LINK.sub(as_page, markdown)
