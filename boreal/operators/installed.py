"""Which operators are installed: the entry points of the group `boreal.operators` of all installed packages.

A query names an operator by the name under which its package registers it. What is not installed and registered so cannot be
named, so that no query, wherever it comes from, brings code or chooses a module:

    [project.entry-points."boreal.operators"]
    tagger = "mypackage.operators:Tagger"
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

GROUP = "boreal.operators"


class NotInstalled(LookupError):
    """No installed package registers an operator of this name."""


class Unusable(Exception):
    """What is registered under this name cannot be had: the text says why, as the predicate of a sentence."""


@dataclass(frozen=True)
class InstalledOperator:
    """A registered class."""

    name: str
    """The name in queries."""
    made_by: object
    """What the entry point names."""
    package: str
    """The package that registers it."""
    version: str
    """The version of the package in this process."""


_loaded: dict[str, InstalledOperator] = {}
"""What was loaded once stays: a process runs one version of a package."""


def installed_names() -> tuple[str, ...]:
    """The names of all operators that are installed here."""
    return tuple(sorted({*_loaded, *(point.name for point in entry_points(group=GROUP))}))


def find_installed(name: str) -> InstalledOperator:
    """The operator of this name; its package is imported. NotInstalled; Unusable if two packages register the name, or the
    import fails."""
    if name not in _loaded:
        _loaded[name] = _load(name)
    return _loaded[name]


def provide(name: str, operator: type) -> None:
    """Let queries in this process, and no other, name a class as if it were installed: for tests and the simulator."""
    _loaded[name] = InstalledOperator(name, operator, operator.__module__.partition(".")[0], "")


def _load(name: str) -> InstalledOperator:
    importlib.invalidate_caches()  # A package may have been installed since this process began.
    found = {(_package_of(point), point.value): point for point in entry_points(group=GROUP, name=name)}
    if not found:
        raise NotInstalled(name)
    if len(found) > 1:
        raise Unusable(f"is registered by several packages: {', '.join(sorted(package for package, _ in found))}")
    [point] = found.values()
    try:
        made_by = point.load()
    except Exception as error:
        raise Unusable(f"of {_package_of(point)} cannot be imported: {type(error).__name__}: {error}") from None
    return InstalledOperator(name, made_by, _package_of(point), point.dist.version if point.dist is not None else "")


def _package_of(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module
