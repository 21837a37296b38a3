"""Operator hosts in separate processes: the names of their topics and of their entries in the checkpoint store.

    QUERY.orders.REPLICA     orders of a replica's instances, one partition per instance (reconcile.orders)
    QUERY.answers.REPLICA    answers to the orders, in the same partitions
    INSTANCE/host            checkpoint store: snapshots of a host, by the offset of the next order
    INSTANCE/copy            checkpoint store: copies of the state that will become checkpoints of the instance, by number
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from boreal.query.planner import Overrides, plan
from boreal.query.running import least_that_suffices
from boreal.query.spec import Intervals, Query
from deployment.status_fields import JOB
from reconcile.engine import LATENCY_GUESS_US, least_threshold_us
from reconcile.events import InstanceId


def orders_topic(query: str, replica: str, own_application: bool = False) -> str:
    """Name of the topic with the orders of a replica's instances. own_application: see `Plan`. A shared application reads all
    topics whose names end as those of shared orders do, so these end otherwise."""
    return f"{query}.{'own-' if own_application else ''}orders.{replica}"


def answers_topic(query: str, replica: str) -> str:
    """Name of the topic with the answers to a replica's orders."""
    return f"{query}.answers.{replica}"


def host_owner(who: InstanceId) -> str:
    """The name under which the checkpoint store keeps the snapshots of an instance's host."""
    return f"{who}/host"


def copy_owner(who: InstanceId) -> str:
    """The name under which the checkpoint store keeps the state copies that an instance's host has made."""
    return f"{who}/copy"


def facts_of_job(status: Mapping[str, Any]) -> dict[str, Any]:
    """What a job's process has said of how it gets on (`status_fields.JOB`); None for what it has not."""
    return {fact: status.get(fact) for fact in JOB}


def expected_threshold_us(query: Query) -> int:
    """The smallest X (us) that a query is expected to meet. Assumes LATENCY_GUESS_US for hosts in other processes, summed over
    the longest path to the client, since nothing has been measured yet."""
    return least_that_suffices(lambda threshold: _needed_us(query, query.tuning.intervals(threshold)))


def _needed_us(query: Query, intervals: Intervals) -> int:
    """The smallest X (us) that is expected to be met with these intervals."""
    found = plan(query, Overrides(bucket_us=intervals.bucket, boundary_interval_us=intervals.boundary_interval))
    taken: dict[str, int] = {}
    for fragment in found.fragments:
        before = max((taken.get(edge.operator, 0) for edge in fragment.edges), default=0)
        own = 0 if set(fragment.engines) == {"native"} else LATENCY_GUESS_US * 3 // 2
        spread = found.spread_us(fragment)
        taken |= {edge.operator: before + own + spread for edge in fragment.outputs}
    return least_threshold_us(found, taken[found.output.operator])
