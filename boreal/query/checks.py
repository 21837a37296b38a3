"""What is judged of a query as a whole: names that are unknown or shared, circles, and numbers that do not fit each other.

Each check refuses the first thing that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from boreal.model.durations import format_duration
from boreal.query.fields import Engines
from boreal.query.refusals import did_you_mean, refuse
from boreal.query.running import DEFAULT_FRAGMENT, FragmentSpec, Tuning
from boreal.query.shapes import OperatorSpec, Stream

RESERVED_NAMES = ("egress",)
_REPLICA_NAME = re.compile(r"r[0-9]+", re.ASCII)


Streams = Mapping[str, Stream]
Operators = Mapping[str, OperatorSpec]
Fragments = Mapping[str, FragmentSpec]
"""As a query has them, by their names."""


def check_names(streams: Streams, operators: Operators, fragments: Fragments | None) -> None:
    """Faults, plans and status call streams, operators, fragments and replicas by bare names, so none may be shared."""
    taken: dict[str, str] = {}
    if fragments is None:
        taken[DEFAULT_FRAGMENT] = "the name of the query's one fragment"
    groups: dict[str, Iterable[str]] = {"streams": streams, "operators": operators, "fragments": fragments or {}}
    for group, name in ((group, name) for group, names in groups.items() for name in names):
        if name in RESERVED_NAMES:
            owner = "reserved for the fragment that serves the clients"
        elif _REPLICA_NAME.fullmatch(name):
            owner = "the name of a replica (r0, r1, ...)"
        else:
            owner = taken.get(name, "")
        if owner:
            refuse(
                f"{name} is {owner}",
                f"rename it, for instance to {name}_{group[:-1]}",
                field=f"{group}.{name}",
                value=name,
            )
        taken[name] = f"already the name of {'an' if group == 'operators' else 'a'} {group[:-1]}"


def check_inputs(streams: Streams, operators: Operators) -> None:
    """Operators read streams and operators."""
    for name, spec in operators.items():
        for source in spec.inputs:
            if source not in streams and source not in operators:
                choices = tuple(choice for choice in (*streams, *operators) if choice != name)
                value = list(spec.inputs) if len(spec.inputs) > 1 else source
                refuse(
                    f"reads {source}, which is no stream or operator",
                    did_you_mean(source, choices),
                    field=f"operators.{name}.{spec.kind}",
                    value=value,
                )


def check_acyclic(operators: Operators) -> None:
    """No operator reads what is made of its own results."""
    graph = {name: [i for i in spec.inputs if i in operators] for name, spec in operators.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        name, source = cycle[1], cycle[0]
        refuse(
            f"the operators read each other in a circle: {' -> '.join(cycle)}",
            f"let {name} read something other than {source}",
            field=f"operators.{name}.{operators[name].kind}",
            value=source,
        )


def check_fragments(streams: Streams, operators: Operators, fragments: Fragments, reaching: Iterable[str]) -> None:
    """Fragments list each operator once, and no stream. reaching: the operators whose results reach the output; each of them
    is in one."""
    home: dict[str, str] = {}
    for fragment, part in fragments.items():
        field, value = f"fragments.{fragment}.operators", list(part.operators)
        for name in part.operators:
            if name in streams:
                refuse(
                    f"{name} is a stream", f"remove {name}: fragments list operators only", field=field, value=value
                )
            if name not in operators:
                refuse(
                    f"names {name}, which is no operator", did_you_mean(name, operators), field=field, value=value
                )
            if name in home:
                refuse(
                    f"{name} is already in fragment {home[name]}",
                    f"remove {name} from one of the two",
                    field=field,
                    value=value,
                )
            home[name] = fragment
    for name in reaching:
        if name not in home:
            refuse(
                f"operator {name} is in no fragment",
                f"add {name} to the operators of one of: {', '.join(fragments)}",
                field="fragments",
                value=list(fragments),
            )


def check_engines(fragments: Fragments | None, engine: Engines | None, replicas: int) -> None:
    """A list of engines has one for each replica of what it is given for. engine, replicas: the query's own."""
    for name, part in (fragments or {}).items():
        if part.engine is not None:
            _check_count(f"fragments.{name}.engine", part.engine, part.replicas or replicas, name)
        else:
            _check_count("engine", engine, part.replicas or replicas, name)
    if not fragments:
        _check_count("engine", engine, replicas, "the query")


def _check_count(field: str, engines: Engines | None, replicas: int, owner: str) -> None:
    if not isinstance(engines, tuple) or len(engines) == replicas:
        return
    wanted = [*engines[:replicas], *("native" for _ in range(replicas - len(engines)))]
    refuse(
        f"names {len(engines)} {'engine' if len(engines) == 1 else 'engines'}, and {owner} has "
        f"{replicas} {'replica' if replicas == 1 else 'replicas'}",
        f"name one for each replica, such as [{', '.join(wanted)}]; or one for all of them, without a list",
        field=field,
        value=list(engines),
    )


def check_thresholds(delay_threshold: int, tuning: Tuning) -> None:
    """X, in microseconds, leaves room for buckets, boundaries and heartbeats, and for what is held back of it."""
    intervals, least = tuning.intervals(delay_threshold), tuning.delay_threshold_least
    if delay_threshold < least:
        refuse(
            f"is too short for buckets of {format_duration(intervals.bucket)} and boundaries every "
            f"{format_duration(intervals.boundary_interval)}: it must exceed twice their sum",
            f"write at least {format_duration(least)}, or make tuning.bucket and tuning.boundary_interval smaller",
            field="delay_threshold",
            value=format_duration(delay_threshold),
        )
    if intervals.heartbeat > delay_threshold:
        refuse(
            f"is longer than the delay threshold, {format_duration(delay_threshold)}: a dead replica would be noticed "
            "too late, after three heartbeats",
            f"write at most {format_duration(delay_threshold)}",
            field="tuning.heartbeat",
            value=format_duration(intervals.heartbeat),
        )
    if tuning.checkpoint_interval is not None and tuning.checkpoint_interval < intervals.boundary_interval:
        refuse(
            f"is shorter than boundary_interval, {format_duration(intervals.boundary_interval)}: nothing new comes sooner",
            f"write at least {format_duration(intervals.boundary_interval)}",
            field="tuning.checkpoint_interval",
            value=format_duration(tuning.checkpoint_interval),
        )
    if tuning.alpha_x is not None and tuning.alpha_x >= delay_threshold:
        refuse(
            f"leaves nothing of the delay threshold, {format_duration(delay_threshold)}",
            f"write auto, or less than {format_duration(delay_threshold)}",
            field="tuning.alpha_x",
            value=format_duration(tuning.alpha_x),
        )
