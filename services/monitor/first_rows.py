"""From where a version may read the logs of another one's sources, and with which states it begins, as the logs and the
checkpoints say it (`deployment.shared_sources`)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from redis import Redis

from boreal.model.frames import Anchor
from boreal.query.plan import Fragment
from deployment.carried_states import CarriedStates, carry_states, newest_place
from deployment.layout import Layout
from deployment.shared_sources import all_needed, first_rows, lost_rows, newest
from logs.restart import oldest_anchor
from operators.graph import FragmentGraph
from reconcile.events import InstanceId
from services.kafka.clusters import Cluster
from services.storage.history_logs import HistoryLogs
from services.storage.kafka_log import KafkaLogStore
from services.storage.redis_checkpoints import RedisCheckpointStore


def read_first_rows(
    redis: Redis, clusters: Mapping[str, Cluster], running: Layout, new: Layout
) -> tuple[dict[str, int], dict[str, int]]:
    """As `deployment.shared_sources.first_rows`. UserError if the logs no longer hold these rows; KafkaError if a site does not
    answer; StoreUnavailableError."""
    store, needed = RedisCheckpointStore(redis, prefix=running.plan.query), all_needed(new.plan)
    with closing(KafkaLogStore(clusters, running)) as logs:

        def last_anchor(fragment: str, replica: str, shard: int) -> Anchor | None:
            return oldest_anchor([logs.open(log) for log in running.own_logs(InstanceId(fragment, replica, shard))])

        def place(fragment: Fragment, shard: int) -> Anchor | None:
            if FragmentGraph(fragment).unbounded and needed.isdisjoint(edge.name for edge in fragment.edges):
                return newest_place(store, fragment, shard)
            return newest([last_anchor(fragment.name, replica, shard) for replica in fragment.replicas])

        anchors = {
            (fragment.name, shard): place(fragment, shard)
            for fragment in running.plan.fragments
            if any(edge.source for edge in fragment.edges)
            for shard in range(fragment.shards)
        }
        first_ids, reach = first_rows(running.plan, anchors)
        for log in running.logs_of_sources:
            if not logs.is_held([log], first_ids[log.key]):
                raise lost_rows(log.key, first_ids[log.key])
    return first_ids, reach


def read_states(redis: Redis, clusters: Mapping[str, Cluster], running: Layout, new: Layout) -> CarriedStates:
    """As `deployment.carried_states.carry_states`. KafkaError if a site does not answer; StoreUnavailableError."""
    former, store = RedisCheckpointStore(redis, prefix=running.plan.query), RedisCheckpointStore(redis, prefix=new.plan.query)
    of_sources = {log.key: log for log in running.logs_of_sources}
    with closing(KafkaLogStore(clusters, running)) as logs, HistoryLogs(clusters, running) as history:
        return carry_states(
            former,
            store,
            running.plan,
            new.plan,
            history.place_of,
            lambda key, first_id: logs.is_held([of_sources[key]], first_id),
        )
