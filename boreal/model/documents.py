"""Text to plain mappings, lists and scalars, with two traps of YAML taken away.

A key that is written twice is refused (a loader would let the last one win), and only true and false are booleans
(YAML 1.1 reads `on` and `no` as booleans too, and the key of a join's `on: [origin]` is a word).
"""

from __future__ import annotations

import json
import re

import yaml

from boreal.model.errors import UserError


def parse_document(name: str, text: str) -> object:
    """What YAML or JSON text holds; UserError, with `name` as its field, for what is neither.

    JSON is tried first, since not all JSON is YAML (tabs) and flow YAML looks like JSON.
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
        raise UserError(name, None, problem, "mend the syntax there (indentation, quotes, brackets)") from None
    except (yaml.YAMLError, RecursionError):
        raise UserError(name, None, "is not valid YAML", "write plain YAML or JSON text") from None


class _JsonObject(tuple[tuple[str, object], ...]):
    """A JSON object before its keys are known to be different."""


def _plain(value: object, place: tuple[str, ...]) -> object:
    """The parsed JSON with its objects as mappings; refuses a key that an object has twice."""
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
    """YAML's loader would let the last one win. `visited` holds nodes seen already: an alias is the node itself."""
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
    """Plain YAML in which only true and false are booleans, so that the key in `on: [origin]` is text."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|false", ["t", "f"]),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)
