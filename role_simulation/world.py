"""The world of a run: the Kafka of each site, Redis, and the processes of workers with their roles.

Each role is production code, from its threads down to its clients' calls. Who runs where is fixed for a run: a worker that has
died begins again with its roles, and a role that has ended begins again in its worker, both after a pause. In
`role_simulation.joined` a supervisor decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from kafka import TopicPartition

import services.hosting.process
from deployment.layout import Layout, layout_of
from deployment.query_record import QueryRecord
from role_simulation.broker import Broker
from role_simulation.clients import BrokerLink, SimulatedCluster
from role_simulation.redis import RedisClient, SimulatedRedis
from role_simulation.scheduler import Scheduler, SimulatedProcess, begin_run, end_run, scheduler
from role_simulation.threads import simulated_modules
from services.hosting.connections import Connections
from services.hosting.process import EXIT_STOPPED, StopSignal
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.kafka.timekeeper import Timekeeper
from services.kafka.topics import QUERIES, query_topics, system_topics
from services.monitor.monitor import MonitorProcess
from services.worker.role_threads import RoleRequest, RoleThreads

RESTART_US = 300_000
"""How soon a role, or a worker, begins again."""
ENDED_US = 10_000_000
"""How long after a role's end its threads may take to end: a client's request that nobody answers ends first."""

_WITH_FAILPOINTS = (
    "services.egress.out",
    "services.egress.stable",
    "services.hosting.host",
    "services.monitor.monitor",
    "services.source.incarnation",
)


@dataclass(frozen=True)
class PlacedRole:
    """A role and its place."""

    kind: str
    """'source', 'node' or 'egress'."""
    query: str
    """The name of its query."""
    part: str
    """Such as a replica."""
    worker: int
    """The number of the worker that runs it."""

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.query}.{self.part}"


def roles_of(record: QueryRecord, layout: Layout, workers: int) -> list[PlacedRole]:
    """The roles of a query, dealt to workers: no two replicas to one. The last worker has one of them, and an egress. If there
    is a second site, it is there, and all others are at the first."""

    def at_site(site: str) -> list[int]:
        if len(layout.sites) == 1:
            return list(range(workers))
        return [workers - 1] if site == layout.sites[-1] else list(range(workers - 1))

    def placed(kind: str, part: str, site: str, at: int) -> PlacedRole:
        there = at_site(site)
        return PlacedRole(kind, record.name, part, there[at % len(there)])

    streams, replicas = enumerate(record.query.streams), enumerate(layout.replicas)
    sources = [placed("source", stream, layout.site_of_stream(stream), at) for at, stream in streams]
    nodes = [placed("node", replica, layout.site_of_replica(replica), -1 - at) for at, replica in replicas]
    return [*sources, *nodes, *(placed("egress", site, site, -1) for site in layout.sites)]


@dataclass(eq=False)
class Program:
    """A worker, or the monitor: what begins again as another process when its process has died."""

    name: str
    """Its name."""
    roles: tuple[PlacedRole, ...]
    """The roles that it runs; the monitor has none."""
    process: SimulatedProcess
    """The process that runs it now."""
    links: Mapping[str, BrokerLink]
    """Its way to the Kafka of each site."""
    processes: int = 1
    """How many processes have run it."""
    role_threads: RoleThreads | None = None
    """The roles that its process runs, if nothing else places them."""


class _ProcessClocks:
    """In place of the one `Timekeeper` of a process: each simulated process has its own."""

    def __init__(self) -> None:
        self._of: dict[SimulatedProcess, Timekeeper] = {}

    def __getattr__(self, name: str) -> Any:
        current = scheduler().current
        assert current is not None, "only threads ask for the time"
        if current.process not in self._of:
            self._of[current.process] = Timekeeper()
        return getattr(self._of[current.process], name)


class RoleWorld:
    """A run: `begin` starts all processes, `run` lets time pass. Use it within `in_use`."""

    def __init__(self, seed: int, records: Sequence[QueryRecord], workers: int, sites: Sequence[str]) -> None:
        """sites: the names of the sites, the home site first."""
        self.seed = seed
        self.rng = Random(seed)
        self.scheduler = Scheduler(self.rng)
        self.settings = ServiceSettings(sites={site: KafkaSettings(bootstrap="simulated:9092") for site in sites})
        self.brokers = {site: Broker(site) for site in sites}
        self.redis = SimulatedRedis()
        self.records = {record.name: record for record in records}
        self.layouts: dict[str, Layout] = {record.name: layout_of(record, self.settings.site_names) for record in records}
        self.problems: list[str] = []
        """What was wrong while it ran."""
        self.ends: Counter[tuple[str, int]] = Counter()
        """How often a role of each kind has ended by itself, with which exit code."""
        self.kill_at: dict[str, int] = {}
        """Failpoints that kill their process, and at which pass."""
        self.passed: Counter[str] = Counter()
        """How often each failpoint was passed."""
        self.roles = [role for record in records for role in roles_of(record, self.layouts[record.name], workers)]
        """All roles of all queries."""
        self.workers = [self.program(f"worker-{at}", self.roles_at(at)) for at in range(workers)]
        self.monitor = self.program("monitor", ())
        self.programs = [*self.workers, self.monitor]

    def roles_at(self, worker: int) -> tuple[PlacedRole, ...]:
        """The roles with which a worker begins."""
        return tuple(role for role in self.roles if role.worker == worker)

    @property
    def targets(self) -> list[Program]:
        """What faults may strike, by number."""
        return self.workers

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Replace what the services use by what is simulated."""
        begin_run(self.scheduler)
        replaced: dict[str, Any] = {
            "services.hosting.connections.make_clusters": lambda settings, client_id: self.clusters(),
            "services.monitor.monitor.make_clusters": lambda settings, client_id: self.clusters(),
            "services.node.node.connect_redis": lambda settings: RedisClient(self.redis),
            "services.monitor.monitor.connect_redis": lambda settings: RedisClient(self.redis),
            "services.hosting.process._timekeeper": _ProcessClocks(),
            "services.kafka.load.used_seconds": self._used_seconds,
        }
        for module in _WITH_FAILPOINTS:
            replaced[f"{module}.failpoint"] = self._pass
        try:
            with simulated_modules({**replaced, **self.also_replaced()}):
                yield
        finally:
            end_run(self.scheduler)

    def _used_seconds(self) -> tuple[float, float]:
        """In a third of all courses the machine is always busy."""
        return 0.0, self.scheduler.now_us / 1e6 if self.seed % 3 == 0 else 0.0

    def also_replaced(self) -> dict[str, Any]:
        """What else of the services is replaced, by its full name."""
        return {}

    def begin(self) -> None:
        """Create all topics, write the queries' records, and start the workers."""
        for record in self.records.values():
            for site, specs in query_topics(self.layouts[record.name]).items():
                for spec in specs:
                    self.brokers[site].create(spec.name, spec.partitions)
        for spec in system_topics():
            self.home.create(spec.name, spec.partitions)
        for record in self.records.values():
            self.home.put(TopicPartition(QUERIES, 0), record.to_json(), record.name.encode())
        for program in self.programs:
            self._start(program)

    @property
    def home(self) -> Broker:
        """The Kafka of the home site."""
        return self.brokers[self.settings.home]

    def run(self, until_us: int) -> None:
        self.scheduler.run(until_us)

    # Faults

    def kill(self, program: Program) -> None:
        """The program's process dies, and begins again."""
        process = program.process
        self.scheduler.call(RESTART_US, lambda: self._start_again(program, process))
        self.scheduler.kill(process)

    def freeze(self, program: Program) -> None:
        """The program's process stops, as after SIGSTOP."""
        program.process.is_frozen = True

    def thaw(self, program: Program) -> None:
        self.scheduler.thaw(program.process)

    def double(self, program: Program) -> Program:
        """A second program with the same roles, as if somebody had started a worker of this name elsewhere."""
        twin = self.program(f"{program.name}'s twin", program.roles)
        self.programs.append(twin)
        self._start(twin)
        return twin

    def remove(self, program: Program) -> None:
        """The program's process dies, and does not begin again."""
        self.programs.remove(program)
        self.scheduler.kill(program.process)

    def end_roles(self) -> dict[str, list[str]]:
        """End the roles of all workers. Returns, by worker, the names of the threads that run on."""
        hosts = [(program, program.role_threads) for program in self.programs if program.role_threads is not None]
        for program, roles in hosts:
            self.scheduler.start(program.process, "the end", roles.end_all)
        self.run(self.scheduler.now_us + ENDED_US)
        return {program.name: [thread.name for thread in program.process.threads] for program, _ in hosts}

    def end(self) -> None:
        """Leave no thread behind."""
        for program in self.programs:
            self.scheduler.kill(program.process)
        self.scheduler.run(self.scheduler.now_us)

    def _pass(self, name: str) -> None:
        self.passed[name] += 1
        if self.kill_at.get(name) == self.passed[name]:
            self.kill(self.current_program())

    # Processes

    def program(self, name: str, roles: tuple[PlacedRole, ...]) -> Program:
        """A new one, which does not run yet."""
        process = SimulatedProcess(name)
        return Program(name, roles, process, {site: BrokerLink(broker, process) for site, broker in self.brokers.items()})

    def _start(self, program: Program) -> None:
        self.scheduler.start(program.process, program.process.name, self.main_of(program))

    def main_of(self, program: Program) -> Callable[[], None]:
        """What the process of a program does."""
        return self._watch if program is self.monitor else lambda: self._serve(program)

    def _start_again(self, program: Program, dead: SimulatedProcess) -> None:
        if program.process is dead and program in self.programs:
            program.processes += 1
            program.process = SimulatedProcess(f"{program.name}.{program.processes}")
            for link in program.links.values():
                link.process = program.process
            self._start(program)

    def _watch(self) -> None:
        """What the monitor's process does."""
        self.begin_clock()
        code = MonitorProcess(self.settings).serve(StopSignal())
        self.ends["monitor", code] += 1
        self.kill(self.monitor)

    def _serve(self, worker: Program) -> None:
        """What a worker's process does: as `services.worker.worker`, but its supervisor is within."""
        self.begin_clock()
        connections = Connections(self.settings, worker.process.name)
        roles: RoleThreads

        def note_end(name: str, code: int) -> None:
            if code == EXIT_STOPPED:
                return
            self.ends[name.partition(".")[0], code] += 1
            ended = next(role for role in worker.roles if role.name == name)
            mine = worker.process

            def again() -> None:
                if not mine.is_dead:
                    self.scheduler.start(mine, "supervisor", lambda: roles.begin(self._request(ended, connections)))

            self.scheduler.call(RESTART_US, again)

        worker.role_threads = roles = RoleThreads(connections, note_end)
        for role in worker.roles:
            roles.begin(self._request(role, connections))

    def begin_clock(self) -> None:
        """Set the clock of the process, as `services.hosting.process.set_clock` does."""
        services.hosting.process._timekeeper.begin(self.clusters()[self.settings.home])

    def _request(self, role: PlacedRole, connections: Connections) -> RoleRequest:
        find: Callable[[], QueryRecord] = lambda: self.records[role.query]  # noqa: E731
        if role.kind == "source":
            find = lambda: connections.registry.find_source(role.query, role.part)  # noqa: E731
        return RoleRequest(role.name, role.kind, role.part, find)

    def clusters(self) -> Mapping[str, Any]:
        """Of the process that runs now."""
        return {site: SimulatedCluster(link) for site, link in self.current_program().links.items()}

    def current_program(self) -> Program:
        """The program whose process runs now."""
        current = self.scheduler.current
        assert current is not None, "between the turns of threads there is no process"
        return next(program for program in self.programs if program.process is current.process)
