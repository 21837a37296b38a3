"""The plan: what runs where. Made from a query by `boreal.query.planner.plan`; read by every driver."""

from __future__ import annotations

from dataclasses import dataclass

from boreal.model.schema import Schema
from boreal.query.spec import Mode, OperatorSpec, Policy

EGRESS = "egress"
"""The name of the fragment that every plan ends in: it merges the output's partitions into the client's one stream."""

SIGNS_OF_LIFE = 6
"""How often an idle stream repeats its boundary, at most, within the time after which it would count as silent."""

STABLE_LAG_FACTOR = 10
"""`stable_lag_max` as a multiple of the delay threshold, where the query does not say (R16)."""


@dataclass(frozen=True)
class Edge:
    """A stream that is logged: a source stream, or an operator's output, laid out for its readers (R1).

    name: the log stream's name. operator: the source stream or operator that makes it. producers: shards that write it
    (1 for a source). partitions: shards that read it. key: the columns whose hash picks the partition. Shard q of the
    producer writes for shard p of the reader to log partition q * partitions + p.
    """

    name: str
    operator: str
    schema: Schema
    producers: int
    partitions: int
    key: tuple[str, ...]
    source: bool

    def partition(self, producer: int, reader: int) -> int:
        return producer * self.partitions + reader


@dataclass(frozen=True)
class Input:
    """A named input of a fragment's DAG: the edges that SUnion merges, in this order, into one (a union of streams)."""

    name: str
    edges: tuple[Edge, ...]
    schema: Schema


@dataclass(frozen=True)
class Node:
    """An operator of a fragment's DAG: where it reads (names of inputs or of earlier nodes) and what it makes."""

    name: str
    spec: OperatorSpec
    inputs: tuple[str, ...]
    input_schemas: tuple[Schema, ...]
    schema: Schema


@dataclass(frozen=True)
class Fragment:
    """The part of a query that one replica set runs. `nodes` are in an order in which each reads only earlier ones.

    replicas: names, e.g. ('r0', 'r1'); the egress has one. engines: where the operators of each replica run, in the same
    order. outputs: edges that it writes; Edge.operator names a node or, where a fragment only merges, an input.
    """

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Edge, ...]
    replicas: tuple[str, ...]
    shards: int
    engines: tuple[str, ...]

    def engine_of(self, replica: str) -> str:
        """Where the operators of a replica run: 'native', beside the instance, or in a process elsewhere."""
        return self.engines[self.replicas.index(replica)]

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The logged streams that it reads, each once, in order: SUnion's ports are these, times their producers."""
        seen: dict[str, Edge] = {}
        for entry in self.inputs:
            for edge in entry.edges:
                seen.setdefault(edge.name, edge)
        return tuple(seen.values())

    @property
    def has_several_producers(self) -> bool:
        """Whether its input comes from several instances, which hold buckets back before."""
        return sum(edge.producers for edge in self.edges if not edge.source) > 1


@dataclass(frozen=True)
class Plan:
    """A whole query, planned. Durations in microseconds of run time, but bucket_us and disorder_us, which are event time;
    bucket_run_us is how long a bucket takes in run time. disorder_us: how far boundaries may be behind their rows. silence_us:
    an input that says nothing for longer is missing (R10). stable_lag_max_us: None where it follows from X."""

    query: str
    fragments: tuple[Fragment, ...]
    sources: tuple[Edge, ...]
    output: Edge
    output_key: tuple[str, ...]
    mode: Mode
    policy: Policy
    delay_threshold_us: int
    bucket_us: int
    bucket_run_us: int
    boundary_interval_us: int
    heartbeat_us: int
    silence_us: int
    alpha_x_us: int | None
    memory_bytes: int
    retention_us: int
    stable_lag_max_us: int | None
    checkpoint_interval_us: int | None
    notes: tuple[str, ...]
    latest: bool = False
    disorder_us: int = 0

    @property
    def sign_of_life_us(self) -> int:
        """So often a stream that makes no progress repeats its boundary: at the boundary interval, but no more than
        SIGNS_OF_LIFE times in what counts as silence, since each repetition is a record for every reader."""
        return max(self.boundary_interval_us, self.silence_us // SIGNS_OF_LIFE)

    def stable_lag_of(self, delay_threshold_us: int) -> int:
        """How far stable output may trail what is stable already (R16), where X is this."""
        return self.stable_lag_max_us or STABLE_LAG_FACTOR * delay_threshold_us

    def event_time_of(self, run_us: int) -> int:
        """How much event time passes in so much run time."""
        return run_us * self.bucket_us // self.bucket_run_us

    @property
    def completion_us(self) -> int:
        """How long after its first row a bucket may be known to be complete: it passes, and up to a boundary interval later the
        first boundary past its end comes."""
        return self.bucket_run_us + self.boundary_interval_us

    def spread_us(self, fragment: Fragment) -> int:
        """How much later a bucket may come to a fragment from one instance than from another, both having held it back for as
        long as they may (R9): it counts from a row here, from the first boundary past its end there."""
        return self.completion_us if fragment.has_several_producers else 0

    def fragment(self, name: str) -> Fragment:
        return next(f for f in self.fragments if f.name == name)
