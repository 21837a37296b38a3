"""All topics and their settings. docs/topics.md says which process writes, reads and trims them.

Topics are created only here. An existing topic with other settings is rejected: a log that Kafka compacts, or deletes by age,
would lose rows without an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import NoError, TopicAlreadyExistsError, for_code

from boreal.model.errors import UserError
from deployment.events import KEPT_MS
from deployment.layout import Layout
from deployment.operator_hosts import answers_topic, orders_topic
from deployment.query_record import public_name
from services.kafka.clusters import Cluster

QUERIES = "boreal.queries"
STATUS = "boreal.status"
CLOCK = "boreal.clock"
EVENTS = "boreal.events"
PLACEMENT = "boreal.placement"

FOR_EVER = "-1"
_HOUR_MS = str(3_600_000)
_DAY_MS = str(24 * 3_600_000)
_SEGMENT_MS = str(600_000)
"""Kafka cleans closed segments only. For a retention of an hour, segments must close sooner than after Kafka's default week."""

_FRAME_BYTES = str(64 << 20)

_AT_CREATION = {"segment.index.bytes": str(256 << 10)}
"""Settings of topics that boreal creates; those that exist may have others. With its first entry an index lets the system
fill as much of it as it reads ahead: up to 10 MB of zeros by default, 10 ms of processor time for each of a topic's two.
This is enough for 80 MB of small batches, and Kafka begins a new segment then. It must not be reduced later: a broker that was
killed would not find room for what its segments hold, and would not start."""


@dataclass(frozen=True)
class TopicSpec:
    """The required settings of a topic."""

    name: str
    """Name of the topic."""
    partitions: int
    """Number of partitions."""
    config: dict[str, str] = field(default_factory=dict)
    """Kafka settings that boreal depends on; the cluster decides all others."""
    is_users: bool = False
    """Whether it is a topic of a user, which may have any settings if it exists."""

    @property
    def created_with(self) -> dict[str, str]:
        """The settings that it gets if boreal creates it."""
        return {**self.config, **_AT_CREATION}


def control_topic(query: str) -> str:
    """Name of a query's control topic."""
    return f"{query}.control"


def stable_topic(query: str) -> str:
    """Name of the topic with a query's stable rows."""
    return f"{query}.stable"


def debezium_topic(query: str) -> str:
    """The changes of the row of each key, in Debezium's envelopes, for a query that asks for them."""
    return f"{query}.debezium"


def records_topic(query: str) -> str:
    """The stable rows in the format of the query's `records`."""
    return f"{query}.records"


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
        TopicSpec(PLACEMENT, 1, {**_CLIENTS, "cleanup.policy": "compact"}),
    ]


def query_topics(layout: Layout) -> dict[str, list[TopicSpec]]:
    """The topics of one query, by site, and of the sources that it reads; of a version with a name of its own
    (`deployment.query_record.inner_name`) those that are not the query's."""
    query = layout.plan.query
    is_first = query == public_name(query)
    found: dict[str, dict[str, TopicSpec]] = {site: {} for site in layout.sites}

    def add(site: str, spec: TopicSpec) -> None:
        found[site][spec.name] = spec

    for log_id in layout.log_ids():
        add(layout.site_of(log_id), TopicSpec(layout.topic_of(log_id), layout.partitions_of(log_id), _LOG))
    for replica in layout.replicas:
        count = len(layout.remote_instances(replica))
        if count:
            orders = orders_topic(query, replica, layout.plan.own_application)
            add(layout.site_of_replica(replica), TopicSpec(orders, count, _ORDERS))
            add(layout.site_of_replica(replica), TopicSpec(answers_topic(query, replica), count, _ANSWERS))
    for site in layout.sites:
        for name in (query, *sorted(layout.named_sources)):
            add(site, TopicSpec(control_topic(name), 1, _CONTROL))
        if is_first:
            add(site, TopicSpec(out_topic(query, site, layout.sites), 1, _CLIENTS))
    if is_first:
        add(layout.home, TopicSpec(stable_topic(query), 1, _CLIENTS))
    if layout.plan.records is not None and is_first:
        add(layout.home, TopicSpec(records_topic(query), 1, _CLIENTS))
    if layout.plan.latest and is_first:
        add(layout.home, TopicSpec(latest_topic(query), 1, {**_CLIENTS, "cleanup.policy": "compact"}))
    if layout.plan.debezium and is_first:
        add(layout.home, TopicSpec(debezium_topic(query), 1, {**_CLIENTS, "cleanup.policy": "compact"}))
    for site in (layout.home, *layout.away.values()):
        add(site, TopicSpec(dead_letter_topic(public_name(query)), 1, {"cleanup.policy": "delete"}))
    return {site: list(specs.values()) for site, specs in found.items()}


@dataclass(frozen=True)
class TopicProblem:
    """What is wrong with a topic that exists."""

    topic: str
    """Name of the topic."""
    found: str | int
    """What it has: `KEY=VALUE, ...`, or its number of partitions."""
    problem: str
    """What is wrong, as the predicate of a sentence about the topic."""
    fix: str
    """What puts it right."""
    settings: Mapping[str, str]
    """The settings that must be others, with what they must be; none if settings do not help."""


