"""A version that begins with what the one in charge keeps: it reads the logs of that one's sources (`--from state`). Pure.

What an instance's state depends on is in its last anchor: the rows of its inputs from these ids on (R26). It claims them, so
its inputs' logs hold them. A version that reads these rows from there on computes the state that it would have if it had run
all the time, whatever its operators are, as far as they depend on no older rows. No topic is read again, and both versions
have the same rows, since one source has judged them.

    1. The record names the version, with the sources that it shares. It claims all rows of their logs from now on.
    2. The monitor has heard of it, so it publishes no more trims of these logs. Those that it has published before are no
       further than what the anchors of that time claim.
    3. It reads the anchors. They are no older than those, so what they need will stay.
    4. The record says from which ids on the version reads, the same for all its replicas. Its processes begin.

A state that depends on all rows ever is in no rows that are kept, but in checkpoints. So where the operators with a state are
the same, step 3 takes the newest checkpoint of each shard in place of the anchors (`deployment.carried_states`). The operators
without a state may be others. A version that needs no such state reads on from the same places, and with no state: it has all
rows from the time of these checkpoints on.

The sources, their logs and their control topic keep their name when the version that began them is deleted: they are deleted
with the last version that reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from boreal.model.errors import UserError
from boreal.model.frames import Anchor
from boreal.query.plan import EGRESS, Edge, Fragment, Input, Plan
from boreal.query.planner import plan
from boreal.query.spec import Query
from deployment.query_record import TUNING_OF_SOURCES
from deployment.recompute import FragmentSpans
from operators.graph import FragmentGraph
from sunion.tape import BEGINNING

STATE = "state"
"""What `--from` says for this."""

LEAST_REPLICAS = 2
"""Of a version that begins with a state that no rows can make again: a checkpoint of one is there for the others (R26)."""

_FIX = "write --from earliest: the new version then has sources of its own"


def refuse_other_logs(running: Query, new: Query) -> None:
    """UserError if a new version cannot read the logs of the sources of the one that runs: it names the first difference."""
    before, after = plan(running), plan(new)
    edges = [{edge.name: edge for edge in each.sources} for each in (before, after)]
    streams = [list(dict.fromkeys(edge.operator for edge in each.sources)) for each in (before, after)]
    for name in sorted({*streams[0], *streams[1]}):
        if name not in streams[1]:
            raise UserError(f"streams.{name}", None, "is read by the query that runs, and would not be any more", _FIX)
        if name not in streams[0]:
            raise UserError(f"streams.{name}", name, "is not read by the query that runs, which has no log of it", _FIX)
        _refuse_other_stream(f"streams.{name}", running.dump()["streams"][name], new.dump()["streams"][name])
    for edge in after.sources:
        if edges[0].get(edge.name) != edge:
            problem = f"is read {_shape(edge)}, and its log is written {_shape(edges[0].get(edge.name))}"
            raise UserError(f"streams.{edge.operator}", edge.name, problem, f"keep the shards and the keys, or {_FIX}")
    if len(edges[0]) > len(edges[1]):
        [name, *_] = sorted(edges[0].keys() - edges[1].keys())
        problem = "is a log of the query that runs, and would have no reader"
        raise UserError(f"streams.{edges[0][name].operator}", name, problem, f"keep the fragments, or {_FIX}")
    for edge in after.fragment(EGRESS).edges:
        if edge.source:
            raise UserError("output", new.output, "is a stream as it is, which has no state", _FIX)
    _refuse_other_pace(running, new)


def _refuse_other_stream(path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for field in sorted({*before, *after}):
        if before.get(field) != after.get(field):
            problem = f"is {before.get(field)!r} in the query that runs, whose source serves both versions"
            raise UserError(f"{path}.{field}", after.get(field), problem, _FIX)


def _shape(edge: Edge | None) -> str:
    if edge is None:
        return "for other fragments"
    key = f" by {', '.join(edge.key)}" if edge.key else ""
    return f"in {edge.partitions} partition{'' if edge.partitions == 1 else 's'}{key}"


def _refuse_other_pace(running: Query, new: Query) -> None:
    """UserError if the sources would have to write at another pace, or keep their logs for another time."""
    old, wanted = running.dump()["tuning"], new.dump()["tuning"]
    for field in TUNING_OF_SOURCES:
        if old.get(field) != wanted.get(field):
            problem = f"is {old.get(field) or 'left out'} in the query that runs, whose sources serve both versions"
            fix = f"change it by itself, before or after: boreal query set; or {_FIX}"
            raise UserError(f"tuning.{field}", wanted.get(field), problem, fix)
    if running.intervals != new.intervals:
        problem = f"needs other boundaries than {running.dump()['delay_threshold']}, for which the sources write them"
        fix = f"change it by itself, before or after: boreal query set {running.name} delay_threshold=...; or {_FIX}"
        raise UserError("delay_threshold", new.dump()["delay_threshold"], problem, fix)


def must_carry_states(running: Query, new: Query, was_carried: bool = False) -> bool:
    """Whether a new version needs all rows ever of a stream, and the one that runs does not keep them: so it can begin with the
    states of its checkpoints alone. was_carried: whether the one that runs has begun so itself. UserError if these are not the
    states of the new version: it names the first operator that differs."""
    before, after = plan(running), plan(new)
    kept = {
        edge.name
        for fragment in before.fragments
        if not was_carried and len(fragment.replicas) == 1 and FragmentGraph(fragment).unbounded
        for edge in fragment.edges
    }
    if not all_needed(after) - kept:
        return False
    same = same_operators(before, after)
    former = {fragment.name: fragment for fragment in before.fragments}
    for fragment in after.fragments:
        if FragmentGraph(fragment).unbounded:
            _refuse_other_states(former.get(fragment.name), fragment, same)
    return True


def all_needed(plan: Plan) -> frozenset[str]:
    """The streams, by the names of their edges, of which results depend on all rows ever."""
    return frozenset(name for name, time in FragmentSpans(plan).needs(0).items() if time <= BEGINNING)


def _refuse_other_states(old: Fragment | None, new: Fragment, same: frozenset[str]) -> None:
    """UserError if a fragment cannot begin with the states of the one of its name in the query that runs."""
    if old is None:
        problem = "has a state that depends on all rows ever, and is no fragment of the query that runs"
        raise UserError(f"fragments.{new.name}", [node.name for node in new.nodes], problem, f"keep the fragments, or {_FIX}")
    if old.shards != new.shards:
        problem = f"has a state that depends on all rows ever, in {old.shards} shards in the query that runs"
        raise UserError(f"fragments.{new.name}.shards", new.shards, problem, f"keep the shards, or {_FIX}")
    former, graph = {node.name: node for node in old.nodes}, FragmentGraph(new)
    for node in new.nodes:
        if node.name in same or not graph.remembers(node.name):
            continue
        before, wanted = former.get(node.name), node.spec.model_dump(mode="json")
        if before is None:
            problem = "is new, and its state depends on rows that the query that runs no longer keeps"
        elif before.spec != node.spec:
            problem = f"is {before.spec.model_dump(mode='json')} in the query that runs, so its state is another one"
        else:
            problem = "reads other rows than in the query that runs, so its state is another one"
        raise UserError(f"operators.{node.name}", wanted, problem, f"keep it and what it reads as they are, or {_FIX}")
    if len(new.replicas) < LEAST_REPLICAS:
        problem = "would keep the only copies of a state that depends on all rows ever"
        raise UserError("replicas", len(new.replicas), problem, f"write replicas: {LEAST_REPLICAS}, or {_FIX}")


def same_operators(before: Plan, after: Plan) -> frozenset[str]:
    """The operators that have the same state in both plans: they, their fragments and all that they read are the same."""
    former = {fragment.name: fragment for fragment in before.fragments}
    found: set[str] = set()
    for fragment in after.fragments:
        if (old := former.get(fragment.name)) is None:
            continue
        nodes = {node.name: node for node in old.nodes}
        same = {entry.name for entry in fragment.inputs if entry in old.inputs and _made_of(entry, found)}
        for node in fragment.nodes:
            if nodes.get(node.name) == node and same >= set(node.inputs):
                same.add(node.name)
                found.add(node.name)
    return frozenset(found)


def _made_of(entry: Input, same: set[str]) -> bool:
    """Whether an input merges only streams of sources and of operators that are the same."""
    return all(edge.source or edge.operator in same for edge in entry.edges)


def first_rows(plan: Plan, anchors: Mapping[tuple[str, int], Anchor | None]) -> tuple[dict[str, int], dict[str, int]]:
    """From where a version reads the logs of a plan's sources: the id of the first row, by 'stream/partition'; and the event
    time from which on it has all rows, by the name of the edge. anchors: by (fragment, shard), the last one of the replica
    that has come the furthest, or `deployment.carried_states.newest_place`; None if it has none, and so has acknowledged
    nothing."""
    first_ids: dict[str, int] = {}
    reach: dict[str, int] = {}
    for (name, shard), anchor in anchors.items():
        for edge in plan.fragment(name).edges:
            if edge.source:
                key = edge.source_key(shard)
                first_id = dict(anchor.inputs).get(key, 0) if anchor is not None else 0
                first_ids[key] = min(first_ids.get(key, first_id), first_id)
                reach[edge.name] = max(reach.get(edge.name, BEGINNING), anchor.needs if anchor is not None else BEGINNING)
    return first_ids, reach


def newest(anchors: list[Anchor | None]) -> Anchor | None:
    """Of the last anchors of a shard's replicas, the one that needs the least; None if none has one."""
    return max((anchor for anchor in anchors if anchor is not None), key=lambda anchor: anchor.needs, default=None)


def lost_rows(key: str, first_id: int) -> UserError:
    """What is said if the log of a 'stream/partition' no longer holds the rows from an id on."""
    problem = f"has lost the rows from {first_id} on, which the version that runs needs"
    return UserError(f"log {key}", None, problem, "roll back, and evolve from earliest")
