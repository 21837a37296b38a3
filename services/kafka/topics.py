"""All topics and their settings. docs/topics.md says which process writes, reads and trims them.

Topics are created only here. An existing topic with other settings is rejected: a log that Kafka compacts, or deletes by age,
would lose rows without an error.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import NoError, TopicAlreadyExistsError, for_code

from boreal.model.errors import UserError
from deployment.events import KEPT_MS
from deployment.layout import Layout
from deployment.operator_hosts import answers_topic, orders_topic
from services.kafka.clusters import Cluster

QUERIES = "boreal.queries"
STATUS = "boreal.status"
CLOCK = "boreal.clock"
EVENTS = "boreal.events"

FOR_EVER = "-1"
_HOUR_MS = str(3_600_000)
_DAY_MS = str(24 * 3_600_000)
_SEGMENT_MS = str(600_000)
"""Kafka cleans closed segments only. For a retention of an hour, segments must close sooner than after Kafka's default week."""

_FRAME_BYTES = str(64 << 20)


@dataclass(frozen=True)
class TopicSpec:
    """The required settings of a topic."""

    name: str
    """Name of the topic."""
    partitions: int
    """Number of partitions."""
    config: dict[str, str] = field(default_factory=dict)
    """Kafka settings that boreal depends on; the cluster decides all others."""


def control_topic(query: str) -> str:
    """Name of a query's control topic."""
    return f"{query}.control"


def stable_topic(query: str) -> str:
    """Name of the topic with a query's stable rows."""
    return f"{query}.stable"


def latest_topic(query: str) -> str:
    """Name of the compacted topic with the newest row of each key."""
    return f"{query}.latest"


def dead_letter_topic(query: str) -> str:
    """Name of a query's dead-letter topic."""
    return f"{query}.dlq"


def out_topic(query: str, site: str, sites: tuple[str, ...]) -> str:
    """Name of the topic that a site's egress writes: q.out if there is one site, q.out.SITE if there are several."""
    return f"{query}.out" if len(sites) == 1 else f"{query}.out.{site}"


_STATUS = {
    "cleanup.policy": "compact,delete",
    "retention.ms": _HOUR_MS,
    "segment.ms": _SEGMENT_MS,
    "min.cleanable.dirty.ratio": "0.1",
}
_CLOCK = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": _HOUR_MS,
    "segment.ms": _SEGMENT_MS,
}
_EVENTS = {"cleanup.policy": "delete", "retention.ms": str(KEPT_MS), "segment.ms": _DAY_MS}
_CLIENTS = {"cleanup.policy": "delete", "max.message.bytes": _FRAME_BYTES}
_LOG = {
    "cleanup.policy": "delete",
    "retention.ms": FOR_EVER,
    "retention.bytes": FOR_EVER,
    "segment.ms": _HOUR_MS,
    "max.message.bytes": _FRAME_BYTES,
}
_ORDERS = {**_LOG, "segment.bytes": str(64 << 20), "segment.ms": _SEGMENT_MS}
_ANSWERS = {
    "cleanup.policy": "delete",
    "retention.ms": _HOUR_MS,
    "segment.bytes": str(64 << 20),
    "segment.ms": _SEGMENT_MS,
    "max.message.bytes": _FRAME_BYTES,
}
_CONTROL = {"cleanup.policy": "delete", "retention.ms": _HOUR_MS, "segment.ms": _SEGMENT_MS}


def system_topics() -> list[TopicSpec]:
    """The topics of the whole installation, at the home site."""
    return [
        TopicSpec(QUERIES, 1, {"cleanup.policy": "compact"}),
        TopicSpec(STATUS, 1, _STATUS),
        TopicSpec(CLOCK, 1, _CLOCK),
        TopicSpec(EVENTS, 1, _EVENTS),
    ]


def query_topics(layout: Layout) -> dict[str, list[TopicSpec]]:
    """The topics of one query, by site."""
    query = layout.plan.query
    found: dict[str, dict[str, TopicSpec]] = {site: {} for site in layout.sites}

    def add(site: str, spec: TopicSpec) -> None:
        found[site][spec.name] = spec

    for log_id in layout.log_ids():
        add(layout.site_of(log_id), TopicSpec(layout.topic_of(log_id), layout.partitions_of(log_id), _LOG))
    for replica in layout.replicas:
        count = len(layout.remote_instances(replica))
        if count:
            add(layout.site_of_replica(replica), TopicSpec(orders_topic(query, replica), count, _ORDERS))
            add(layout.site_of_replica(replica), TopicSpec(answers_topic(query, replica), count, _ANSWERS))
    for site in layout.sites:
        add(site, TopicSpec(control_topic(query), 1, _CONTROL))
        add(site, TopicSpec(out_topic(query, site, layout.sites), 1, _CLIENTS))
    add(layout.home, TopicSpec(stable_topic(query), 1, _CLIENTS))
    if layout.plan.latest:
        add(layout.home, TopicSpec(latest_topic(query), 1, {**_CLIENTS, "cleanup.policy": "compact"}))
    for site in (layout.home, *layout.away.values()):
        add(site, TopicSpec(dead_letter_topic(query), 1, {"cleanup.policy": "delete"}))
    return {site: list(specs.values()) for site, specs in found.items()}


def ensure(cluster: Cluster, specs: list[TopicSpec]) -> None:
    """Create absent topics. UserError if a topic exists with another number of partitions or another setting."""
    with closing(cluster.make_admin()) as admin:
        known = set(admin.list_topics())
        absent = {spec.name: spec for spec in specs if spec.name not in known}
        if absent:
            _create(admin, absent)
        _check(admin, [spec for spec in specs if spec.name in known])


def delete(cluster: Cluster, names: list[str]) -> None:
    """Delete those of these topics that exist."""
    with closing(cluster.make_admin()) as admin:
        known = set(admin.list_topics())
        found = [name for name in names if name in known]
        if found:
            admin.delete_topics(found)


def _create(admin: KafkaAdminClient, absent: dict[str, TopicSpec]) -> None:
    wanted = {name: {"num_partitions": spec.partitions, "configs": spec.config} for name, spec in absent.items()}
    result = admin.create_topics(wanted, raise_errors=False)
    for topic in result["topics"]:
        error = for_code(topic["error_code"])
        # Another process may have created the same topic at the same moment.
        if error not in (NoError, TopicAlreadyExistsError):
            raise error(f"topic {topic['name']} cannot be created: {topic['error_message']}")
    admin.wait_for_topics(list(absent))


def _check(admin: KafkaAdminClient, specs: list[TopicSpec]) -> None:
    if not specs:
        return
    names = [spec.name for spec in specs]
    partitions = {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics(names)}
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names], config_filter="all")
    for spec in specs:
        if partitions[spec.name] != spec.partitions:
            raise UserError(
                f"topic {spec.name}",
                partitions[spec.name],
                f"has {partitions[spec.name]} partitions instead of {spec.partitions}",
                "delete the topic, or give the query another name",
            )
        settings = described["topic"][spec.name]
        for key, value in spec.config.items():
            found = str(settings[key]["value"])
            if sorted(found.split(",")) != sorted(value.split(",")):
                raise UserError(
                    f"topic {spec.name}",
                    f"{key}={found}",
                    f"{key} must be {value}",
                    f"run kafka-configs --alter --entity-type topics --entity-name {spec.name} --add-config {key}={value}",
                )
