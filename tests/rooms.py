"""`python -m tests.rooms [TREE]` prints the rooms of a checkout: modules, lines, imports and import cycles.

It reads the sources and imports none of them, so it also works on an older tree, in which the names of the packages
did not yet begin with `protofleet.`. tests/test_architecture.py applies the rules to this checkout.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "protofleet", "protocol", "runtime", "methods", "edge_client", "coordinator", "federation", "lab", "deploy",
)  # fmt: skip


class Tree:
    """All modules of a checkout, by the name that imports them, such as `protofleet.protocol.wire.codec`."""

    def __init__(self, root: Path) -> None:
        self.root, self.files = root, dict[str, Path]()
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
                self.files[name if package == "protofleet" else f"protofleet.{name}"] = path
        self.rooms = [n for n, path in self.files.items() if path.name == "__init__.py" and n != "protofleet"]

    def room_of(self, name: str) -> str:
        return name if name in self.rooms else name.rpartition(".")[0]

    def modules(self, room: str) -> list[str]:
        return [name for name in self.files if self.room_of(name) == room and name not in self.rooms]

    def imported(self, name: str) -> Iterator[str]:
        """Yield the modules of ours that this file imports on any line, and the packages that contain them."""
        for node in ast.walk(ast.parse(self.files[name].read_text())):
            named: list[str] = []
            if isinstance(node, ast.Import):
                named = [self.known(alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{self.files[name]} imports by dots"
                inner = [self.known(f"{node.module}.{alias.name}") for alias in node.names]
                named = [full if full in self.files else self.known(str(node.module)) for full in inner]
            for full in named:
                while full:
                    if full in self.files and full != name:
                        yield full
                    full = full.rpartition(".")[0]

    def known(self, name: str) -> str:
        """Return today's name of a module: `protocol.link` of an older tree is now `protofleet.protocol.link`."""
        return f"protofleet.{name}" if name.split(".")[0] in PACKAGES[1:] else name

    @cached_property
    def graph(self) -> dict[str, set[str]]:
        return {name: set(self.imported(name)) for name in self.files}

    def arrows(self, room: str) -> set[str]:
        """Return the other rooms from which the modules of this room import."""
        found = {
            self.room_of(o) for name in self.modules(room) for o in self.graph[name] if o not in self.rooms
        }
        return found - {room, "protofleet", ""}

    def circles(self) -> list[list[str]]:
        """Return the sets of files that import each other, also through a package or only for types."""
        reach = {name: self.reached(name) for name in self.files}
        rings = {
            tuple(sorted(o for o in reach[name] if name in reach[o])) for name in reach if name in reach[name]
        }
        return [list(ring) for ring in sorted(rings)]

    def reached(self, name: str) -> set[str]:
        seen, ahead = set[str](), list(self.graph[name])
        while ahead:
            if (one := ahead.pop()) not in seen:
                seen.add(one)
                ahead += self.graph[one]
        return seen

    def lines(self, room: str) -> int:
        return sum(
            len(path.read_text().splitlines()) for n, path in self.files.items() if self.room_of(n) == room
        )


def main(root: Path = ROOT) -> None:
    tree = Tree(root)
    for room in tree.rooms:
        arrows = ", ".join(one.removeprefix("protofleet.") for one in sorted(tree.arrows(room)))
        short, modules = room.removeprefix("protofleet."), len(tree.modules(room))
        print(f"{short:32}{modules:4} modules {tree.lines(room):6} lines -> {arrows or 'nothing'}")
    for ring in tree.circles():
        print("a circle:", ", ".join(ring))
    modules, lines = len(tree.files) - len(tree.rooms), sum(map(tree.lines, tree.rooms))
    arrows = sum(len(tree.arrows(room)) for room in tree.rooms)
    print(
        f"{len(tree.rooms)} rooms, {modules} modules, {lines} lines, {arrows} arrows between rooms,", end=" "
    )
    print(f"at most {max(len(tree.modules(room)) for room in tree.rooms)} modules in a room,", end=" ")
    print(f"{len(tree.circles())} circles")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