@dataclass(frozen=True)
class TopicFindings:
    """What a cluster has of the topics that boreal needs."""

    absent: tuple[TopicSpec, ...]
    """Topics that do not exist."""
    problems: tuple[TopicProblem, ...]
    """All that is wrong with those that do."""


def examine(cluster: Cluster, specs: Sequence[TopicSpec], inputs: Collection[str] = ()) -> TopicFindings:
    """Compare the topics of a cluster with those that are needed. Changes nothing. inputs: topics of users, which may have any
    settings if they exist."""
    with closing(cluster.make_admin()) as admin:
        known = set(admin.list_topics())
        there = [spec for spec in specs if spec.name in known]
        wanted = (*specs, *(TopicSpec(name, 1, is_users=True) for name in sorted(inputs)))
        absent = tuple(spec for spec in wanted if spec.name not in known)
        return TopicFindings(absent, tuple(_problems(admin, there)))


def ensure(cluster: Cluster, specs: Sequence[TopicSpec]) -> list[TopicSpec]:
    """Create absent topics, and return them. UserError, and nothing is created, if a topic exists with another number of
    partitions or another setting; it names all of them."""
    findings = examine(cluster, specs)
    refuse(findings.problems)
    create(cluster, findings.absent)
    return list(findings.absent)


def create(cluster: Cluster, absent: Sequence[TopicSpec]) -> None:
    """Create topics that were absent. UserError if one exists by now with other settings: another client may have created it
    since, or a broker may not have known yet that it exists."""
    if absent:
        with closing(cluster.make_admin()) as admin:
            existed = [spec for spec in _create(admin, {spec.name: spec for spec in absent}) if not spec.is_users]
            refuse(tuple(_problems(admin, existed)))


def refuse(problems: Sequence[TopicProblem]) -> None:
    """UserError that names all problems, if there are any."""
    if len(problems) == 1:
        [wrong] = problems
        raise UserError(f"topic {wrong.topic}", wrong.found, wrong.problem, wrong.fix)
    if problems:
        told = "; ".join(f"{wrong.topic} {wrong.problem}" for wrong in problems)
        raise UserError(
            "topics",
            [wrong.topic for wrong in problems],
            f"{len(problems)} exist with other settings than boreal needs: {told}",
            "; ".join(wrong.fix for wrong in problems),
        )


def delete(cluster: Cluster, names: list[str]) -> None:
    """Delete those of these topics that exist."""
    with closing(cluster.make_admin()) as admin:
        known = set(admin.list_topics())
        found = [name for name in names if name in known]
        if found:
            admin.delete_topics(found)


def _create(admin: KafkaAdminClient, absent: dict[str, TopicSpec]) -> list[TopicSpec]:
    """Create topics, and return those that existed."""
    wanted = {name: {"num_partitions": spec.partitions, "configs": spec.created_with} for name, spec in absent.items()}
    result = admin.create_topics(wanted, raise_errors=False)
    existed = []
    for topic in result["topics"]:
        error = for_code(topic["error_code"])
        if error is TopicAlreadyExistsError:
            existed.append(absent[topic["name"]])
        elif error is not NoError:
            raise error(f"topic {topic['name']} cannot be created: {topic['error_message']}")
    admin.wait_for_topics(list(absent))
    return existed


def _problems(admin: KafkaAdminClient, specs: Sequence[TopicSpec]) -> Iterator[TopicProblem]:
    names = [spec.name for spec in specs]
    if not names:
        return  # Kafka would describe all topics
    partitions = {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics(names)}
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names], config_filter="all")
    for spec in specs:
        if partitions[spec.name] != spec.partitions:
            yield TopicProblem(
                spec.name,
                partitions[spec.name],
                f"has {partitions[spec.name]} partitions instead of {spec.partitions}",
                f"delete the topic {spec.name}, or give the query another name",
                {},
            )
            continue
        found = {key: str(described["topic"][spec.name][key]["value"]) for key in spec.config}
        wrong = {key: value for key, value in spec.config.items() if sorted(found[key].split(",")) != sorted(value.split(","))}
        if wrong:
            must = ", ".join(f"{key} must be {value}" for key, value in wrong.items())
            has = ", ".join(f"{key}={found[key]}" for key in wrong)
            yield TopicProblem(spec.name, has, must, f"run {alter_command(spec.name, wrong)}", wrong)


def alter_command(topic: str, settings: Mapping[str, str], bootstrap: str | None = None) -> str:
    """The command of Kafka's tools that changes settings of a topic. bootstrap: the brokers' address; None leaves it out."""
    where = f" --bootstrap-server {bootstrap}" if bootstrap else ""
    return f"kafka-configs{where} --alter --entity-type topics --entity-name {topic} --add-config {settings_text(settings)}"


def settings_text(config: Mapping[str, str]) -> str:
    """Settings as Kafka's tools take them. A value with commas stands in brackets."""
    return ",".join(f"{key}=[{value}]" if "," in value else f"{key}={value}" for key, value in config.items())
