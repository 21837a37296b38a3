"""What an operator host in a process of its own goes by: the names of its topics, and of its places in the store.

    QUERY.orders.REPLICA     orders of a replica's instances, a partition each (reconcile.orders)
    QUERY.answers.REPLICA    what became of them, in the same partitions
    INSTANCE/host            in the checkpoint store: a host's snapshots, by the offset of the next order
    INSTANCE/copy            copies of the state on their way to being an instance's checkpoints, by number
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from boreal.query.plan import Plan
from reconcile.engine import LATENCY_GUESS_US, least_threshold_us
from reconcile.events import InstanceId

JOB_FACTS = (
    "ready",
    "start_s",
    "batch_ms",
    "batch_parts_ms",
    "batch_orders",
    "orders_per_s",
    "rows_per_s",
    "shards",
    "rss_bytes",
)
"""What a Spark job says of how it gets on: docs/spark.md, "How a job gets on"."""


def orders_topic(query: str, replica: str) -> str:
    return f"{query}.orders.{replica}"


def answers_topic(query: str, replica: str) -> str:
    return f"{query}.answers.{replica}"


def host_owner(who: InstanceId) -> str:
    """Whose the snapshots of an instance's host are, in the checkpoint store."""
    return f"{who}/host"


def copy_owner(who: InstanceId) -> str:
    """Whose the copies are that an instance's host has made, in the checkpoint store."""
    return f"{who}/copy"


def facts_of_job(status: Mapping[str, Any]) -> dict[str, Any]:
    """JOB_FACTS of what a job's process has said; None for what it has not."""
    return {fact: status.get(fact) for fact in JOB_FACTS}


def expected_threshold_us(plan: Plan) -> int:
    """The smallest X that a query is expected to meet, by what its hosts in other processes are taken to need before any was
    measured: those that follow each other on the longest way to the client."""
    taken: dict[str, int] = {}
    for fragment in plan.fragments:
        before = max((taken.get(edge.operator, 0) for edge in fragment.edges), default=0)
        own = 0 if set(fragment.engines) == {"native"} else LATENCY_GUESS_US * 3 // 2
        spread = plan.spread_us(fragment)
        taken |= {edge.operator: before + own + spread for edge in fragment.outputs}
    return least_threshold_us(plan, taken[plan.output.operator])
