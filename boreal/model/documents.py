"""YAML and JSON text as plain mappings, lists and scalars.

Two rules differ from a usual YAML loader. A repeated key is refused; a loader would keep the last value. Only true and
false are booleans; YAML 1.1 also reads `on` and `no` as booleans, but `on: [origin]` of a join has a key that is text.
"""

from __future__ import annotations

import json
import re

import yaml

from boreal.model.errors import UserError


def parse_document(name: str, text: str) -> object:
    """The value of YAML or JSON text. UserError, with `name` as its field, if the text is neither.

    JSON is tried first: some JSON is not YAML (tabs), and YAML in flow style looks like JSON.
    """
    try:
        if text.lstrip().startswith("{"):
            try:
                return _plain(json.loads(text, object_pairs_hook=_JsonObject), ())
            except json.JSONDecodeError:
                pass
        _refuse_repeated_keys(yaml.compose(text, Loader=_Loader), (), set())
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = f"is not valid YAML: {place}{error.problem}"
        raise UserError(name, None, problem, "correct the syntax there (indentation, quotes, brackets)") from None
    except (yaml.YAMLError, RecursionError):
        raise UserError(name, None, "is not valid YAML", "write plain YAML or JSON text") from None


class _JsonObject(tuple[tuple[str, object], ...]):
    """A JSON object as pairs, before repeated keys are refused."""


def _plain(value: object, place: tuple[str, ...]) -> object:
    """The parsed JSON with its objects as mappings. UserError for a repeated key."""
    if isinstance(value, list):
        return [_plain(entry, (*place, str(index))) for index, entry in enumerate(value)]
    if not isinstance(value, _JsonObject):
        return value
    result: dict[str, object] = {}
    for key, entry in value:
        if key in result:
            raise _repeated((*place, key), "")
        result[key] = _plain(entry, (*place, key))
    return result


def _refuse_repeated_keys(node: yaml.Node | None, place: tuple[str, ...], visited: set[int]) -> None:
    """UserError for a key that a mapping has twice. visited: ids of nodes checked before, since an alias is the same node."""
    if node is None or id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            _refuse_repeated_keys(entry, (*place, str(index)), visited)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, entry in node.value:
            text = str(key.value)
            if text in seen:
                raise _repeated((*place, text), f" (again in line {key.start_mark.line + 1})")
            seen.add(text)
            _refuse_repeated_keys(entry, (*place, text), visited)


def _repeated(place: tuple[str, ...], where: str) -> UserError:
    return UserError(".".join(place), place[-1], f"is written twice{where}", "keep one of the two, or rename one")


class _Loader(yaml.SafeLoader):
    """Plain YAML in which only true and false are booleans."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|false", ["t", "f"]),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)
