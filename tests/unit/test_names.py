"""What is public has a name of one meaning, and says what it holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.unit.test_rooms import Module, modules

pytestmark = pytest.mark.xdist_group("code")

SHARED_NAMES = {
    "Boundary": "what the client returns for a BOUNDARY frame",
    "Undo": "what the client returns for an UNDO frame",
    "RecDone": "what the client returns for a REC_DONE frame",
    "Operator": "what users derive their operators from, and what the engine runs: docs/extending.md describes both",
}
"""Public classes that two rooms have on purpose, and why."""


def undocumented_fields(tree: ast.AST) -> Iterator[str]:
    """The public fields of public dataclasses that no docstring follows, each as CLASS.FIELD."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and is_dataclass(node):
            for field, following in zip(node.body, [*node.body[1:], None], strict=True):
                match field:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if not name.startswith("_"):
                        if "ClassVar" not in ast.unparse(kind) and not is_docstring(following):
                            yield f"{node.name}.{name}"


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def is_docstring(node: ast.stmt | None) -> bool:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def rooms_of_classes(found: list[Module]) -> dict[str, set[str]]:
    """The rooms that have a public class of each name at the top of a module."""
    rooms: dict[str, set[str]] = {}
    for module in found:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                rooms.setdefault(node.name, set()).add(module.room)
    return rooms


def test_no_two_rooms_have_a_public_class_of_one_name() -> None:
    rooms = rooms_of_classes(modules())
    assert {name for name, where in rooms.items() if len(where) > 1} == SHARED_NAMES.keys()


def test_the_walk_sees_a_name_that_two_rooms_use() -> None:
    both = [Module("sunion.one", ast.parse("class View: ...")), Module("reconcile.two", ast.parse("class View: ..."))]
    assert rooms_of_classes(both) == {"View": {"sunion", "reconcile"}}


def test_every_field_of_a_public_dataclass_says_what_it_holds() -> None:
    """And its unit, where it has one: that is left to the reader."""
    missing = [f"{module.name}: {field}" for module in modules() for field in undocumented_fields(module.tree)]
    assert not missing


def test_the_walk_sees_a_field_that_says_nothing() -> None:
    source = '@dataclass(frozen=True)\nclass Place:\n    row: int\n    """The row."""\n    column: int\n    _hidden: int = 0\n'
    assert list(undocumented_fields(ast.parse(source))) == ["Place.column"]
