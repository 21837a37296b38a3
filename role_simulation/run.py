"""Runs a scenario, with its faults, and says what was wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from kafka import TopicPartition

from formats.client_headers import ID
from formats.json_text import time_us
from role_simulation.broker import Broker
from role_simulation.checks import check_results, left_threads, out_of
from role_simulation.clients import BrokerLink
from role_simulation.joined import JoinedWorld
from role_simulation.scenario import FED_US, STEADY_FROM_US, RoleFault, RoleScenario
from role_simulation.scheduler import SimulatedProcess
from role_simulation.threads import EPOCH_US, now_us
from role_simulation.world import Program, RoleWorld
from services.hosting.process import EXIT_BEGIN_ANEW, EXIT_FAILED
from services.kafka.topics import STATUS, stable_topic

SLACK_US = 300_000
"""How much longer than X a result may take in a run: requests and turns take time, also where X does not count them."""

_UNDUE = {EXIT_FAILED: "it has failed", EXIT_BEGIN_ANEW: "rows that it needed were trimmed"}
"""Exit codes that no fault of a run accounts for."""


@dataclass
class RoleRun:
    """What a run has shown."""

    problems: list[str] = field(default_factory=list)
    """What is wrong; empty if all is right."""
    digest: str = ""
    """Of all records of all topics but the statuses, which tell of the real machine too."""


def run_scenario(scenario: RoleScenario) -> RoleRun:
    """Run it to its end, and check it."""
    kind = JoinedWorld if scenario.is_joined else RoleWorld
    world = kind(scenario.seed, [scenario.record], scenario.workers, scenario.sites)
    found = RoleRun()
    last, stable = scenario.sites[-1], TopicPartition(stable_topic(scenario.query.name), 0)
    lag = _Lag(world.brokers[last], out_of(scenario, last))
    order = _Order(world.home, out_of(scenario, scenario.sites[0]), stable)
    with world.in_use():
        for topic in scenario.records:
            world.brokers[scenario.site_of(topic)].create(topic, scenario.partitions)
        lag.broker.on_append.append(lag.take)
        world.home.on_append.append(order.take)
        world.begin()
        _feed(world, scenario)
        for fault in scenario.faults:
            _plan(world, fault)
        try:
            world.run(FED_US + scenario.quiet_us)
        except AssertionError as error:
            found.problems.append(f"the run does not end: {error}")
        found.problems += [f"{thread.name} has ended: {error!r}" for thread, error in world.scheduler.errors]
        if not scenario.has_twins:
            found.problems += [f"a {kind} has ended: {_UNDUE[code]}" for kind, code in world.ends if code in _UNDUE]
        found.problems += order.problems + world.problems
        found.digest = _digest(world.brokers)
        found.problems += check_results(world, scenario)
        if not scenario.is_joined:
            found.problems += left_threads(world.end_roles(), scenario.sites)
        world.end()
    plan = world.layouts[scenario.query.name].plan
    allowed_us = plan.delay_threshold_us + plan.disorder_us + plan.bucket_us + scenario.longest_pause_us + SLACK_US
    if scenario.keeps_x and lag.longest_us > allowed_us:
        found.problems.append(f"results were {lag.longest_us} us behind the clock, at {lag.at_us} us")
    return found


def _digest(brokers: Mapping[str, Broker]) -> str:
    made = sha256()
    for site, broker in brokers.items():
        for place, partition in sorted(broker.partitions.items()):
            if place.topic != STATUS:
                records = [(each.timestamp_ms, each.key, each.value) for each in partition.records]
                made.update(repr((site, place, records)).encode())
    return made.hexdigest()[:16]


class _Lag:
    """How far what clients have been told reaches behind the clock, while there are records. Times are since the start."""

    def __init__(self, broker: Broker, out: TopicPartition) -> None:
        self.longest_us = 0
        self.at_us = 0
        self.broker = broker
        self._out = out
        self._through_us: int | None = None

    def take(self, place: TopicPartition, offset: int) -> None:
        if place != self._out:
            return
        record = json.loads(self.broker.partitions[place].records[offset].value or b"")
        if record["type"] != "boundary":
            return
        # Just before this record, the one before it was the last that clients had heard.
        until_us = min(now_us() - EPOCH_US, FED_US)
        if self._through_us is not None and until_us > STEADY_FROM_US and until_us - self._through_us > self.longest_us:
            self.longest_us, self.at_us = until_us - self._through_us, until_us
        self._through_us = max(self._through_us or 0, time_us(record["through"]) - EPOCH_US)


class _Order:
    """Whether q.out has each stable row before q.stable (R28)."""

    def __init__(self, broker: Broker, out: TopicPartition, stable: TopicPartition) -> None:
        self.problems: list[str] = []
        self._broker = broker
        self._out, self._stable = out, stable
        self._given = -1

    def take(self, place: TopicPartition, offset: int) -> None:
        if place not in (self._out, self._stable):
            return
        id_ = int(dict(self._broker.partitions[place].records[offset].headers).get(ID, -1))
        if place == self._out:
            self._given = max(self._given, id_)
        elif id_ > self._given and not self.problems:
            self.problems.append(f"q.stable has row {id_}, and q.out has rows up to {self._given}")


def _feed(world: RoleWorld, scenario: RoleScenario) -> None:
    producers = SimulatedProcess("producers")

    def write(topic: str) -> None:
        for at_us, partition, value in scenario.records[topic]:
            world.scheduler.sleep(max(at_us - world.scheduler.now_us, 0))
            world.brokers[scenario.site_of(topic)].put(TopicPartition(topic, partition), value)

    for topic in scenario.records:
        world.scheduler.start(producers, topic, lambda topic=topic: write(topic))  # type: ignore[misc]


def _plan(world: RoleWorld, fault: RoleFault) -> None:
    if fault.kind == "failpoint":
        world.kill_at[fault.name] = fault.at_us
        return
    worker = world.targets[fault.worker]
    if fault.kind == "twin":
        world.scheduler.call(fault.at_us, lambda: _double(world, worker, fault.for_us))
        return
    begin, end = _effects(world, worker, fault)
    world.scheduler.call(fault.at_us, begin)
    world.scheduler.call(fault.at_us + fault.for_us, end)


def _effects(world: RoleWorld, worker: Program, fault: RoleFault) -> tuple[Callable[[], object], Callable[[], object]]:
    """What begins a fault, and what ends it."""
    sites = list(world.brokers)
    broker = world.brokers[sites[fault.worker % len(sites)]]

    def of_links(links: Iterable[BrokerLink], name: str, value: object) -> Callable[[], None]:
        def act() -> None:
            for link in links:
                setattr(link, name, value)

        return act

    links = list(worker.links.values())
    # The last worker is at the last site, and all others are at the first.
    between = [
        link
        for each in world.workers
        for site, link in each.links.items()
        if (each is world.workers[-1]) != (site == sites[-1]) and len(sites) > 1
    ]
    match fault.kind:
        case "kill":
            return lambda: world.kill(worker), lambda: None
        case "freeze":
            return lambda: world.freeze(worker), lambda: world.thaw(worker)
        case "cut" | "cut_reads" | "cut_writes":
            cut = {"cut": ("read", "write"), "cut_reads": ("read",), "cut_writes": ("write",)}[fault.kind]
            return of_links(links, "cut", cut), of_links(links, "cut", ())
        case "part":
            return of_links(between, "cut", ("read", "write")), of_links(between, "cut", ())
        case "late":
            return of_links(links, "late", 0.05), of_links(links, "late", 0.0)
        case "lossy":
            return of_links(links, "lost", 0.05), of_links(links, "lost", 0.0)
        case "redis_down":
            return lambda: setattr(world.redis, "is_up", False), lambda: setattr(world.redis, "is_up", True)
        case "redis_silent":
            return lambda: setattr(world.redis, "is_silent", True), lambda: setattr(world.redis, "is_silent", False)
        case "broker":
            return lambda: setattr(broker, "is_up", False), lambda: setattr(broker, "is_up", True)
    raise AssertionError(f"there is no fault {fault.kind!r}")


def _double(world: RoleWorld, worker: Program, for_us: int) -> None:
    twin = world.double(worker)
    for link in twin.links.values():
        link.late, link.late_us = 0.2, 100_000
    world.scheduler.call(for_us, lambda: world.remove(twin))
