"""Imports point one way, and the pure rooms touch neither clock, nor chance, nor world.

The walk reads the source of every module, so an import inside a function counts as well.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("code")

ROOT = Path(__file__).resolve().parents[2]

ABOVE: dict[str, tuple[str, ...]] = {
    "boreal.model": (),
    "boreal.operators": ("boreal.model",),
    "boreal.query": ("boreal.operators",),
    "boreal.client": ("boreal.model",),
    "boreal.spark": ("boreal.client",),
    "boreal": ("boreal.client",),
    "sunion": ("boreal.query",),
    "operators": ("boreal.query",),
    "boreal_testing": ("operators",),
    "reconcile": ("sunion", "operators"),
    "formats": ("reconcile",),
    "intake": ("formats",),
    "logs": ("intake",),
    "deployment": ("logs",),
    "embedded": ("deployment",),
    "services.kafka": ("deployment", "boreal.client"),
    "services.storage": ("services.kafka",),
    "services.hosting": ("services.storage",),
    "services.source": ("services.hosting", "embedded"),
    "services.node": ("services.hosting",),
    "services.egress": ("services.hosting",),
    "services.monitor": ("services.hosting",),
    "services.worker": ("services.source", "services.node", "services.egress"),
    "services.stack": ("services.worker", "services.monitor", "embedded"),
    "services": (),
    "spark_jobs": ("services.worker",),
    "simulation": ("embedded", "services.egress"),
    "role_simulation": ("services.stack", "simulation"),
    "bench": ("services.stack", "spark_jobs", "simulation", "boreal"),
    "api": ("services.stack",),
    "boreal_cli": ("bench", "api", "boreal"),
}
"""Each room, and those that it stands on. It may import what these may import, and them."""

PURE = (
    "boreal.model", "boreal.operators", "boreal.query", "sunion", "operators", "reconcile", "formats", "intake", "logs",
    "deployment",
)  # fmt: skip

NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

DOOR = "boreal.__main__"
"""`python -m boreal`: the one line of boreal/ that opens the command line."""

LARGEST_SHARE = 0.25

BANNED = {
    "asyncio", "concurrent", "logging", "multiprocessing", "os", "random", "secrets", "select", "selectors", "signal",
    "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
WORLDLY = {("boreal.query.spec", "pathlib"), ("boreal.model.documents", "pathlib")}
"""(module, import) that are allowed all the same: `load_query` reads the query file that it is given the path of."""

WORLDLY_CALLS = {("boreal.query.spec", "read_text")}

READS_THE_WORLD = {
    "getenv", "monotonic", "now", "open()", "perf_counter", "read_bytes", "read_text", "today", "utcnow", "write_text",
}  # fmt: skip
"""Methods and functions that ask the clock or the disk, on whatever object; `open()` is the built-in one."""


def room_of(name: str) -> str | None:
    """The room of a module, or of what is imported from one; None where it is not of this project."""
    parts = name.split(".")
    return next((room for n in (2, 1) if (room := ".".join(parts[:n])) in ABOVE), None)


def below(room: str) -> set[str]:
    """All rooms that a room may import, itself among them."""
    found = {room}
    for each in ABOVE[room]:
        found |= below(each)
    return found


@dataclass(frozen=True)
class Module:
    name: str
    tree: ast.Module
    lines: int = 0

    @property
    def room(self) -> str:
        room = room_of(self.name)
        assert room is not None, f"{self.name} is in no room"
        return room

    def imports(self) -> Iterator[str]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name} imports by a relative path"
                module = node.module or ""
                yield from (f"{module}.{alias.name}" for alias in node.names)

    def called(self) -> Iterator[str]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                match node.func:
                    case ast.Name(id="open"):
                        yield "open()"
                    case ast.Attribute(attr=name) | ast.Name(id=name):
                        yield name

    def loops_over_a_set(self) -> bool:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.For | ast.comprehension):
                match node.iter:
                    case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
                        return True
        return False


def is_for_types_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def modules() -> list[Module]:
    """Read when the first test asks: every process of a run of tests imports this file."""
    found = []
    for folder in sorted({room.partition(".")[0] for room in ABOVE}):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            source = path.read_text(encoding="utf-8")
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, ast.parse(source), source.count("\n")))
    return found


@cache
def pure_modules() -> list[Module]:
    return [module for module in modules() if module.room in PURE]


@pytest.mark.parametrize("room", sorted(ABOVE))
def test_imports_point_down_only(room: str) -> None:
    """No room is above itself, so there is no circle of rooms either."""
    allowed = below(room)
    for module in modules():
        if module.room == room and module.name != DOOR:
            for imported in module.imports():
                target = room_of(imported)
                assert target is None or target in allowed, f"{module.name} imports {imported}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {module.name for module in modules()}

    def module_of(imported: str) -> str:
        while imported and imported not in names:
            imported = imported.rpartition(".")[0]
        return imported

    arrows = {module.name: {module_of(each) for each in module.imports()} - {"", module.name} for module in modules()}
    tuple(TopologicalSorter(arrows).static_order())  # CycleError names the circle


def test_no_room_holds_more_than_a_quarter_of_the_code() -> None:
    lines: dict[str, int] = {}
    for module in modules():
        folder = module.name.partition(".")[0]
        lines[folder] = lines.get(folder, 0) + module.lines
    largest = max(lines, key=lambda folder: lines[folder])
    total = sum(lines.values())
    assert lines[largest] <= LARGEST_SHARE * total, f"{largest} holds {lines[largest]} of {total} lines"


def test_every_folder_says_what_lives_there_and_what_it_may_touch() -> None:
    """In two paragraphs. The second begins with what it touches; in a pure room, with that it touches nothing."""
    folders = {path.parent for room in {room.partition(".")[0] for room in ABOVE} for path in (ROOT / room).rglob("*.py")}
    for folder in sorted(folders):
        name = ".".join(folder.relative_to(ROOT).parts)
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
        paragraphs = said.split("\n\n")
        assert len(paragraphs) == 2, f"{name} says: {said!r}"
        assert paragraphs[1].startswith("Pure" if room_of(name) in PURE else "Touches "), f"{name} says: {said!r}"


def test_the_client_stands_on_the_model_and_a_kafka_client_alone() -> None:
    """An application imports it beside packages that may be called as our other rooms are. Of the others, it
    has what it uses."""
    for module in modules():
        if module.room == "boreal.client":
            body = [node for node in module.tree.body if not isinstance(node, NESTED) and not is_for_types_only(node)]
            at_once = Module(module.name, ast.Module(body, []))
            for imports, allowed in ((at_once, {"kafka"}), (module, {"kafka", "pydantic", "pyarrow", "pandas"})):
                others = {name.partition(".")[0] for name in imports.imports() if room_of(name) is None} - {"__future__"}
                assert others - sys.stdlib_module_names <= allowed, f"{module.name} imports {others}"
            for imported in module.imports():
                assert room_of(imported) in (None, "boreal.client", "boreal.model"), f"{module.name} imports {imported}"


def test_pure_rooms_import_nothing_that_is_not_handed_in() -> None:
    for module in pure_modules():
        for imported in module.imports():
            target = imported.partition(".")[0]
            assert target not in BANNED, f"{module.name} imports {imported}"
            assert target != "pathlib" or (module.name, "pathlib") in WORLDLY, f"{module.name} imports {imported}"


def test_pure_rooms_ask_neither_the_clock_nor_the_disk() -> None:
    for module in pure_modules():
        for name in module.called():
            allowed = (module.name, name) in WORLDLY_CALLS
            assert name not in READS_THE_WORLD or allowed, f"{module.name} calls {name}()"


def test_pure_rooms_have_no_mutable_module_state() -> None:
    """A constant may be a table, but nothing rebinds a global."""
    for module in pure_modules():
        rebound = [node for node in ast.walk(module.tree) if isinstance(node, ast.Global)]
        assert not rebound, f"{module.name} has a global statement"


def test_pure_rooms_never_iterate_a_bare_set() -> None:
    """Order is part of determinism: a set display or set() call is not what a loop goes over."""
    for module in pure_modules():
        assert not module.loops_over_a_set(), f"{module.name} loops over a set"


def test_the_walk_sees_what_it_must_refuse() -> None:
    """The tests above would notice: an import inside a function, a clock behind an alias, and a bare set."""
    source = "def f():\n    from services.storage import kafka_log\n    import time as t\n    return t.monotonic()\n"
    module = Module("sunion.bad", ast.parse(source))
    assert list(module.imports()) == ["services.storage.kafka_log", "time"]
    assert room_of("services.storage.kafka_log") not in below(module.room)
    assert "monotonic" in list(module.called())
    for loop in ("for n in {1, 2}: pass", "[n for n in set(ids)]", "(n for n in {m for m in ids})"):
        assert Module("sunion.bad", ast.parse(loop)).loops_over_a_set()
    assert not Module("sunion.good", ast.parse("for n in sorted({1, 2}): pass")).loops_over_a_set()
    assert {module.room for module in modules()} == set(ABOVE)


def drawn_house() -> str:
    """The rooms in floors, and what each stands on: a room is one floor above the highest of those."""

    def floor(room: str) -> int:
        return max((floor(each) + 1 for each in ABOVE[room]), default=0)

    rooms = sorted((room for room in ABOVE if room != "services"), key=lambda room: (-floor(room), room))
    lines = [f"{floor(room):2}  {room:17} {'──> ' * bool(ABOVE[room])}{', '.join(ABOVE[room])}".rstrip() for room in rooms]
    return "\n".join(["```text", *lines, "```"])


def test_the_page_of_the_architecture_draws_the_house_whose_arrows_all_imports_follow() -> None:
    """`test_imports_point_down_only` holds the imports to these arrows."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert drawn_house() in page, f"paste this drawing into docs/architecture.md:\n{drawn_house()}"


def test_the_page_of_the_architecture_names_every_room_and_only_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## Rooms") : page.index("## The life of a tuple")]
    for room in ABOVE:
        folder = room.replace(".", "/")
        is_named = f"`{folder}" in table or f"`{folder.partition('/')[2]}`" in table
        assert is_named or room in ("boreal", "services"), f"{room} is not in the table of rooms"
    for path in re.findall(r"`([a-z_]+/[\w./]+\.py)`", page):
        assert (ROOT / path).is_file(), f"docs/architecture.md names {path}"
