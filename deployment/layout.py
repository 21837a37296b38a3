"""Where the parts of a query are: which site keeps which log, and under which names.

Replica r0 of every fragment runs at the first site, r1 at the next, and so on, round-robin. A source runs at the site of its
stream's topic. Every site has its own egress (R28). All other single parts are at the home site, which is the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from boreal.model.errors import UserError
from boreal.model.frames import LogId
from boreal.query.plan import EGRESS, Edge, Fragment, Plan
from boreal.query.planner import Overrides, plan
from boreal.query.spec import Query, did_you_mean
from deployment.query_record import QueryRecord
from reconcile.events import InstanceId
from reconcile.stagger import HEARTBEATS_TO_DEATH

CALM_SHARE, MOST_CALM_PAUSE_US = 5, 2_000_000
"""How much longer than usual who has no rows may be silent: such a part of X, at most so long. Each of its boundaries costs a
request of its own, and as many reads, with nothing to say but how late it is."""
LEAST_CALM_THRESHOLD_US = 2_000_000
"""The smallest X that leaves the time for it: who dies meanwhile is found out that much later."""

_PLAIN = re.compile(r"[A-Za-z0-9_]")


@dataclass(frozen=True)
class Layout:
    """The assignment of a query's parts to sites."""

    plan: Plan
    """The query's plan."""
    sites: tuple[str, ...]
    """Names of the sites in order, the home site first."""
    away: Mapping[str, str] = field(default_factory=dict)
    """Site by stream, for streams whose topic is not at the home site."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """By stream, the name of the sources that write its logs, where they are not this version's own: of an earlier version, or
    of another query (`QueryRecord.sources_of`)."""

    def sources_of(self, stream: str) -> str:
        """What names the source of a stream, its logs and its control topic."""
        return self.shared.get(stream, self.plan.query)

    @cached_property
    def named_sources(self) -> frozenset[str]:
        """The names of all sources that are read."""
        return frozenset(self.sources_of(edge.operator) for edge in self.plan.sources)

    def source_role(self, stream: str) -> str:
        """The name of the role that is a stream's source."""
        return f"source.{self.sources_of(stream)}.{stream}"

    def sources_of_log(self, key: str) -> str | None:
        """What names the sources that write the log of a 'stream/partition'; None if these are no sources."""
        edge = self._source_edges.get(key.rpartition("/")[0])
        return None if edge is None else self.sources_of(edge.operator)

    @property
    def home(self) -> str:
        """The home site."""
        return self.sites[0]

    def site_of_replica(self, replica: str) -> str:
        """The site where a replica runs."""
        return self.sites[int(replica[1:]) % len(self.sites)]

    def site_of_stream(self, stream: str) -> str:
        """The site of a source stream's topic, where its source runs."""
        return self.away.get(stream, self.home)

    def site_of(self, log: LogId) -> str:
        """The site whose Kafka stores a log: the site of its writer."""
        return self.site_of_replica(log.replica) if log.replica else self.site_of_stream(self._edges[log.stream].operator)

    def topic_of(self, log: LogId) -> str:
        """The topic of a log: QUERY.log.STREAM for a source, QUERY.log.STREAM.REPLICA for a replica. The partition is the
        log's."""
        owner = self.plan.query if log.replica else self.sources_of(self._edges[log.stream].operator)
        parts = [owner, "log", escape(log.stream), *([escape(log.replica)] if log.replica else [])]
        return ".".join(parts)

    def partitions_of(self, log: LogId) -> int:
        """Number of partitions of a log's topic."""
        edge = self._edges[log.stream]
        return edge.producers * edge.partitions

    @cached_property
    def _source_edges(self) -> dict[str, Edge]:
        return {edge.name: edge for edge in self.plan.sources}

    @cached_property
    def _edges(self) -> dict[str, Edge]:
        return {edge.name: edge for edge in (*self.plan.sources, *self._outputs)}

    @cached_property
    def _outputs(self) -> dict[Edge, Fragment]:
        return {edge: fragment for fragment in self.plan.fragments for edge in fragment.outputs}

    def replicas_of(self, stream: str) -> tuple[str, ...]:
        """The replicas that write a logged stream; ('',) for a source."""
        return next((fragment.replicas for edge, fragment in self._outputs.items() if edge.name == stream), ("",))

    def log_ids(self) -> list[LogId]:
        """Every internal log of the query: of the sources and of all fragments except the egress."""
        edges = [edge for edge in self._edges.values() if edge.name != self.plan.output.name]
        return sorted(
            LogId(edge.name, replica, partition)
            for edge in edges
            for replica in self.replicas_of(edge.name)
            for partition in range(edge.producers * edge.partitions)
        )

    def source_logs(self, stream: str) -> list[tuple[Edge, LogId]]:
        """The logs that a stream's source writes, each with its edge."""
        edges = [edge for edge in self.plan.sources if edge.operator == stream]
        return [(edge, LogId(edge.name, "", partition)) for edge in edges for partition in range(edge.partitions)]

    @property
    def logs_of_sources(self) -> list[LogId]:
        """The logs that sources write."""
        return [LogId(edge.name, "", partition) for edge in self.plan.sources for partition in range(edge.partitions)]

    def own_logs(self, who: InstanceId) -> list[LogId]:
        """The logs that an instance writes."""
        return [
            LogId(edge.name, who.replica, edge.partition(who.shard, reader))
            for edge in self.plan.fragment(who.fragment).outputs
            for reader in range(edge.partitions)
        ]

    def input_logs(self, who: InstanceId) -> dict[str, list[LogId]]:
        """The inputs of an instance: by 'stream/partition', the log of each replica that writes it."""
        return {
            f"{edge.name}/{edge.partition(producer, who.shard)}": [
                LogId(edge.name, replica, edge.partition(producer, who.shard)) for replica in self.replicas_of(edge.name)
            ]
            for edge in self.plan.fragment(who.fragment).edges
            for producer in range(edge.producers)
        }

    @property
    def replicas(self) -> tuple[str, ...]:
        """All replica names of the query, over all fragments except the egress."""
        found = {replica for fragment in self.plan.fragments if fragment.name != EGRESS for replica in fragment.replicas}
        return tuple(sorted(found, key=lambda replica: int(replica[1:])))

    def instances(self, replica: str) -> list[InstanceId]:
        """The instances that one replica runs: every shard of every fragment with this replica."""
        return [
            InstanceId(fragment.name, replica, shard)
            for fragment in self.plan.fragments
            if fragment.name != EGRESS and replica in fragment.replicas
            for shard in range(fragment.shards)
        ]

    def remote_instances(self, replica: str) -> list[InstanceId]:
        """Those of `instances` whose operators run in a separate process, in the order of the partitions of its topics."""
        return [who for who in self.instances(replica) if self.plan.fragment(who.fragment).engine_of(replica) != "native"]

    def egress_instance(self, site: str) -> InstanceId:
        """The name of a site's egress as an instance."""
        return InstanceId(EGRESS, f"r{self.sites.index(site)}", 0)

    def egress_plan(self, site: str) -> Plan:
        """The plan for a site's egress: the egress has one replica, named after the site's position."""
        own = self.egress_instance(site).replica
        fragments = [replace(f, replicas=(own,)) if f.name == EGRESS else f for f in self.plan.fragments]
        return replace(self.plan, fragments=tuple(fragments))

    @cached_property
    def everyone(self) -> list[InstanceId]:
        """Every instance of the query, and the egress of each site."""
        instances = [who for replica in self.replicas for who in self.instances(replica)]
        return instances + [self.egress_instance(site) for site in self.sites]

    def readers(self) -> dict[str, list[InstanceId]]:
        """The instances that have a claim on each 'stream/partition' (R26, R27)."""
        found: dict[str, list[InstanceId]] = {}
        for who in self.everyone:
            for key in self.input_logs(who):
                found.setdefault(key, []).append(who)
        return found


