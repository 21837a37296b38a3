"""How many shards a part can have, and the key of each stream that it reads (R1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from boreal.model.errors import UserError
from boreal.query.parts import FragmentPart
from boreal.query.schemas import RANK, QueryGraph
from boreal.query.shapes import Aggregate, Deduplicate, Distinct, Filter, Join, Lookup, Map, Python, Top, Union

Component = dict[str, str]
"""One column of a partition key, as each logged stream calls it: logged stream -> column."""


def sharded(graph: QueryGraph, part: FragmentPart, notes: list[str]) -> FragmentPart:
    """The part with the shards that it can have, and the key of each stream that it reads.

    All rows of a group must meet in one shard, so a key is made of columns by which every stateful operator groups,
    followed back to the streams. Where there is none, one shard it is; refused if the file asked for more right there.
    """
    if part.shards == 1:
        return part
    stateful = [name for name in part.operators if _group(graph, name) is not None]
    if not stateful:
        keys = {name: natural_key(graph, name) for name in part.reads}
        if all(keys.values()):
            return replace(part, keys=keys)
        bare = next(name for name in part.reads if not keys[name])
        notes.append(f"{part.name} runs as one shard: {bare} has no key")
        return replace(part, shards=1)
    components, obstacle = _common_components(graph, part, stateful)
    if components:
        return replace(part, keys=_keys(graph, part, stateful, components))
    if part.shards_own:
        problem = f"{part.name} cannot be sharded: {obstacle}"
        fix = "set its shards to 1, or move the operator to a fragment of its own with one shard"
        raise UserError(f"fragments.{part.family}.shards", part.shards, problem, fix)
    notes.append(f"{part.name} runs as one shard: {obstacle}")
    return replace(part, shards=1)


def _group(graph: QueryGraph, name: str) -> tuple[str, ...] | None:
    """The columns whose equal values must meet; None for an operator that looks at each row alone."""
    match graph.spec(name):
        case Aggregate() | Top() as spec:
            return spec.by
        case Join() | Lookup() | Distinct() | Deduplicate() as spec:
            return spec.on
        case Python():
            return graph.own[name].group
    return None


def _common_components(graph: QueryGraph, part: FragmentPart, stateful: list[str]) -> tuple[list[Component], str]:
    """The columns that all stateful operators group by; where there is none, why.

    Later operators come first: they read all that the ones before them read, so what these allow only narrows it.
    """
    common: list[Component] | None = None
    for name in reversed(stateful):
        group = _group(graph, name) or ()
        own = _different(_trace_all(graph, part.reads, graph.spec(name).inputs, column) for column in group)
        if not own:
            reason = f"all rows of {name} are one group" if not group else f"{name} groups by computed columns"
            return [], reason
        common = own if common is None else _different(_merged(left, right) for left in common for right in own)
        if not common:
            return [], f"{name} groups by other columns than the operators after it or beside it"
    return common or [], ""


def _different(components: Iterable[Component | None]) -> list[Component]:
    result: list[Component] = []
    for component in components:
        if component is not None and component not in result:
            result.append(component)
    return result


def _merged(left: Component, right: Component) -> Component | None:
    """Both as one, if they agree on the streams that they share; if they share none, then by the columns' names."""
    shared = [name for name in left if name in right]
    agree = all(left[name] == right[name] for name in shared) if shared else {*left.values()} == {*right.values()}
    return {**left, **right} if agree else None


def _trace_all(graph: QueryGraph, logged: tuple[str, ...], names: tuple[str, ...], column: str) -> Component | None:
    """The column as it is called in all logged streams behind `names`; None if it is not one thing there."""
    found: Component = {}
    for name in names:
        component = _trace(graph, logged, name, column)
        if component is None or any(found.get(stream, source) != source for stream, source in component.items()):
            return None
        found.update(component)
    return found


def _trace(graph: QueryGraph, logged: tuple[str, ...], name: str, column: str) -> Component | None:
    """Follow a column of a stream back to the logged streams; None where it is computed on the way."""
    if name in logged:
        return {name: column}
    spec = graph.spec(name)
    match spec:
        case Filter() | Distinct() | Deduplicate() | Union():
            return _trace_all(graph, logged, spec.inputs, column)
        case Map():
            source = graph.plain[name].get(column)
            return None if source is None else _trace(graph, logged, spec.map, source)
        case Aggregate():
            return _trace(graph, logged, spec.aggregate, column) if column in spec.by else None
        case Top():
            return _trace(graph, logged, spec.top, column) if column != RANK else None
        case Python():
            return _trace(graph, logged, spec.python, column) if column in graph.own[name].unchanged else None
        case Join() | Lookup():
            # One side is enough: the join itself then allows only keys of its `on`, which it follows to both sides.
            left, right = spec.inputs
            if column in graph.schemas[left].types:
                return _trace(graph, logged, left, column)
            source = column if column in graph.schemas[right].types else column.removesuffix("_right")
            return _trace(graph, logged, right, source)
    raise AssertionError(f"{name}: no lineage for {spec.kind}")


def _keys(
    graph: QueryGraph, part: FragmentPart, stateful: list[str], components: list[Component]
) -> dict[str, tuple[str, ...]]:
    """The key of each logged stream, in one order of columns for all; a stream's own key is kept to, or refused."""
    for name in part.reads:
        key = graph.query.streams[name].key if name in graph.query.streams else ()
        possible = [component[name] for component in components if name in component]
        if not key or not possible:
            continue
        if not set(key) <= set(possible):
            groups = "; ".join(f"{other} by {', '.join(_group(graph, other) or ())}" for other in stateful)
            raise UserError(
                f"streams.{name}.key",
                list(key),
                f"this key would tear groups apart over the {part.shards} shards of {part.name} ({groups})",
                f"take the key from: {', '.join(possible)}; or remove it; or set shards to 1",
            )
        components = [component for component in components if component.get(name, key[0]) in key]
    return {
        name: tuple(component[name] for component in components if name in component) or natural_key(graph, name)
        for name in part.reads
    }


def natural_key(graph: QueryGraph, name: str) -> tuple[str, ...]:
    """The columns that identify a stream's rows to its readers: those it was grouped by, else its source's key."""
    if name in graph.query.streams:
        return graph.query.streams[name].key
    spec = graph.spec(name)
    if isinstance(spec, Lookup):
        return natural_key(graph, spec.lookup[0])
    if isinstance(spec, Python):
        own = graph.own[name]
        key = own.group or natural_key(graph, spec.python)
        return key if set(key) <= set(own.unchanged) else ()
    group = _group(graph, name)
    if group is not None:
        return group
    keys = [natural_key(graph, source) for source in spec.inputs]
    if any(key != keys[0] for key in keys):
        return ()
    if isinstance(spec, Map):
        renamed = {source: column for column, source in reversed(list(graph.plain[name].items()))}
        return tuple(renamed[column] for column in keys[0]) if set(keys[0]) <= set(renamed) else ()
    return keys[0]
