"""The plan of a query: its fragments, replicas and logs. `boreal.query.planner.plan` makes it; every driver reads it."""

from __future__ import annotations

from dataclasses import dataclass

from boreal.model.schema import Schema
from boreal.query.records import Records
from boreal.query.running import Mode, Policy
from boreal.query.shapes import OperatorSpec

EGRESS = "egress"
"""The name of the last fragment of every plan, which merges the partitions of the output into one stream for clients."""

SIGNS_OF_LIFE = 4
"""How often an idle stream repeats its boundary within one silence timeout, at most."""

CALM_AFTER_PAUSES = 3
"""An instance or a source is calm after so many times `Plan.calm_pause_us` without rows."""

MOST_LOADED = 2
"""How loaded a process may be: 0 is not."""

STABLE_LAG_FACTOR = 10
"""The default of `stable_lag_max`, as a multiple of the delay threshold (R16)."""


@dataclass(frozen=True)
class Edge:
    """A logged stream: a source stream, or the output of an operator, partitioned for its readers (R1).

    Shard q of the producer writes rows for shard p of the reader to log partition q * partitions + p.
    """

    name: str
    """The name of the logged stream."""
    operator: str
    """The name of the source stream or operator that makes it."""
    schema: Schema
    """The columns of its tuples."""
    producers: int
    """The number of shards that write it; 1 for a source."""
    partitions: int
    """The number of shards that read it."""
    key: tuple[str, ...]
    """The columns whose hash selects the partition."""
    source: bool
    """Whether it is a source stream."""

    def partition(self, producer: int, reader: int) -> int:
        return producer * self.partitions + reader

    def source_key(self, reader: int) -> str:
        """Of a source stream: 'stream/partition' of the log that a shard reads."""
        return f"{self.name}/{self.partition(0, reader)}"


@dataclass(frozen=True)
class Input:
    """An input of a fragment's DAG: a union of logged streams, which the SUnion merges."""

    name: str
    """The name by which nodes read the input."""
    edges: tuple[Edge, ...]
    """The streams that are merged, in the order that settles ties."""
    schema: Schema
    """The columns of the merged tuples."""


@dataclass(frozen=True)
class Node:
    """An operator of a fragment's DAG."""

    name: str
    """The name of the operator in the query."""
    spec: OperatorSpec
    """The operator's part of the query."""
    inputs: tuple[str, ...]
    """The names of the inputs or earlier nodes that it reads."""
    input_schemas: tuple[Schema, ...]
    """The columns of each input, in the same order."""
    schema: Schema
    """The columns of its output."""


