"""What is public has a name of one meaning, and says what it holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.unit.test_rooms import modules


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


def test_every_field_of_a_public_dataclass_says_what_it_holds() -> None:
    """And its unit, where it has one: that is left to the reader."""
    missing = [f"{module.name}: {field}" for module in modules() for field in undocumented_fields(module.tree)]
    assert not missing


def test_the_walk_sees_a_field_that_says_nothing() -> None:
    source = '@dataclass(frozen=True)\nclass Place:\n    row: int\n    """The row."""\n    column: int\n    _hidden: int = 0\n'
    assert list(undocumented_fields(ast.parse(source))) == ["Place.column"]
