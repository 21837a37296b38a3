"""A query deployed for a test or a benchmark: real servers, the real processes, and a link from each process to each site.

Processes run with the supervisor's commands, and are restarted when they die, as by the supervisor; the test feeds rows,
injects faults, and compares the clients' results with those of the rows.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
from kafka import TopicPartition

from bench.warm_processes import AnyProcess, start_process
from bench.worker_pool import HostedRole, WorkerPool
from boreal.query.spec import load_query
from deployment.layout import make_layout
from deployment.placement import HOSTED
from deployment.query_record import QueryRecord
from deployment.supervision import Child
from services.kafka.clusters import Cluster
from services.kafka.queries import QueryRegistry
from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings
from services.kafka.topics import STATUS, TopicSpec, ensure, out_topic, query_topics, stable_topic, system_topics
from services.stack.children import MONITOR, query_children
from services.stack.links import ProxyLink
from services.stack.servers import KafkaServer, RedisServer

ROOT = Path(__file__).resolve().parents[1]
RESTART_AFTER_S = 0.2
PATIENCE_S = 240.0


@dataclass
class DeployedProcess:
    """One process of the deployment, over all its incarnations."""

    name: str
    """As the supervisor names it: KIND.QUERY.PART."""
    begin: Callable[[Mapping[str, str]], AnyProcess | HostedRole]
    """Starts it with this environment."""
    environment: dict[str, str]
    """Variables in addition to our own."""
    links: dict[str, ProxyLink]
    """By site; empty if the process reaches its sites directly."""
    log: Path
    """Gets its output."""
    process: AnyProcess | HostedRole | None = None
    """None before the first start."""
    starts: int = 0
    """How often it was started."""
    codes: list[int] = field(default_factory=list)
    """The exit codes of former incarnations."""
    failpoint: str = ""
    """Where the next incarnation dies; "" for nowhere."""
    is_wanted: bool = True
    """Whether it is restarted when it ends."""

    def start(self) -> None:
        environment = {**os.environ, **self.environment}
        if self.failpoint:
            environment["BOREAL_FAILPOINT"], self.failpoint = self.failpoint, ""
        self.process = self.begin(environment)
        self.starts += 1

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)


class Deployment:
    """See the module's header. Use as a context.

    sites: names in order, the home site first; without: kinds of processes that do not run, because the user of the deployment
    replaces them; beside: another deployment, whose servers and monitor serve this query too; has_links: whether processes
    reach their sites through links, which can be cut and take processor time; partitions: of the streams' topics; workers: how
    many processes share the roles of this query and of those beside it, without links then; 0: each role has its own.
    """

    # Known once the servers have started.
    settings: ServiceSettings
    clusters: dict[str, Cluster]
    registry: QueryRegistry
    children: tuple[Child, ...]

    def __init__(
        self,
        root: Path,
        query: Mapping[str, Any],
        sites: tuple[str, ...] = ("a",),
        without: tuple[str, ...] = (),
        beside: Deployment | None = None,
        has_links: bool = True,
        partitions: int = 1,
        workers: int = 0,
    ) -> None:
        self.root = root
        self.partitions = partitions
        self.has_links = has_links
        self._worker_count = workers
        self.pool: WorkerPool | None = beside.pool if beside else None
        self.without = (*without, "monitor") if beside else without
        self.owns_servers = beside is None
        self.spec = load_query(query)
        self.layout = make_layout(self.spec, sites)
        self.kafka: dict[str, KafkaServer] = beside.kafka if beside else {s: KafkaServer(root / f"kafka-{s}") for s in sites}
        self.redis: RedisServer = beside.redis if beside else RedisServer(root / "redis")
        self.services: dict[str, DeployedProcess] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Deployment:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end_services()
        if self.owns_servers:
            for server in (*self.kafka.values(), self.redis):
                server.stop()

    def end_services(self) -> None:
        """Kill all processes for good; the servers and their data stay."""
        self._stopping.set()
        with self._lock:
            for service in self.services.values():
                service.is_wanted = False
                if service.process is not None and service.process.poll() is None:
                    service.process.kill()
        for service in self.services.values():
            if service.process is not None:
                service.process.wait()
            for link in service.links.values():
                link.close()
        if self.pool is not None and self.owns_servers:
            self.pool.close()

    def _start(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.start(), (*self.kafka.values(), self.redis)))
        self.settings = ServiceSettings(
            sites={site: KafkaSettings(bootstrap=kafka.bootstrap) for site, kafka in self.kafka.items()},
            redis=RedisSettings(url=self.redis.url),
            data=self.root,
        )
        if self._worker_count:
            self.pool = WorkerPool(self.root, self._worker_count, self.settings)
        self.clusters = {site: Cluster(site, self.settings, "test") for site in self.kafka}
        home = self.clusters[self.layout.home]
        ensure(home, system_topics())
        for name, stream in self.spec.streams.items():
            if stream.topic:
                ensure(self.clusters[self.layout.site_of_stream(name)], [TopicSpec(stream.topic, self.partitions)])
        for site, specs in query_topics(self.layout).items():
            ensure(self.clusters[site], specs)
        self.registry = QueryRegistry(home)
        record = QueryRecord(self.spec.name, self.spec.dump(), 1)
        self.registry.put(record)
        sites = self.layout.sites
        self.children = (*query_children(record, sites, sites), MONITOR)
        for child in self.children:
            if child.kind not in self.without:
                self.add(child)
        self._keeper.start()

    def add(self, child: Child, **settings: str) -> None:
        """Start a process, and restart it whenever it ends. settings: more of its environment."""
        links = self.make_links(child)
        environment = {
            "BOREAL_REDIS__URL": self.redis.url,
            "BOREAL_DATA": str(self.root / "data"),
            "PYTHONUNBUFFERED": "1",
            **settings,
        }
        for site, kafka in self.kafka.items():
            environment[f"BOREAL_SITES__{site.upper()}__BOOTSTRAP"] = kafka.bootstrap
            if site in links:
                environment[f"BOREAL_PROXIES__{site.upper()}"] = links[site].url
        log = self.root / f"{child.name}.log"
        begin: Callable[[Mapping[str, str]], AnyProcess | HostedRole]
        if self.pool is not None and child.kind in HOSTED:
            begin = partial(self.pool.start, child, {site: link.url for site, link in links.items()})
        else:
            begin = partial(start_process, child.command, log=log)
        service = DeployedProcess(child.name, begin, environment, links, log)
        with self._lock:
            service.start()
            self.services[child.name] = service

    def make_links(self, child: Child) -> dict[str, ProxyLink]:
        """The links of a process, by site."""
        return {site: ProxyLink() for site in self.kafka} if self.has_links else {}

    def _keep(self) -> None:
        while not self._stopping.wait(0.05):
            with self._lock:
                for service in self.services.values():
                    code = service.process.poll() if service.process else None
                    if code is not None and service.is_wanted and not self._stopping.is_set():
                        service.codes.append(code)
                        time.sleep(RESTART_AFTER_S)
                        service.start()

    # Faults

    def service(self, short: str) -> DeployedProcess:
        """A process by its name without the query: 'node.r0', 'source.jfk', 'egress.a', 'monitor'."""
        kind, _, rest = short.partition(".")
        return self.services[f"{kind}.{self.spec.name}.{rest}" if rest else kind]

    def kill(self, short: str) -> None:
        self.service(short).signal(signal.SIGKILL)

    @contextmanager
    def dead(self, short: str) -> Iterator[None]:
        """Kill a process, and restart it only at the end of the context."""
        service = self.service(short)
        with self._lock:
            service.is_wanted = False
            service.signal(signal.SIGKILL)
        yield
        with self._lock:
            assert service.process is not None
            service.process.wait()
            service.start()
            service.is_wanted = True

    @contextmanager
    def frozen(self, short: str) -> Iterator[None]:
        service = self.service(short)
        service.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            service.signal(signal.SIGCONT)

    @contextmanager
    def cut(self, short: str, *sites: str) -> Iterator[None]:
        """Cut a process off from these sites (default: all sites)."""
        links = [link for site, link in self.service(short).links.items() if not sites or site in sites]
        for link in links:
            link.cut()
        try:
            yield
        finally:
            for link in links:
                link.heal()

    def dies_at(self, short: str, failpoint: str) -> None:
        """Kill a process; its next incarnation dies at a failpoint."""
        service = self.service(short)
        with self._lock:
            service.failpoint = failpoint
            service.signal(signal.SIGKILL)

    # Status

    def statuses(self) -> dict[str, dict[str, Any]]:
        """The newest status of each process."""
        found = {}
        for record in read_all(self.clusters[self.layout.home], STATUS):
            if record.key and record.value:
                found[record.key.decode()] = json.loads(record.value)
        return found

    def states(self) -> dict[str, str]:
        """The state of each instance."""
        return {
            f"{entry['fragment']}.{entry['replica']}.{entry['shard']}": entry["state"]
            for name, status in self.statuses().items()
            if name.startswith(f"node.{self.spec.name}.")
            for entry in status["instances"]
        }

    def wait_ready(self, within_s: float = PATIENCE_S) -> None:
        """Until every process is up and every instance STABLE. A process that has died is not, though its last status says so;
        one that is not to run is not waited for."""

        def is_ready() -> bool:
            found = self.statuses()
            with self._lock:
                wanted = [service for service in self.services.values() if service.is_wanted]
                return all(
                    service.is_alive and (status := found.get(service.name)) is not None and status["ready"]
                    and status["pid"] == service.pid
                    for service in wanted
                )  # fmt: skip

        wait_until(is_ready, "all processes are ready", self.explain, within_s)

    def explain(self) -> str:
        """The ends of all logs, for a test that has failed."""
        parts = [json.dumps(self.statuses(), indent=1)]
        for service in self.services.values():
            if service.log.exists():
                parts.append(f"--- {service.name} codes {service.codes}\n{service.log.read_text()[-3000:]}")
        return "\n".join(parts)

    # Results

    def stable(self) -> list[dict[str, Any]]:
        """All rows of q.stable, as a read_committed reader sees them; asserts that ids are contiguous and do not repeat."""
        records = read_all(self.clusters[self.layout.home], stable_topic(self.spec.name), read_committed=True)
        ids = [int(dict(record.headers)["id"]) for record in records]
        assert ids == list(range(ids[0] if ids else 0, (ids[0] if ids else 0) + len(ids))), "q.stable repeats or skips"
        return [json.loads(record.value) for record in records]

    def changes(self, site: str | None = None) -> list[dict[str, Any]]:
        """All records of a site's q.out."""
        site = site or self.layout.home
        topic = out_topic(self.spec.name, site, self.layout.sites)
        return [json.loads(record.value) for record in read_all(self.clusters[site], topic)]


