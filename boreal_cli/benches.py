"""The benchmarks of `boreal bench`: the modules of `bench` that have a function `main`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from inspect import signature
from typing import Any, cast

from boreal.model.errors import UserError
from boreal.query.spec import did_you_mean

Measure = Callable[..., dict[str, Any]]


def find(name: str) -> Measure:
    """The benchmark with this name. UserError, with the choices, if there is none."""
    if name.isidentifier() and find_spec(f"bench.{name}") is not None:
        measure = getattr(import_module(f"bench.{name}"), "main", None)
        if measure is not None:
            return cast(Measure, measure)
    raise UserError("NAME", name, "is not the name of a benchmark", did_you_mean(name, _names()))


def arguments_of(measure: Measure, given: Sequence[str]) -> dict[str, int]:
    """The arguments of a benchmark, written KEY=VALUE: all are whole numbers. UserError."""
    known = tuple(signature(measure).parameters)
    found = {}
    for text in given:
        key, _, value = text.partition("=")
        if key not in known:
            fix = did_you_mean(key, known) if known else "leave it out"
            raise UserError("KEY=VALUE", text, "is not an argument of this benchmark", fix)
        if not value.isascii() or not value.isdecimal() or int(value) == 0:
            raise UserError("KEY=VALUE", text, "has no whole number above 0", f"write {key}=N")
        found[key] = int(value)
    return found


def _names() -> list[str]:
    """The names of all benchmarks. Imports none of them, since some need packages that others do not."""
    return sorted(file.name.removesuffix(".py") for file in files("bench").iterdir() if _is_benchmark(file))


def _is_benchmark(file: Traversable) -> bool:
    return file.name.endswith(".py") and "\ndef main(" in file.read_text(encoding="utf-8")
