"""Imports point one way, and the pure rooms touch neither clock, nor chance, nor world.

The walk reads the source of every module, so an import inside a function counts as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MODEL = "boreal"
CORE = {"sunion", "operators", "reconcile"}
SHELLS = {"services", "spark_jobs", "simulation"}

MAY_IMPORT: dict[str, set[str]] = {
    MODEL: {MODEL},
    "sunion": {MODEL, "sunion"},
    "operators": {MODEL, "operators"},
    "reconcile": {MODEL, "sunion", "operators", "reconcile"},
    "services": {MODEL, *CORE, "services"},
    "spark_jobs": {MODEL, *CORE, "services", "spark_jobs"},
    "simulation": {MODEL, *CORE, "services", "simulation"},
    "api": {MODEL, *CORE, *SHELLS, "api"},
}
"""Which of our rooms a room may know. boreal's shells, below, may know all: they are what a user runs."""

BOREAL_SHELLS = ("boreal.__main__", "boreal.cli", "boreal.client")
"""Parts of boreal that are not model. Nothing but themselves, the API and the tests may import them."""

BANNED = {
    "asyncio", "concurrent", "logging", "multiprocessing", "os", "random", "secrets", "select", "selectors", "signal",
    "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
PURE = {MODEL, *CORE}

WORLDLY = {("boreal.spec", "pathlib"), ("boreal.documents", "pathlib")}
"""(module, import) that are allowed all the same: `load_query` reads the query file that it is given the path of."""

WORLDLY_CALLS = {("boreal.spec", "read_text")}

READS_THE_WORLD = {
    "getenv", "monotonic", "now", "open()", "perf_counter", "read_bytes", "read_text", "today", "utcnow", "write_text",
}  # fmt: skip
"""Methods and functions that ask the clock or the disk, on whatever object; `open()` is the built-in one."""


@dataclass(frozen=True)
class Module:
    name: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_shell(self) -> bool:
        return self.name.startswith(BOREAL_SHELLS)

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


def modules(room: str) -> list[Module]:
    found = []
    for path in sorted((ROOT / room).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, ast.parse(path.read_text(encoding="utf-8"))))
    return found


ROOMS = sorted(MAY_IMPORT)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_inward_only(room: str) -> None:
    for module in modules(room):
        if module.is_shell:
            continue
        for imported in module.imports():
            target = imported.partition(".")[0]
            if target in MAY_IMPORT:
                assert target in MAY_IMPORT[room], f"{module.name} imports {imported}"


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "api"])
def test_nothing_inside_knows_the_command_line_or_the_client(room: str) -> None:
    for module in modules(room):
        if module.is_shell:
            continue
        for imported in module.imports():
            assert not imported.startswith(BOREAL_SHELLS), f"{module.name} imports {imported}"


@pytest.mark.parametrize("room", sorted(PURE))
def test_pure_rooms_import_nothing_that_is_not_handed_in(room: str) -> None:
    for module in modules(room):
        if module.is_shell:
            continue
        for imported in module.imports():
            target = imported.partition(".")[0]
            assert target not in BANNED, f"{module.name} imports {imported}"
            assert target != "pathlib" or (module.name, "pathlib") in WORLDLY, f"{module.name} imports {imported}"


@pytest.mark.parametrize("room", sorted(PURE))
def test_pure_rooms_ask_neither_the_clock_nor_the_disk(room: str) -> None:
    for module in modules(room):
        if module.is_shell:
            continue
        for name in module.called():
            allowed = (module.name, name) in WORLDLY_CALLS
            assert name not in READS_THE_WORLD or allowed, f"{module.name} calls {name}()"


@pytest.mark.parametrize("room", sorted(PURE))
def test_pure_rooms_have_no_mutable_module_state(room: str) -> None:
    """A constant may be a table, but nothing rebinds a global."""
    for module in modules(room):
        if module.is_shell:
            continue
        rebound = [node for node in ast.walk(module.tree) if isinstance(node, ast.Global)]
        assert not rebound, f"{module.name} has a global statement"


@pytest.mark.parametrize("room", sorted(PURE))
def test_pure_rooms_never_iterate_a_bare_set(room: str) -> None:
    """Order is part of determinism: a set display or set() call is not what a loop goes over."""
    for module in modules(room):
        if module.is_shell:
            continue
        assert not module.loops_over_a_set(), f"{module.name} loops over a set"


def test_the_walk_sees_what_it_must_refuse() -> None:
    """The tests above would notice: an import inside a function, a clock behind an alias, and a bare set."""
    source = "def f():\n    from services.log import memory\n    import time as t\n    return t.monotonic()\n"
    module = Module("sunion.bad", ast.parse(source))
    assert list(module.imports()) == ["services.log.memory", "time"]
    assert "monotonic" in list(module.called())
    for loop in ("for n in {1, 2}: pass", "[n for n in set(ids)]", "(n for n in {m for m in ids})"):
        assert Module("sunion.bad", ast.parse(loop)).loops_over_a_set()
    assert not Module("sunion.good", ast.parse("for n in sorted({1, 2}): pass")).loops_over_a_set()
    assert all((ROOT / room).is_dir() for room in ("boreal", "sunion", "operators", "reconcile", "services"))
