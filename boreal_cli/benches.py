"""The benchmarks of `boreal bench`: the modules of `bench` that have a function `main`."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from boreal.model.errors import UserError
from boreal.query.spec import did_you_mean

Measure = Callable[[], dict[str, Any]]


def find(name: str) -> Measure:
    """The benchmark with this name. UserError, with the choices, if there is none."""
    if name.isidentifier() and find_spec(f"bench.{name}") is not None:
        measure = getattr(import_module(f"bench.{name}"), "main", None)
        if measure is not None:
            return cast(Measure, measure)
    raise UserError("NAME", name, "is not the name of a benchmark", did_you_mean(name, _names()))


def _names() -> list[str]:
    """The names of all benchmarks. Imports all of them, so it is only used for an error."""
    import bench

    modules = sorted(module.name for module in pkgutil.iter_modules(bench.__path__))
    return [name for name in modules if hasattr(import_module(f"bench.{name}"), "main")]
