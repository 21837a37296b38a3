"""What the roles of one process share to reach Kafka: clients cost threads, memory and requests, also while nothing happens."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from boreal.model.errors import UserError
from boreal.model.frames import LogId
from boreal.model.lazy import lazy_once
from deployment.corrections import TellCorrection, tell_nobody
from deployment.layout import Layout
from deployment.query_record import QueryRecord
from intake.calm import CALM_S
from reconcile.events import InstanceId
from services.hosting.commits import CommitPace
from services.hosting.host_loop import HostLoop
from services.hosting.process import QueryProcess, StatusDesk, StatusPublisher, StopSignal, now_us, run_process, set_clock
from services.hosting.starts import Starts
from services.hosting.traces import OtelTraces, open_traces
from services.hosting.turns import Turns
from services.kafka.clusters import Cluster, make_clusters
from services.kafka.control_desk import ControlDesk
from services.kafka.end_desk import EndDesk
from services.kafka.gathering import FEW_LOGS, FEW_SOURCES, GatherPace
from services.kafka.load import Load
from services.kafka.queries import QueryRegistry, SharedWatch
from services.kafka.settings import ServiceSettings, load_settings
from services.storage.log_clients import LogClients
from services.storage.log_reader import LogPath
from services.storage.near_logs import NearLogs
from services.storage.record_group import RecordGroups
from services.storage.shared_reader import SharedReader

CALM_POLL_MS = 100
"""How soon a source learns that what came to a calm topic is no record, but the mark of a transaction."""


@dataclass(frozen=True, slots=True)
class TopicClients:
    """How a process reaches the users' topics of one site."""

    cluster: Cluster
    """The site's Kafka, for a client of a source's own."""
    ends: EndDesk
    """Asks where topics end."""
    calm: SharedReader
    """Reads those topics that are calm, without what was not committed."""
    groups: RecordGroups
    """Read the others, where librdkafka does."""

    def close(self) -> None:
        self.calm.close()
        self.groups.close()
        self.ends.close()