def read_all(cluster: Cluster, topic: str, read_committed: bool = False) -> list[Any]:
    """All records of a topic's only partition, up to its current end."""
    consumer = cluster.make_consumer(read_committed=read_committed)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition], timeout_ms=int(PATIENCE_S * 1000))[partition]
        found: list[Any] = []
        deadline = time.monotonic() + PATIENCE_S
        while (position := consumer.position(partition)) is None or position < end:
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end"
            for records in consumer.poll(timeout_ms=200).values():
                found += records
        return found
    finally:
        consumer.close(autocommit=False)


def wait_until(
    condition: Callable[[], bool], what: str, explain: Callable[[], str] = str, within_s: float = PATIENCE_S
) -> float:
    """Wait until a condition holds; returns the seconds that it took. what: the condition, for the error message."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s, f"after {within_s} s it does not hold that {what}\n{explain()}"
        time.sleep(0.05)
    return time.monotonic() - started


@dataclass
class KafkaFeeder:
    """Feeds rows {at, key, value} with the current time, in a thread, into each stream's topic. Use as a context."""

    deployment: Deployment
    """Its streams get the rows."""
    rows_per_second: int = 200
    """For each stream."""
    keys: int = 5
    """The number of different keys."""
    period_s: float = 0.02
    """The time between writes, in seconds."""
    rows: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """All rows so far, by stream: (time in microseconds, key, value)."""
    quiet: Collection[str] = ()
    """The streams that get no rows at present."""
    _stopping: threading.Event = field(init=False)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> KafkaFeeder:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        # A client in C, so that feeding takes little of the processor time that is measured.
        options = {"linger.ms": 1, "enable.idempotence": True, "log_level": 0}
        producers = {
            site: confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, **options})
            for site, kafka in self.deployment.kafka.items()
        }
        number, started, sent = 0, time.monotonic(), 0
        topics = {
            name: (stream.topic, producers[self.deployment.layout.site_of_stream(name)])
            for name, stream in self.deployment.spec.streams.items()
            if stream.topic
        }
        while not self._stopping.wait(self.period_s):
            at = time.time_ns() // 1000
            due = int((time.monotonic() - started) * self.rows_per_second)
            count, sent = due - sent, due
            for stream, (topic, producer) in topics.items():
                for _ in range(0 if stream in self.quiet else count):
                    number += 1
                    row = (at, number % self.keys, number)
                    self.rows.setdefault(stream, []).append(row)
                    producer.produce(topic, b'{"at": %d, "key": %d, "value": %d}' % row, partition=0)
            for producer in producers.values():
                producer.poll(0)
        for producer in producers.values():
            producer.flush()

    def windows(self, until_us: int, window_us: int) -> Counter[tuple[int, int, int, int]]:
        """(window's start, key, rows, sum of values) of all windows that end at or before `until_us`, over all streams."""
        found: dict[tuple[int, int], list[int]] = {}
        for rows in self.rows.values():
            for at, key, value in rows:
                start = at // window_us * window_us
                if start + window_us <= until_us:
                    entry = found.setdefault((start, key), [0, 0])
                    entry[0] += 1
                    entry[1] += value
        return Counter((start, key, count, total) for (start, key), (count, total) in found.items())