@dataclass(frozen=True)
class Fragment:
    """The part of a query that one set of replicas runs."""

    name: str
    """The name of the fragment; EGRESS for the last one."""
    inputs: tuple[Input, ...]
    """The inputs of the DAG."""
    nodes: tuple[Node, ...]
    """The operators, in topological order: each reads only inputs and earlier nodes."""
    outputs: tuple[Edge, ...]
    """The streams that it writes. `Edge.operator` names a node, or an input if the fragment only merges."""
    replicas: tuple[str, ...]
    """The names of the replicas, such as ('r0', 'r1'); the egress has one."""
    shards: int
    """The number of shards of each replica."""
    engines: tuple[str, ...]
    """The engine of each replica, in the order of `replicas`: 'native' or 'spark'."""

    def engine_of(self, replica: str) -> str:
        """The engine of a replica: 'native' in the process of the instance, 'spark' in a Spark job."""
        return self.engines[self.replicas.index(replica)]

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The logged streams that it reads, each once, in order. The SUnion has one port for each producer of each of them."""
        seen: dict[str, Edge] = {}
        for entry in self.inputs:
            for edge in entry.edges:
                seen.setdefault(edge.name, edge)
        return tuple(seen.values())

    @property
    def has_several_producers(self) -> bool:
        """Whether its input comes from more than one instance. Each of these may delay a bucket differently."""
        return sum(edge.producers for edge in self.edges if not edge.source) > 1


@dataclass(frozen=True)
class Plan:
    """The plan of a whole query. Durations are in microseconds of run time, unless a field says event time."""

    query: str
    """The name of the query."""
    fragments: tuple[Fragment, ...]
    """The fragments, in topological order; the egress is the last."""
    sources: tuple[Edge, ...]
    """The source streams that reach the output."""
    output: Edge
    """The stream of results for clients."""
    output_key: tuple[str, ...]
    """The key columns of the results; () if there are none."""
    mode: Mode
    """How an instance restores its state and reprocesses its input after a failure."""
    policy: Policy
    """When tentative results are released during a failure and during the stabilization."""
    delay_threshold_us: int
    """X: the longest delay of a new result."""
    bucket_us: int
    """The length of a bucket, in event time."""
    bucket_run_us: int
    """The time that a bucket takes in run time."""
    boundary_interval_us: int
    """The interval between the boundaries of a source."""
    heartbeat_us: int
    """The interval between heartbeats."""
    silence_us: int
    """The silence timeout: an input that is silent for longer counts as missing (R10)."""
    alpha_x_us: int | None
    """How long one SUnion may delay a bucket, its share of X; None if it is measured at run time."""
    memory_bytes: int
    """The amount of input that an instance keeps in memory, in bytes. It reads older input from the log again."""
    retention_us: int
    """A reader that is silent for longer loses its claim on the logs, which are then trimmed (R27)."""
    stable_lag_max_us: int | None
    """How far stable output may lag behind stable input (R16); None for STABLE_LAG_FACTOR times X."""
    checkpoint_interval_us: int | None
    """The interval between background checkpoints (R26); None for the default, which depends on the operators."""
    notes: tuple[str, ...]
    """Notes for the user, one sentence each."""
    latest: bool = False
    """Whether the egress also writes the latest row of each key."""
    records: Records | None = None
    """In which other format it also writes the stable rows; None for none."""
    debezium: bool = False
    """Whether it also writes its changes in Debezium's envelopes."""
    calm_pause_us: int = 0
    """How much longer than usual an instance or a source may be silent that has had no rows for a while (R24), in
    microseconds."""
    own_application: bool = False
    """Whether its operators in Spark share an application with no other query."""
    disorder_us: int = 0
    """How far boundaries may be behind their rows, in event time."""

    @property
    def sign_of_life_us(self) -> int:
        """The interval at which an idle stream repeats its boundary. It is the boundary interval, but long enough for at most
        SIGNS_OF_LIFE repetitions per silence timeout, because each repetition is a record for every reader."""
        return max(self.boundary_interval_us, self.silence_us // SIGNS_OF_LIFE)

    @property
    def calm_interval_us(self) -> int:
        """The interval at which a calm stream repeats its boundary (R24). It may be silent for one more before it counts as
        silent: nothing waits for it, and what is late on a busy machine must not cause work there."""
        return self.sign_of_life_us + self.calm_pause_us

    @property
    def may_gather(self) -> bool:
        """Whether rows may gather in sources whose processes are loaded. Not where a bucket comes from several instances: these
        delay it differently, the more so the later a source says that it is over (`spread_us`)."""
        return not any(fragment.has_several_producers for fragment in self.fragments)

    def rest_us(self, degree: int, delay_threshold_us: int) -> int:
        """For how long rows gather in a source, for this X, in a process that is loaded to this degree (from 0 to MOST_LOADED).
        The boundary interval may be stated, and long."""
        span_us = min(self.boundary_interval_us, delay_threshold_us // 10)
        return (degree + 1) * span_us if degree and self.may_gather else 0

    def stable_lag_of(self, delay_threshold_us: int) -> int:
        """How far stable output may lag behind stable input (R16), for this X."""
        return self.stable_lag_max_us or STABLE_LAG_FACTOR * delay_threshold_us

    def event_time_of(self, run_us: int) -> int:
        """The event time that passes in a run time."""
        return run_us * self.bucket_us // self.bucket_run_us

    @property
    def completion_us(self) -> int:
        """How long after its first row a bucket may be known to be complete: it passes, and up to a boundary interval later the
        first boundary past its end comes."""
        return self.bucket_run_us + self.boundary_interval_us

    def spread_us(self, fragment: Fragment) -> int:
        """The largest difference between the arrival times of one bucket from two instances that both delay it as long as they
        may (R9). One instance counts its delay from a row, the other from the first boundary after the bucket."""
        return self.completion_us if fragment.has_several_producers else 0

    def is_read_alone(self, fragment: Fragment) -> bool:
        """Whether whoever reads the output of a fragment waits for no other input beside it, and has no windows that wait for
        its boundaries: clients, or an egress that reads one instance."""
        written = {edge.name for edge in fragment.outputs}
        readers = [other for other in self.fragments if any(edge.name in written for edge in other.edges)]
        return all(reader.name == EGRESS and not reader.has_several_producers for reader in readers)

    def sources_of(self, edge: Edge) -> tuple[str, ...]:
        """The source streams from which a logged stream is made, in the order of their names."""
        maker = next((fragment for fragment in self.fragments if edge in fragment.outputs), None)
        if maker is None:
            return (edge.operator,)
        return tuple(sorted({name for read in maker.edges for name in self.sources_of(read)}))

    def fragment(self, name: str) -> Fragment:
        return next(f for f in self.fragments if f.name == name)


def pause_to_say(pause_us: int, interval_us: int) -> int:
    """The pause that a calm stream says in its boundaries (R24), in microseconds, where it means to be silent for `pause_us`
    longer than usual: an interval more, so that a boundary that is late is no failure. 0 if it is not calm."""
    return pause_us + interval_us if pause_us else 0


def tick_after(time_us: int, interval_us: int) -> int:
    """The next multiple of the interval. All sources look and write at the same moments of the shared clock: a reader of many
    streams gets their boundaries in one fetch, and its own boundary advances once per interval."""
    return (time_us // interval_us + 1) * interval_us
