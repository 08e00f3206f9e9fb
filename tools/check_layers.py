#!/usr/bin/env python3
"""Compares every #include of the rooms with the table in docs/layers.md.

Checked: rooms include only rooms that their row names; rows go strictly down; rooms without torch
reach no torch header by any chain of includes; USES and TORCH of each fullshard_room() agree with the
table; every folder under src/ and include/fullshard/ is a room of the table.

usage: tools/check_layers.py [--root FOLDER] [--list-plain]
  --list-plain  only print the .cpp files of rooms without torch, one a line
Exit code: 0 clean, 1 violations (one a line on standard output), 2 the table cannot be read.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
TORCH_HEADER = re.compile(r"^(torch|ATen|c10|caffe2)/")
ROOM_CALL = re.compile(r"fullshard_room\(\s*(\w+)([^)]*)\)")
SOURCE_SUFFIXES = {".h", ".cpp"}
UMBRELLA = "include/fullshard/fullshard.h"


class TableError(Exception):
    pass


@dataclass(frozen=True)
class Room:
    row: int
    name: str
    may_use: frozenset
    torch: bool


def parse_may_use(text, row, rows_of):
    """Rooms named by one cell: names, and "rows A-B", separated by commas."""
    names = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        span = re.fullmatch(r"rows (\d+)-(\d+)", part)
        if span:
            low, high = int(span[1]), int(span[2])
            names.update(name for name, at in rows_of.items() if low <= at <= high)
        elif part in rows_of:
            names.add(part)
        else:
            raise TableError(f'docs/layers.md: row {row} may use "{part}", which is no room')
    return frozenset(names)


def read_table(path):
    cells = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in path.read_text().splitlines()
        if re.match(r"^\|\s*\d+\s*\|", line)
    ]
    if not cells or any(len(row) != 5 for row in cells):
        raise TableError(f"{path}: no table of rooms with 5 columns found")
    rows_of = {name: int(row) for row, name, *_ in cells}
    return {
        name: Room(int(row), name, parse_may_use(may_use, row, rows_of), torch == "yes")
        for row, name, _, may_use, torch in cells
    }


class Tree:
    """The sources under include/ and src/ with their includes resolved to paths or outside names."""

    def __init__(self, root, rooms):
        self.root = root
        self.rooms = rooms
        self.includes = {}  # path relative to root -> [(inside path or None, name as written)]
        for top in ("include/fullshard", "src"):
            for path in sorted((root / top).rglob("*")):
                if path.suffix in SOURCE_SUFFIXES:
                    relative = path.relative_to(root).as_posix()
                    self.includes[relative] = self._read(path)

    def _read(self, path):
        found = []
        for quoted, angled in INCLUDE.findall(path.read_text()):
            name = quoted or angled
            found.append((self._resolve(path, name, bool(quoted)), name))
        return found

    def _resolve(self, path, name, quoted):
        places = [self.root / "src", self.root / "include"]
        if quoted:
            places.insert(0, path.parent)
        for place in places:
            candidate = (place / name).resolve()
            if candidate.is_file():
                return candidate.relative_to(self.root).as_posix()
        return None

    def room_of(self, relative):
        """The room whose folder holds a file; the longest name wins, None when there is none."""
        if relative == UMBRELLA:
            return self.rooms.get("engine")
        inner = re.sub(r"^(src|include/fullshard)/", "", relative)
        fitting = [
            name for name in self.rooms if inner.startswith(name + "/") or inner == name + ".h"
        ]
        return self.rooms[max(fitting, key=len)] if fitting else None

    def chain_to_torch(self, relative, seen=None):
        """The chain of includes from a file to a torch header, or None."""
        seen = set() if seen is None else seen
        seen.add(relative)
        for inside, name in self.includes.get(relative, []):
            if inside is None:
                if TORCH_HEADER.match(name):
                    return [relative, f"<{name}>"]
            elif inside not in seen:
                rest = self.chain_to_torch(inside, seen)
                if rest:
                    return [relative, *rest]
        return None


def plain_sources(tree):
    for relative in tree.includes:
        room = tree.room_of(relative)
        if relative.endswith(".cpp") and room and not room.torch:
            yield relative


def check_rows(rooms):
    for room in rooms.values():
        for used in sorted(room.may_use):
            if rooms[used].row >= room.row:
                yield (
                    f"docs/layers.md: {room.name} (row {room.row}) may use {used} "
                    f"(row {rooms[used].row}); rows must go down"
                )


def check_includes(tree):
    for relative, includes in tree.includes.items():
        room = tree.room_of(relative)
        if room is None:
            yield f"{relative}: belongs to no room of docs/layers.md"
            continue
        for inside, name in includes:
            if inside is None and name.startswith("fullshard/"):
                yield f'{relative}: includes "{name}", which does not exist'
            used = tree.room_of(inside) if inside else None
            if used and used != room and used.name not in room.may_use:
                allowed = ", ".join(sorted(room.may_use)) or "no other room"
                yield (
                    f'{relative}: includes "{name}" of room {used.name}; '
                    f"{room.name} may use {allowed}"
                )


def check_torch(tree):
    for relative in tree.includes:
        room = tree.room_of(relative)
        if room and not room.torch:
            chain = tree.chain_to_torch(relative)
            if chain:
                yield f"{relative}: {room.name} is free of torch, but reaches " + " -> ".join(chain)


def keyword_values(arguments, keyword):
    """The words after a CMake keyword, up to the next keyword."""
    match = re.search(rf"\b{keyword}\b((?:\s+(?!(?:SOURCES|USES|LINKS)\b)\S+)*)", arguments)
    return match[1].split() if match else []


def check_cmake(root, rooms):
    for path in sorted((root / "src").rglob("CMakeLists.txt")):
        where = path.relative_to(root).as_posix()
        text = re.sub(r"#.*", "", path.read_text())
        for target, arguments in ROOM_CALL.findall(text):
            name = {room.replace("/", "_"): room for room in rooms}.get(target)
            if name is None:
                yield f"{where}: target {target} is no room of docs/layers.md"
                continue
            may_use = {used.replace("/", "_") for used in rooms[name].may_use}
            for used in keyword_values(arguments, "USES"):
                if used not in may_use:
                    yield f"{where}: {target} USES {used}, which docs/layers.md does not allow"
            if bool(re.search(r"\bTORCH\b", arguments)) != rooms[name].torch:
                yield f"{where}: TORCH of {target} differs from the torch column of docs/layers.md"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--list-plain", action="store_true")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    root = arguments.root.resolve()
    try:
        rooms = read_table(root / "docs" / "layers.md")
    except TableError as error:
        print(error, file=sys.stderr)
        return 2
    tree = Tree(root, rooms)
    if arguments.list_plain:
        print("\n".join(plain_sources(tree)))
        return 0
    violations = [
        *check_rows(rooms),
        *check_includes(tree),
        *check_torch(tree),
        *check_cmake(root, rooms),
    ]
    for violation in violations:
        print(violation)
    if not violations:
        edges = sum(len(includes) for includes in tree.includes.values())
        print(f"layers: {len(tree.includes)} files, {edges} includes, {len(rooms)} rooms: clean")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
