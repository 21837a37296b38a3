"""From where a version may read the logs of another one's sources (`deployment.shared_sources`), as the logs say it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from redis import Redis

from boreal.model.errors import UserError
from boreal.model.frames import Anchor
from boreal.query.plan import EGRESS
from deployment.layout import Layout
from deployment.shared_sources import first_rows, newest, same_operators
from logs.restart import oldest_anchor
from operators.graph import FragmentGraph
from reconcile.events import InstanceId
from services.kafka.clusters import Cluster
from services.storage.kafka_log import KafkaLogStore
from services.storage.redis_checkpoints import RedisCheckpointStore


def read_first_rows(clusters: Mapping[str, Cluster], layout: Layout) -> tuple[dict[str, int], dict[str, int]]:
    """As `deployment.shared_sources.first_rows`. layout: of the version that runs. UserError if the logs no longer hold these
    rows; KafkaError if a site does not answer."""
    with closing(KafkaLogStore(clusters, layout)) as logs:

        def last_anchor(fragment: str, replica: str, shard: int) -> Anchor | None:
            return oldest_anchor([logs.open(log) for log in layout.own_logs(InstanceId(fragment, replica, shard))])

        anchors = {
            (fragment.name, shard): newest([last_anchor(fragment.name, replica, shard) for replica in fragment.replicas])
            for fragment in layout.plan.fragments
            if fragment.name != EGRESS
            for shard in range(fragment.shards)
        }
        first_ids, reach = first_rows(layout.plan, anchors)
        _refuse_lost(logs, layout, first_ids)
    return first_ids, reach


@dataclass(frozen=True, slots=True)
class CarriedStates:
    """The states with which a version begins, and from where it reads on."""

    first_ids: dict[str, int]
    """The id of the first row, by 'stream/partition'."""
    reach: dict[str, int]
    """The event time from which on it has all rows that the states do not hold, by the name of the edge."""
    states: dict[str, tuple[str, int]]
    """The owner and the number of the checkpoint, by 'fragment/shard'."""


def carry_states(redis: Redis, clusters: Mapping[str, Cluster], running: Layout, new: Layout) -> CarriedStates:
    """Store the newest states of a version that runs as checkpoints of a new one. Both have one fragment, and the same
    operators with a state. UserError while a shard has no checkpoint; StoreUnavailableError; CorruptError."""
    former, stores = RedisCheckpointStore(redis, prefix=running.plan.query), RedisCheckpointStore(redis, prefix=new.plan.query)
    old, fragment = running.plan.fragments[0], new.plan.fragments[0]
    same, graphs = same_operators(old, fragment), (FragmentGraph(old), FragmentGraph(fragment))
    found = CarriedStates({}, {}, {})
    for shard in range(old.shards):
        saved = [former.latest(str(InstanceId(old.name, replica, shard))) for replica in old.replicas]
        newest = max((each for each in saved if each is not None), key=lambda each: each.time, default=None)
        if newest is None:
            raise UserError(f"checkpoint of {old.name}.{shard}", None, "is not there yet", "wait for it, or roll back")
        carried = replace(
            newest,
            instance=f"{newest.instance}/carried",
            needs=newest.time,
            next_ids=(),
            state=graphs[1].carry(newest.state, graphs[0], same),
        )
        stores.put(carried)
        found.states[f"{fragment.name}/{shard}"] = carried.instance, carried.number
        for key, first_id in newest.inputs:
            name = key.rpartition("/")[0]
            found.first_ids[key] = min(found.first_ids.get(key, first_id), first_id)
            found.reach[name] = max(found.reach.get(name, newest.time), newest.time)
    with closing(KafkaLogStore(clusters, running)) as logs:
        _refuse_lost(logs, running, found.first_ids)
    return found


def _refuse_lost(logs: KafkaLogStore, layout: Layout, first_ids: Mapping[str, int]) -> None:
    for log in layout.logs_of_sources:
        if not logs.is_held([log], first_ids[log.key]):
            problem = f"has lost the rows from {first_ids[log.key]} on, which the version that runs needs"
            raise UserError(f"log {log.key}", None, problem, "roll back, and evolve from earliest")