class Connections:
    """The connections of one process, or of one role whose links to the sites are its own."""

    def __init__(self, settings: ServiceSettings, client_id: str, counts_children: bool = False) -> None:
        """client_id: name of the process in Kafka's logs and metrics. counts_children: see `Resources`."""
        pa.array(pa.array([0]).to_numpy())  # the first conversion imports modules, for which the first rows would wait
        self.settings = settings
        """The settings of the process."""
        self.clusters = make_clusters(settings, client_id)
        """Each site's Kafka, by the site's name."""
        self.home = self.clusters[settings.home]
        """The home site's Kafka."""
        log_pace = GatherPace(FEW_LOGS, lambda: self.load.degree())
        self.load = Load(lambda: log_pace.has_many)
        """Whether the process gathers what can wait."""
        self.commits = CommitPace(self.load.degree)
        """How often its egresses commit transactions."""
        self.gathering = GatherPace(FEW_SOURCES, self.load.degree)
        """To what degree its sources let rows gather."""
        self.turns = Turns()
        """The turns of the roles that have rows."""
        self.starts = Starts()
        """The turns of the roles that begin."""
        self.making = threading.RLock()
        """What few roles need is made once, when it is first used."""
        self._client_id = client_id
        self.logs = LogClients(self.clusters, log_pace)
        """The clients that write and search logs."""
        self._paths = {
            site: LogPath.to(cluster, self.logs.local[site], self.logs.ends[site]) for site, cluster in self.clusters.items()
        }
        self._stream_paths: dict[str, LogPath] = {}
        self._topics = {site: _topic_clients(cluster) for site, cluster in self.clusters.items()}
        self.controls = {site: ControlDesk(cluster, self.load.degree) for site, cluster in self.clusters.items()}
        """Write and read the control topics of each site."""
        self.host_loop = HostLoop()
        """Runs the instances that get few rows at a time."""
        self.registry = QueryRegistry(self.home)
        """The records of queries."""
        self.watch = SharedWatch(self.registry)
        """Tells of changes of these records."""
        self.statuses = StatusDesk(self.home, counts_children, self.load.degree)
        """Publishes what the roles say of themselves."""

    @lazy_once
    def _traces(self) -> OtelTraces | None:
        return open_traces(self._client_id)

    @property
    def tell_correction(self) -> TellCorrection:
        """To be called after each correction of an instance. UserError if what it needs is not installed."""
        return tell_nobody if self._traces is None else self._traces.tell

    def close(self) -> None:
        """Close all. Call when no role uses it any more."""
        if (traces := self.__dict__.get("_traces")) is not None:
            traces.close()
        self.watch.close()
        self.host_loop.close()
        self.statuses.close()
        self.registry.close()
        self.logs.close()
        for path in (*self._paths.values(), *self._stream_paths.values()):
            path.close()
        for clients in self._topics.values():
            clients.close()
        for desk in self.controls.values():
            desk.close()

    def topics_of(self, site: str) -> TopicClients:
        """How to reach the users' topics of a site."""
        return self._topics[site]

    def near_logs(self, layout: Layout, who: InstanceId) -> NearLogs:
        """Which logs are nearest to an instance of this process."""
        return NearLogs(lambda log: self.path_to(log, layout), layout, who)

    def path_to(self, log: LogId, layout: Layout) -> LogPath:
        """How to read a log: with all other logs of its site, unless its stream has a proxy of its own. Such a process runs one
        role."""
        site, proxy = layout.site_of(log), self.settings.stream_proxies.get(log.stream)
        if proxy is None:
            return self._paths[site]
        if log.stream not in self._stream_paths:
            cluster = Cluster(site, self.settings, self._client_id, proxy)
            self._stream_paths[log.stream] = LogPath.to(cluster)
        return self._stream_paths[log.stream]


def _topic_clients(cluster: Cluster) -> TopicClients:
    calm = SharedReader(cluster, CALM_S, CALM_POLL_MS, read_committed=True)
    return TopicClients(cluster, EndDesk(cluster, now_us), calm, RecordGroups())


MakeRole = Callable[[Connections, str, QueryRecord, str], QueryProcess]
"""make(connections, name, record, part): a role of the query with this record, which has not begun; part: such as a replica."""


def make_role(make: MakeRole, connections: Connections, name: str, record: QueryRecord, part: str) -> QueryProcess:
    """The role. UserError if its query cannot run in this process, such as with an operator of a package that is installed
    elsewhere only. A node says so in its status, since it ends before it says anything else; others have no field for it."""
    try:
        return make(connections, name, record, part)
    except UserError as error:
        if name.startswith("node."):
            said = {"ready": False, "problem": str(error), "instances": []}
            with closing(StatusPublisher(connections.home, name, lambda: said, connections.statuses)) as status:
                status.deliver()
        raise


def run_query_process(kind: str, make: MakeRole) -> None:
    """The main function of a process that runs one role, whose arguments are a query and a part of it: see `run_process`. The
    role is made after logging, signals and the clock are set up."""
    query, part = sys.argv[1:]
    name = f"{kind}.{query}.{part}"

    def serve(stopping: StopSignal) -> int:
        settings = load_settings()
        set_clock(settings, name)
        connections = Connections(settings, name)
        return make_role(make, connections, name, _find_record(connections.registry, kind, query, part), part).serve(stopping)

    run_process(name, serve)


def _find_record(registry: QueryRegistry, kind: str, query: str, part: str) -> QueryRecord:
    """The record by which a role runs. An egress is the query's, and goes from one version of it to another; a source may be
    read by several versions, also of other queries; all others are of one version."""
    match kind:
        case "egress":
            return registry.find(query)
        case "source":
            return registry.find_source(query, part)
        case _:
            return registry.find_version(query)
