"""From a query to its plan: types checked, fragments split, shards and keys worked out, streams laid out.

In order: the overrides are applied; schemas are inferred from the streams on; what does not reach the output is left
out; operators are dealt to fragments, and these split into weakly connected parts (R30); each part gets its shards and
the key of each stream that it reads (R1); each logged stream gets an edge for each layout that a reader needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from boreal.model.durations import format_duration
from boreal.model.errors import UserError
from boreal.query.edges import egress_of, fragment_of, lay_out
from boreal.query.fields import Engine
from boreal.query.notes import held_back, lone_replicas, own_packages, pruned, too_many_panes
from boreal.query.parts import parts_of
from boreal.query.plan import Plan
from boreal.query.query import Query
from boreal.query.records import check_records
from boreal.query.running import Application, Mode, Policy
from boreal.query.schemas import infer
from boreal.query.shapes import unbounded_by
from boreal.query.sharding import natural_key, sharded

CHECKPOINT_INTERVAL_US = 10_000_000
"""How often state that windows cannot rebuild is checkpointed, where the query does not say (R26)."""

SILENT_AFTER_INTERVALS = 3
"""A port that missed two boundaries is found out before the third is due (R10)."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What is to hold in place of what a query says, for all its fragments; None leaves what it says. Durations in
    microseconds.

    bucket_us and boundary_interval_us may be scaled to event time (a run at a speed): the delay threshold is judged by
    the query's own.
    """

    mode: Mode | None = None
    """How failures are reconciled."""
    policy: Policy | None = None
    """What each phase of a failure does with tentative input."""
    delay_threshold_us: int | None = None
    """X (us)."""
    replicas: int | None = None
    """The number of replicas of each fragment."""
    shards: int | None = None
    """The number of shards of each fragment."""
    engine: Engine | None = None
    """What runs the operators."""
    alpha_x_us: int | None = None
    """How long SUnion holds a bucket that misses an input (us)."""
    bucket_us: int | None = None
    """The length of a bucket (us of event time)."""
    boundary_interval_us: int | None = None
    """The interval of boundaries (us)."""
    heartbeat_us: int | None = None
    """The interval of heartbeats (us)."""
    silence_us: int | None = None
    """How long an input is silent before it counts as missing (us)."""
    calm_pause_us: int | None = None
    """How much longer than usual a calm instance may be silent (us)."""
    stable_lag_max_us: int | None = None
    """How far stable output may lag behind stable input (us)."""
    checkpoint_interval_us: int | None = None
    """The interval of checkpoints (us)."""


AS_WRITTEN = Overrides()


def plan(query: Query, overrides: Overrides = AS_WRITTEN, default_engine: Engine = "native") -> Plan:
    """The plan of a query. default_engine: where neither the query nor the fragment names one. Raises UserError."""
    query = _overridden(query, overrides)
    graph = infer(query)
    notes = pruned(query)
    parts = [sharded(graph, part, notes) for part in parts_of(query, default_engine)]
    edges = lay_out(graph, parts)
    fragments = (*(fragment_of(graph, part, edges) for part in parts), egress_of(graph, edges))
    notes.extend(lone_replicas(query, parts))
    key = natural_key(graph, query.output)
    for field in ("latest", "debezium"):
        if getattr(query, field) and not key:
            fix = "group by columns, give the streams a `key`, or leave it out"
            raise UserError(field, True, "is for rows that have a key, and those of the output have none", fix)
    if query.records is not None:
        check_records(query.records, graph.schemas[query.output])
    tuning, intervals = query.tuning, query.intervals
    notes.extend(held_back(query, fragments, (overrides.bucket_us or intervals.bucket) / intervals.bucket))
    notes.extend(too_many_panes(query))
    notes.extend(own_packages(graph))
    interval = overrides.boundary_interval_us or intervals.boundary_interval
    checkpoint_interval = overrides.checkpoint_interval_us or tuning.checkpoint_interval
    unbounded = [(name, found) for name in query.reaching if (found := unbounded_by(name, query.operators[name]))]
    if unbounded:
        checkpoint_interval = checkpoint_interval or CHECKPOINT_INTERVAL_US
        every = format_duration(checkpoint_interval)
        notes.extend(
            f"{name} is {reason}: its state depends on all input ever, and is checkpointed in the background every {every}"
            for name, (reason, _) in unbounded
        )
    return Plan(
        query=query.name,
        fragments=fragments,
        sources=tuple(edge for edge in edges.in_order if edge.source),
        output=fragments[-1].outputs[0],
        output_key=key,
        mode=query.reconcile,
        policy=query.policy,
        delay_threshold_us=query.delay_threshold,
        bucket_us=overrides.bucket_us or intervals.bucket,
        bucket_run_us=intervals.bucket,
        boundary_interval_us=interval,
        heartbeat_us=overrides.heartbeat_us or intervals.heartbeat,
        silence_us=overrides.silence_us or SILENT_AFTER_INTERVALS * interval,
        calm_pause_us=overrides.calm_pause_us or 0,
        alpha_x_us=tuning.alpha_x,
        memory_bytes=tuning.memory,
        retention_us=tuning.retention,
        stable_lag_max_us=overrides.stable_lag_max_us or tuning.stable_lag_max,
        checkpoint_interval_us=checkpoint_interval,
        notes=tuple(notes),
        latest=query.latest,
        debezium=query.debezium,
        own_application=query.spark.application is Application.OWN,
        records=query.records,
        disorder_us=max((stream.disorder for stream in query.streams.values()), default=0),
    )


def _overridden(query: Query, overrides: Overrides) -> Query:
    """The query as if its file had said so, judged again as a whole."""
    file = query.dump()
    changes: dict[str, object] = {}
    if overrides.mode is not None:
        changes["reconcile"] = str(overrides.mode)
    if overrides.policy is not None:
        changes["policy"] = str(overrides.policy)
    if overrides.delay_threshold_us is not None:
        changes["delay_threshold"] = format_duration(overrides.delay_threshold_us)
    if overrides.alpha_x_us is not None:
        changes["tuning"] = {**file["tuning"], "alpha_x": format_duration(overrides.alpha_x_us)}
    for_all = {"replicas": overrides.replicas, "shards": overrides.shards, "engine": overrides.engine}
    given = {key: value for key, value in for_all.items() if value is not None}
    changes.update(given)
    if given and query.fragments is not None:
        changes["fragments"] = {
            name: {key: value for key, value in fragment.items() if key not in given}
            for name, fragment in file["fragments"].items()
        }
    return query.changed(**changes) if changes else query
