"""Fragments in the making: the weakly connected parts of each that the query names (R30), each after those that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from boreal.model.errors import UserError
from boreal.query.fields import Engine
from boreal.query.query import Query
from boreal.query.running import DEFAULT_FRAGMENT, FragmentSpec


@dataclass(frozen=True)
class FragmentPart:
    """A fragment in the making."""

    name: str
    """The name of the part: that of the fragment, with a number if it fell into several."""
    family: str
    """The fragment, as the query names it."""
    operators: tuple[str, ...]
    """The names of its operators, each after all that it reads."""
    reads: tuple[str, ...]
    """The logged streams that it reads, each once, in order."""
    replicas: int
    """The number of replicas."""
    shards: int
    """The number of shards."""
    shards_own: bool
    """Whether `shards` is given by the fragment, and not by the query."""
    engines: tuple[str, ...]
    """The engine of each replica."""
    keys: Mapping[str, tuple[str, ...]]
    """The columns by which each logged stream that it reads is partitioned, once it is known to be sharded."""


def parts_of(query: Query, default_engine: Engine) -> list[FragmentPart]:
    """The fragments' weakly connected parts, each after those that it reads from."""
    fragments = _fragment_specs(query)
    _refuse_circular(query, fragments)
    parts = []
    for family, spec in fragments.items():
        own = tuple(name for name in query.reaching if name in spec.operators)
        replicas = spec.replicas or query.replicas
        engine = spec.engine or query.engine or default_engine
        pieces = _connected(query, own)
        for number, operators in enumerate(pieces, start=1):
            parts.append(
                FragmentPart(
                    name=family if len(pieces) == 1 else _part_name(query, family, number),
                    family=family,
                    operators=operators,
                    reads=_reads(query, operators),
                    replicas=replicas,
                    shards=spec.shards or query.shards,
                    shards_own=spec.shards is not None,
                    engines=engine if isinstance(engine, tuple) else (engine,) * replicas,
                    keys={},
                )
            )
    home = {name: part.name for part in parts for name in part.operators}
    by_name = {part.name: part for part in parts}
    order = {part.name: [home[name] for name in part.reads if name in home] for part in parts}
    return [by_name[name] for name in TopologicalSorter(order).static_order()]


def _fragment_specs(query: Query) -> dict[str, FragmentSpec]:
    if query.fragments is not None:
        return query.fragments
    return {DEFAULT_FRAGMENT: FragmentSpec(operators=query.reaching)} if query.reaching else {}


def _refuse_circular(query: Query, fragments: Mapping[str, FragmentSpec]) -> None:
    home = {name: fragment for fragment, spec in fragments.items() for name in spec.operators}
    order: dict[str, list[str]] = {fragment: [] for fragment in fragments}
    for name in query.reaching:
        sources = [home[source] for source in query.operators[name].inputs if source in home]
        order[home[name]].extend(source for source in sources if source != home[name])
    try:
        TopologicalSorter(order).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        problem = f"the fragments read each other in a circle: {' -> '.join(circle)}"
        fix = f"put the operators of {circle[0]} and {circle[1]} into one fragment, or split one where results come back"
        raise UserError("fragments", list(fragments), problem, fix) from None


def _reads(query: Query, operators: tuple[str, ...]) -> tuple[str, ...]:
    """What the operators read from outside: source streams, and operators of other fragments."""
    sources = (source for name in operators for source in query.operators[name].inputs)
    return tuple(dict.fromkeys(source for source in sources if source not in operators))


def _connected(query: Query, operators: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The weakly connected parts (R30): operators that share a stream, or what is made of it, stay together."""
    group: dict[str, str] = {}
    for name in operators:
        members = (name, *query.operators[name].inputs)
        merged = {group[member] for member in members if member in group}
        group = {member: name if leader in merged else leader for member, leader in group.items()}
        group.update(dict.fromkeys(members, name))
    leaders = dict.fromkeys(group[name] for name in operators)
    return [tuple(name for name in operators if group[name] == leader) for leader in leaders]


def _part_name(query: Query, family: str, number: int) -> str:
    name = f"{family}_{number}"
    if name in {**query.streams, **query.operators, **(query.fragments or {})}:
        problem = f"falls into unconnected parts, one of which would be called {name}, as something else is"
        raise UserError(f"fragments.{family}", name, problem, f"rename {name}, or make a fragment of each part")
    return name
