"""The picture of the report in docs/tutorial.md, by headless chromium: python docs/pictures.py.

Input: the marked commands of docs/tutorial.md. Output: docs/pictures/report-light.png, which keeps the headings of the
page that it shows, so that a test finds a picture of an older page. docs/rooms.py draws the rooms.
"""

from __future__ import annotations

import re
import shlex
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "pictures" / "report-light.png"
PAGE = ROOT / "pretok" / "overview" / "report" / "page.html"
KEY = b"headings\0"


def headings() -> list[str]:
    """Return the headings in the template of the report."""
    return re.findall(r"<h[12][^>]*>([^<]*)", PAGE.read_text(encoding="utf-8"))


def headings_of(picture: bytes) -> list[str]:
    """Return the headings that a picture keeps."""
    at = picture.index(b"tEXt" + KEY)
    size = struct.unpack(">I", picture[at - 4 : at])[0]
    return picture[at + 4 + len(KEY) : at + 4 + size].decode("latin-1").split("\n")


def with_headings(picture: bytes) -> bytes:
    """Return a PNG with the headings as its text, before the chunk that ends it."""
    chunk = b"tEXt" + KEY + "\n".join(headings()).encode("latin-1")
    packed = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return picture[:-12] + packed + picture[-12:]


def main() -> None:
    """Type the tutorial in a new folder, up to its report, and take the picture."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for block in re.findall(r"<!-- run -->\n```sh\n(.*?)```", text, re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                command = [sys.executable, "-m", *shlex.split(line, comments=True)]
                subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1100,900",
        ]
        shot = Path(folder) / "shot.png"
        page = f"file://{folder}/work/report.html"
        subprocess.run(["chromium", *flags, f"--screenshot={shot}", page], check=True, capture_output=True)
        PICTURE.write_bytes(with_headings(shot.read_bytes()))


if __name__ == "__main__":
    main()
