"""From where a version may read the logs of another one's sources (`deployment.shared_sources`), as the logs say it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from boreal.model.errors import UserError
from boreal.model.frames import Anchor
from boreal.query.plan import EGRESS
from deployment.layout import Layout
from deployment.shared_sources import first_rows, newest
from logs.restart import oldest_anchor
from reconcile.events import InstanceId
from services.kafka.clusters import Cluster
from services.storage.kafka_log import KafkaLogStore


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
        for log in layout.logs_of_sources:
            if not logs.is_held([log], first_ids[log.key]):
                problem = f"has lost the rows from {first_ids[log.key]} on, which the version that runs needs"
                raise UserError(f"log {log.key}", None, problem, "roll back, and evolve from earliest")
    return first_ids, reach
