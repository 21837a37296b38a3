"""The layout: one edge for each logged stream and layout of it that a reader needs, and the fragments between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from boreal.query.parts import FragmentPart
from boreal.query.plan import EGRESS, Edge, Fragment, Input, Node
from boreal.query.schemas import QueryGraph
from boreal.query.shapes import Union


@dataclass(frozen=True)
class Edges:
    """All edges: by reader and logged stream, and each once."""

    read: Mapping[tuple[str, str], Edge]
    """The edge that carries a logged stream to a reader, by (fragment, stream)."""
    in_order: tuple[Edge, ...]
    """Each edge once, in the order in which readers need them."""


def lay_out(graph: QueryGraph, parts: list[FragmentPart]) -> Edges:
    """One edge for each logged stream and layout; the first reader's has the stream's name, others NAME@READER."""
    producers = {name: part.shards for part in parts for name in part.operators}
    wanted = [(part.name, name, part.shards, part.keys.get(name, ())) for part in parts for name in part.reads]
    wanted.append((EGRESS, graph.query.output, 1, ()))
    made: dict[tuple[str, int, tuple[str, ...]], Edge] = {}
    read: dict[tuple[str, str], Edge] = {}
    named: set[str] = set()
    for reader, name, partitions, key in wanted:
        if (name, partitions, key) not in made:
            made[name, partitions, key] = Edge(
                name=f"{name}@{reader}" if name in named else name,
                operator=name,
                schema=graph.schemas[name],
                producers=producers.get(name, 1),
                partitions=partitions,
                key=key,
                source=name in graph.query.streams,
            )
            named.add(name)
        read[reader, name] = made[name, partitions, key]
    return Edges(read, tuple(made.values()))


def fragment_of(graph: QueryGraph, part: FragmentPart, edges: Edges) -> Fragment:
    """A union of logged streams alone is left to SUnion, which merges its inputs anyhow; the rest are nodes."""
    inputs: dict[str, Input] = {}
    nodes = []
    for name in part.operators:
        spec = graph.spec(name)
        if isinstance(spec, Union) and all(source in part.reads for source in spec.inputs):
            merged = tuple(edges.read[part.name, source] for source in spec.inputs)
            inputs[name] = Input(name, merged, graph.schemas[name])
            continue
        for source in spec.inputs:
            if source in part.reads:
                inputs[source] = Input(source, (edges.read[part.name, source],), graph.schemas[source])
        schemas = tuple(graph.schemas[source] for source in spec.inputs)
        nodes.append(Node(name, spec, spec.inputs, schemas, graph.schemas[name]))
    return Fragment(
        name=part.name,
        inputs=tuple(inputs.values()),
        nodes=tuple(nodes),
        outputs=tuple(edge for edge in edges.in_order if edge.operator in part.operators),
        replicas=tuple(f"r{number}" for number in range(part.replicas)),
        shards=part.shards,
        engines=part.engines,
    )


def egress_of(graph: QueryGraph, edges: Edges) -> Fragment:
    """The fragment that makes the client's one stream of the output's partitions (R1)."""
    query, edge = graph.query, edges.read[EGRESS, graph.query.output]
    taken = {other.name for other in edges.in_order}
    client = Edge(
        name=f"{query.name}@{EGRESS}" if query.name in taken else query.name,
        operator=query.output,
        schema=edge.schema,
        producers=1,
        partitions=1,
        key=(),
        source=False,
    )
    entry = Input(query.output, (edge,), edge.schema)
    return Fragment(EGRESS, (entry,), (), (client,), ("r0",), 1, ("native",))
