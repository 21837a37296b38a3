"""The operators of installed packages that queries name: found, judged, and made for an input; or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from boreal.model.durations import parse_duration
from boreal.model.errors import UserError
from boreal.model.schema import RESERVED, Schema, Type
from boreal.operators import Keyed, KeyedOperator, Operator, RowOperator, WindowOperator
from boreal.operators.installed import GROUP, InstalledOperator, NotInstalled, Unusable, find_installed, installed_names
from boreal.query.refusals import did_you_mean

_KINDS = (RowOperator, KeyedOperator, WindowOperator)


@dataclass(frozen=True)
class OwnOperator:
    """An operator of an installed package, made for an input."""

    operator: Operator
    """The object, bound to its input."""
    installed: InstalledOperator
    """Where its class comes from."""
    schema: Schema
    """The columns of its output."""
    keyed: Keyed | None
    """Its declared state; None for one without."""
    window_us: int | None
    """The length of the windows of its state; None without windows."""
    unchanged: tuple[str, ...]
    """The columns that come out as they came in."""

    @property
    def group(self) -> tuple[str, ...] | None:
        """The columns whose equal values must meet; None for an operator that looks at each row alone."""
        return None if self.keyed is None else tuple(self.keyed.by)


def own_operator(name: str, given_with: Mapping[str, Any], version: str | None, given: Schema, field: str) -> OwnOperator:
    """The operator that a query names. given_with: its parameters. version: the one that its package must have, or None. given:
    the columns of its input. UserError, by the fields below `field`, for what is not installed or does not fit."""
    installed, made = _made(name, given_with, version, field)
    schema = _output_schema(made, given, name, field)
    keyed = _declared_state(made, given, name, field)
    made.bind(given, schema)
    unchanged = tuple(made.unchanged())
    for column in unchanged:
        if given.types.get(column) is not schema.types.get(column) or column not in schema.types:
            raise _broken(name, field, f"says that {column} is unchanged, which is not a column of its input and its output")
    return OwnOperator(made, installed, schema, keyed, _window_us(keyed, field), unchanged)


def own_memory_us(name: str, given_with: Mapping[str, Any]) -> int | None:
    """How long a row can matter to later results, in microseconds; None if for ever. 0 also for an operator that is not to be
    had here, which the planner refuses."""
    try:
        _, made = _made(name, given_with, None, "")
        if not isinstance(made, KeyedOperator | WindowOperator):
            return 0
        return _window_us(made.state(), "")
    except UserError:
        return 0


def _made(name: str, given_with: Mapping[str, Any], version: str | None, field: str) -> tuple[InstalledOperator, Operator]:
    try:
        installed = find_installed(name)
    except NotInstalled:
        fix = (
            f"{did_you_mean(name, installed_names())}; or install the package that registers it, here and wherever else the "
            "query runs, and apply the query then, or restart it if it is there already (POST /queries/NAME/restart)"
        )
        raise UserError(f"{field}.operator", name, "is not installed here", fix) from None
    except Unusable as error:
        raise UserError(f"{field}.operator", name, str(error), "correct or remove the package") from None
    _check_class(installed, field)
    if version is not None and installed.version != version:
        problem = f"{installed.package} has version {installed.version} here"
        fix = f"install {installed.package}=={version} here, or name {installed.version}"
        raise UserError(f"{field}.version", version, problem, fix)
    kind: Any = installed.made_by
    return installed, kind(_parameters(kind.Parameters, given_with, name, field))


def _check_class(installed: InstalledOperator, field: str) -> None:
    kind = installed.made_by
    where = f"{field}.operator"
    if not (isinstance(kind, type) and issubclass(kind, _KINDS)):
        shown = kind.__qualname__ if isinstance(kind, type) else repr(kind)
        fix = f"derive it from {', '.join(base.__name__ for base in _KINDS)} of {GROUP}"
        raise UserError(where, installed.name, f"is {shown} of {installed.package}, which is no operator", fix)
    if kind.deterministic is not True:
        said = "does not say" if kind.deterministic is None else "denies"
        problem = f"{said} that it is deterministic: replicas could answer differently, and corrections undo what was right"
        fix = "make it a function of rows, parameters and state, and write deterministic = True once check_operator passes"
        raise UserError(where, installed.name, problem, fix)


def _parameters(kind: Any, given: Mapping[str, Any], name: str, field: str) -> Any:
    known = _names_of(kind, name, field)
    for parameter in given:
        if parameter not in known:
            problem = f"{name} has no parameter {parameter}"
            raise UserError(f"{field}.with.{parameter}", given[parameter], problem, did_you_mean(parameter, known))
    try:
        return TypeAdapter(kind).validate_python(dict(given))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in ("with", *found["loc"]))
        problem = found["msg"][:1].lower() + found["msg"][1:]
        value = None if found["type"] in ("missing", "missing_argument") else found["input"]
        fix = f"the parameters of {name} are: {', '.join(known) or 'none'}"
        raise UserError(f"{field}.{place}", value, problem, fix) from None


def _names_of(kind: Any, name: str, field: str) -> tuple[str, ...]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return tuple(info.alias or parameter for parameter, info in kind.model_fields.items())
    if is_dataclass(kind):
        return tuple(entry.name for entry in fields(kind) if entry.init)
    raise _broken(name, field, f"has Parameters that are {kind!r}, neither a pydantic model nor a dataclass")


def _output_schema(made: Operator, given: Schema, name: str, field: str) -> Schema:
    try:
        columns = dict(made.output_schema(given))
    except ValueError as error:
        fix = "give it the columns that it needs, by a map before it"
        raise UserError(f"{field}.python", list(given.names), f"{name} cannot take these columns: {error}", fix) from None
    if not columns:
        raise _broken(name, field, "has an output_schema without columns")
    kinds: list[tuple[str, Type]] = []
    for column, kind in columns.items():
        if not isinstance(column, str) or not column or column in RESERVED:
            raise _broken(name, field, f"has an output_schema with a column {column!r}, which is no name or reserved")
        try:
            kinds.append((column, Type(kind)))
        except (ValueError, TypeError):
            raise _broken(name, field, f"has an output_schema in which {column} is {kind!r}, which is no type") from None
    return Schema(tuple(kinds), windowed=True if isinstance(made, WindowOperator) else given.windowed)


def _declared_state(made: Operator, given: Schema, name: str, field: str) -> Keyed | None:
    if not isinstance(made, KeyedOperator | WindowOperator):
        return None
    keyed = made.state()
    if not isinstance(keyed, Keyed):
        raise _broken(name, field, f"has a state that is {keyed!r}, not Keyed")
    for column in keyed.by:
        if column not in given.types:
            fix = f"give it that column, by a map before it; {did_you_mean(column, given.names)}"
            problem = f"{name} keeps state by {column}, which is no column here"
            raise UserError(f"{field}.python", list(given.names), problem, fix)
    if not keyed.columns:
        raise _broken(name, field, "declares state without columns")
    for column, value in keyed.columns.items():
        if type(value) not in (int, float, bool, str, bytes):
            problem = f"declares state in which {column} begins as {value!r}: give an int, float, bool, str or bytes"
            raise _broken(name, field, problem)
    if isinstance(made, WindowOperator) and keyed.window is None:
        raise _broken(name, field, "gives results of windows, and declares no window")
    return keyed


def _window_us(keyed: Keyed | None, field: str) -> int | None:
    return None if keyed is None or keyed.window is None else parse_duration(keyed.window, f"{field}.operator")


def _broken(name: str, field: str, problem: str) -> UserError:
    return UserError(f"{field}.operator", name, problem, "correct the class; boreal_testing.check_operator shows what is wrong")
