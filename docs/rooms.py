"""A picture of the rooms of pretok, from what their modules import: python docs/rooms.py.

Input: pretok/ and train/. Output: docs/pictures/rooms.svg. A room stands above all that it imports; a line leads down
to each room that it uses and that no other room between them uses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
WIDTH, HEIGHT, GAP, FLOOR = 104, 32, 18, 72
IMPORT = re.compile(r"^ *from (pretok|train)(?:\.(\w+))?[\w.]* import", re.MULTILINE)


def used_by_room() -> dict[str, set[str]]:
    """Return room -> the rooms that it imports."""
    used: dict[str, set[str]] = defaultdict(set)
    for path in sorted(
        [*ROOT.glob("pretok/*/**/*.py"), *ROOT.glob("pretok/*.py"), *ROOT.glob("train/**/*.py")]
    ):
        parts = path.relative_to(ROOT).with_suffix("").parts
        room = "train" if parts[0] == "train" else parts[1]
        if room.startswith("__"):
            continue
        for package, other in IMPORT.findall(path.read_text(encoding="utf-8")):
            name = "train" if package == "train" else other
            if name and name != room:
                used[room].add(name)
    return dict(used)


def picture() -> str:
    """Return the picture as SVG."""
    used = used_by_room()
    rooms = sorted(used.keys() | {name for names in used.values() for name in names})
    floors: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in floors:
            floors[room] = 1 + max(map(floor, used.get(room, ())), default=-1)
        return floors[room]

    def below(room: str) -> set[str]:
        return {room}.union(*map(below, used.get(room, ())))

    rows: dict[int, list[str]] = defaultdict(list)
    for room in rooms:
        rows[floor(room)].append(room)
    across = max(map(len, rows.values())) * (WIDTH + GAP) + GAP
    down = len(rows) * FLOOR + GAP
    places = {
        room: (across / 2 + (at - (len(row) - 1) / 2) * (WIDTH + GAP), down - FLOOR * (number + 0.5))
        for number, row in rows.items()
        for at, room in enumerate(row)
    }
    lines, boxes = [], []
    for room, (x, y) in places.items():
        direct = {
            name for name in used.get(room, ()) if not any(name in below(o) for o in used[room] - {name})
        }
        for other in sorted(direct):
            to_x, to_y = places[other]
            lines.append(f'<path d="M{x:g} {y + HEIGHT / 2:g} L{to_x:g} {to_y - HEIGHT / 2:g}"/>')
        corner = f'x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"'
        boxes.append(f'<rect {corner}/><text x="{x:g}" y="{y + 5:g}">{room}</text>')
    style = (
        "rect{fill:#eef;stroke:#447}path{stroke:#99a}text{font:14px sans-serif;text-anchor:middle;fill:#113}"
    )
    body = "\n".join([*lines, *boxes])
    size = f'viewBox="0 0 {across} {down}" width="{across}" height="{down}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{style}</style>\n{body}\n</svg>\n'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