def make_layout(query: Query, sites: tuple[str, ...], inner: str | None = None) -> Layout:
    """The layout of a query at these sites. UserError if a stream names an unknown site, or the query cannot be planned.
    inner: names its logs and processes (`QueryRecord.inner`); None: the query's name.

    An input counts as missing no sooner than a partner counts as dead: processes share cores, so a pause of a few boundary
    intervals is not a failure. Where X leaves the time, an instance without rows is heard less often (R24).
    """
    away = {name: stream.site for name, stream in query.streams.items() if stream.site is not None}
    for name, site in away.items():
        if site not in sites:
            raise UserError(f"streams.{name}.site", site, "is not a site of this installation", did_you_mean(site, sites))
    patient = HEARTBEATS_TO_DEATH * max(query.intervals.heartbeat, query.intervals.boundary_interval)
    planned = plan(query, Overrides(silence_us=patient, calm_pause_us=_calm_pause_us(query.delay_threshold)))
    return Layout(replace(planned, query=inner or query.name), sites, away)


def _calm_pause_us(delay_threshold_us: int) -> int:
    """For this X."""
    if delay_threshold_us < LEAST_CALM_THRESHOLD_US:
        return 0
    return min(delay_threshold_us // CALM_SHARE, MOST_CALM_PAUSE_US)


def layout_of(record: QueryRecord, sites: tuple[str, ...]) -> Layout:
    """The layout of the version in charge. Errors as `make_layout`."""
    made = make_layout(record.query, sites, record.inner)
    others = {stream: record.sources_of(stream) for stream in record.stream_names}
    return replace(made, shared={stream: name for stream, name in others.items() if name != made.plan.query})


def internal_topics(query: str, names: Iterable[str]) -> re.Pattern[str]:
    """Matches the topics of a query's logs, orders and answers, for all replicas that it has or had. names: its streams and
    operators. It matches no other topics: a user's topic may begin in the same way, such as shop.orders.paid."""
    streams = "|".join(re.escape(escape(name)) for name in names)
    return re.compile(rf"{re.escape(query)}\.(log\.({streams})(-40\w+)?(\.r\d+)?|(orders|own-orders|answers)\.r\d+)", re.ASCII)


def source_topics(sources: str, streams: Iterable[str]) -> re.Pattern[str]:
    """As `internal_topics`, of the logs that sources of this name write of these streams."""
    names = "|".join(re.escape(escape(name)) for name in streams)
    return re.compile(rf"{re.escape(sources)}\.log\.({names})(-40\w+)?", re.ASCII)


def escape(name: str) -> str:
    """A name as part of a topic's name: '.', '-' and characters that Kafka does not allow become -xx, one for each byte."""
    return "".join(c if _PLAIN.fullmatch(c) else "".join(f"-{b:02x}" for b in c.encode()) for c in name)
