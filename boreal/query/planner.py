"""From a query to its plan: types checked, fragments split, shards and keys worked out, streams laid out.

In order: the overrides are applied; schemas are inferred from the streams on; what does not reach the output is left
out; operators are dealt to fragments, and these split into weakly connected parts (R30); each part gets its shards and
the key of each stream that it reads (R1); each logged stream gets an edge for each layout that a reader needs.
"""

from __future__ import annotations

from boreal.model.durations import format_duration
from boreal.query.edges import egress_of, fragment_of, lay_out
from boreal.query.notes import held_back, lone_replicas, pruned, too_many_panes
from boreal.query.parts import parts_of
from boreal.query.plan import Plan
from boreal.query.schemas import infer
from boreal.query.sharding import natural_key, sharded
from boreal.query.spec import Engine, Mode, Policy, Query

CHECKPOINT_INTERVAL_US = 10_000_000
"""How often state that windows cannot rebuild is checkpointed, where the query does not say (R26)."""

SILENT_AFTER_INTERVALS = 3
"""A port that missed two boundaries is found out before the third is due (R10)."""


def plan(
    query: Query,
    *,
    mode: Mode | None = None,
    policy: Policy | None = None,
    delay_threshold_us: int | None = None,
    replicas: int | None = None,
    shards: int | None = None,
    engine: Engine | None = None,
    default_engine: Engine = "native",
    bucket_us: int | None = None,
    boundary_interval_us: int | None = None,
    heartbeat_us: int | None = None,
    silence_us: int | None = None,
    alpha_x_us: int | None = None,
    stable_lag_max_us: int | None = None,
    checkpoint_interval_us: int | None = None,
) -> Plan:
    """The plan of a query; keyword arguments override what it says, for all its fragments. Raises UserError.

    bucket_us and boundary_interval_us may be scaled to event time (a run at a speed): the delay threshold is judged by
    the query's own. default_engine: where neither the query nor the fragment names one.
    """
    query = _overridden(query, mode, policy, delay_threshold_us, replicas, shards, engine, alpha_x_us)
    graph = infer(query)
    notes = pruned(query)
    parts = [sharded(graph, part, notes) for part in parts_of(query, default_engine)]
    edges = lay_out(graph, parts)
    fragments = (*(fragment_of(graph, part, edges) for part in parts), egress_of(graph, edges))
    notes.extend(lone_replicas(query, parts))
    tuning = query.tuning
    notes.extend(held_back(query, fragments, (bucket_us or tuning.bucket) / tuning.bucket))
    notes.extend(too_many_panes(query))
    interval = boundary_interval_us or tuning.boundary_interval
    checkpoint_interval = checkpoint_interval_us or tuning.checkpoint_interval
    if query.unbounded:
        checkpoint_interval = checkpoint_interval or CHECKPOINT_INTERVAL_US
        every = format_duration(checkpoint_interval)
        notes.extend(
            f"{name} has no window: its state grows without bound and is checkpointed in the background every {every}"
            for name in query.unbounded
        )
    return Plan(
        query=query.name,
        fragments=fragments,
        sources=tuple(edge for edge in edges.in_order if edge.source),
        output=fragments[-1].outputs[0],
        output_key=natural_key(graph, query.output),
        mode=query.reconcile,
        policy=query.policy,
        delay_threshold_us=query.delay_threshold,
        bucket_us=bucket_us or tuning.bucket,
        bucket_run_us=tuning.bucket,
        boundary_interval_us=interval,
        heartbeat_us=heartbeat_us or tuning.heartbeat,
        silence_us=silence_us or SILENT_AFTER_INTERVALS * interval,
        alpha_x_us=tuning.alpha_x,
        memory_bytes=tuning.memory,
        retention_us=tuning.retention,
        stable_lag_max_us=stable_lag_max_us or tuning.stable_lag_max,
        checkpoint_interval_us=checkpoint_interval,
        notes=tuple(notes),
        latest=query.latest,
        disorder_us=max((stream.disorder for stream in query.streams.values()), default=0),
    )


def _overridden(
    query: Query,
    mode: Mode | None,
    policy: Policy | None,
    delay_threshold_us: int | None,
    replicas: int | None,
    shards: int | None,
    engine: Engine | None,
    alpha_x_us: int | None,
) -> Query:
    """The query as if its file had said so, judged again as a whole."""
    file = query.dump()
    changes: dict[str, object] = {}
    if mode is not None:
        changes["reconcile"] = str(mode)
    if policy is not None:
        changes["policy"] = str(policy)
    if delay_threshold_us is not None:
        changes["delay_threshold"] = format_duration(delay_threshold_us)
    if alpha_x_us is not None:
        changes["tuning"] = {**file["tuning"], "alpha_x": format_duration(alpha_x_us)}
    for_all = {"replicas": replicas, "shards": shards, "engine": engine}
    given = {key: value for key, value in for_all.items() if value is not None}
    changes.update(given)
    if given and query.fragments is not None:
        changes["fragments"] = {
            name: {key: value for key, value in fragment.items() if key not in given}
            for name, fragment in file["fragments"].items()
        }
    return query.changed(**changes) if changes else query
