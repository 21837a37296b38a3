"""`boreal bench knees`: what grows with the number of roles and queries: the decisions of a supervisor and of the monitor, and
the topics. The machines alone, without Kafka and processes, so that ten thousand roles fit into one measurement.

A query is the departures query of `bench.idle`: three sources, two replicas, one egress.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from bench.figures import Figure, as_report
from bench.idle import departures
from boreal.query.spec import Query, load_query
from deployment.claims import LogClaims
from deployment.layout import make_layout
from deployment.placement import HOSTED, choose_worker
from deployment.placement_record import PlacementRecord, RoleReport, WorkerReport
from deployment.placer import (
    DETECTION_US,
    GATHERING_US,
    SAY_EVERY_US,
    PlacementChanged,
    Placer,
    PlacerTick,
    RecordFound,
    RoleEnded,
    RolesKnown,
    RoleWanted,
    SelfHeard,
    WorkerHeard,
)
from deployment.query_record import QueryRecord
from deployment.supervision import Child, ProcessExit, ProcessTargets, ReadinessReport, Supervision
from services.kafka.topics import query_topics
from services.stack.children import query_children

SIZES = (100, 1_000, 10_000)
"""Roles."""
ROLES_OF_A_WORKER = 50
SITE = ("a",)
SECOND_US = 1_000_000
LOOKS = 20


def main() -> dict[str, Any]:
    """Measure it; a minute."""
    figures = [*_topics()]
    for size in SIZES:
        children = _children(size)
        figures += [*_placement(size, children), *_joined(size, children), *_supervision(size, children), *_claims(size)]
    return as_report("knees", figures)


def _topics() -> Iterator[Figure]:
    """What one query adds to its site's Kafka."""
    topics = query_topics(make_layout(_query(0), SITE))["a"]
    yield Figure("topics that a query adds", len(topics), "topics")
    yield Figure("partitions that a query adds", sum(topic.partitions for topic in topics), "partitions")


def _placement(size: int, children: list[Child]) -> Iterator[Figure]:
    """Roles are placed on workers of which each has its share."""
    workers: dict[str, list[Child]] = {f"worker.{number}": [] for number in range(max(size // ROLES_OF_A_WORKER, 2))}
    for number, child in enumerate(children):
        workers[f"worker.{number % len(workers)}"].append(child)
    took = _seconds(lambda: [choose_worker(child, workers) for child in children[:LOOKS]]) / LOOKS
    yield Figure(f"{size:,} roles: where one role runs", took * 1_000, "ms")


def _joined(size: int, children: list[Child]) -> Iterator[Figure]:
    """Workers that have joined get all roles; then each says that they are ready, and at last one is lost."""
    placer, names = Placer(*SITE, "1"), [f"worker.{number}" for number in range(max(size // ROLES_OF_A_WORKER, 2))]
    written: list[PlacementRecord] = []

    def tick(now: int) -> list[RoleEnded]:
        effects = [*placer.handle(SelfHeard(), now), *placer.handle(PlacerTick(), now)]
        written.extend(effect.record for effect in effects if isinstance(effect, PlacementChanged))
        return [effect for effect in effects if isinstance(effect, RoleEnded)]

    def hear(said: list[str], now: int) -> None:
        for name in said:
            roles = reports.get(name, {})
            placer.handle(WorkerHeard(WorkerReport(name, name, name, "1", len(written), roles)), now)

    def place() -> None:
        for child in children:
            placer.handle(RoleWanted(child), GATHERING_US)
        placer.handle(RolesKnown(), GATHERING_US)
        tick(GATHERING_US)

    def lose() -> None:
        for ended in tick(lost_at):
            placer.handle(RoleWanted(by_name[ended.name]), lost_at)
        tick(lost_at)

    by_name = {child.name: child for child in children}
    reports: dict[str, dict[str, RoleReport]] = defaultdict(dict)
    placer.handle(RecordFound(None), 0)
    hear(names, 0)
    yield Figure(f"{size:,} roles: all are placed in workers that have joined", _seconds(place) * 1_000, "ms")
    for name, at in written[-1].roles.items():
        reports[at.worker][name] = RoleReport(at.start, True)
    hear(names, 2 * SECOND_US)
    took = _seconds(lambda: hear([*names, *names], 3 * SECOND_US))
    yield Figure(f"{size:,} roles: a second of what those workers say", took * 1_000, "ms")
    yield Figure(f"{size:,} roles: a decision where nothing moves", _seconds(lambda: tick(3 * SECOND_US)) * 1_000, "ms")
    lost_at = 3 * SECOND_US + DETECTION_US + 1
    for now in range(3 * SECOND_US, lost_at, SAY_EVERY_US):
        hear(names[1:], now)
    hear(names[1:], lost_at)
    yield Figure(f"{size:,} roles: a worker that has joined is lost", _seconds(lose) * 1_000, "ms")


def _supervision(size: int, children: list[Child]) -> Iterator[Figure]:
    """A second's reports of roles that are well, and the end of a worker."""
    supervision = Supervision()
    supervision.handle(ProcessTargets(tuple(children)), 0)

    def hear() -> None:
        for child in children:
            supervision.handle(ReadinessReport(child.name, True), 2 * SECOND_US)

    def end() -> None:
        for child in children[:ROLES_OF_A_WORKER]:
            supervision.handle(ProcessExit(child.name), 3 * SECOND_US)

    yield Figure(f"{size:,} roles: all become ready", _seconds(hear) * 1_000, "ms")
    yield Figure(f"{size:,} roles: a second of their reports", _seconds(hear) * 1_000, "ms")
    yield Figure(f"{size:,} roles: a worker ends", _seconds(end) * 1_000, "ms")
    yield Figure(f"{size:,} roles: whether all are ready", _seconds(supervision.unready) * 1_000, "ms")


def _claims(size: int) -> Iterator[Figure]:
    """A second of the monitor's claims on logs: a tick, and one acknowledgement of each instance."""
    layout = make_layout(_query(0), SITE)
    readers = layout.readers()
    needs: dict[Any, list[tuple[str, int]]] = defaultdict(list)
    for key, who in readers.items():
        for each in who:
            needs[each].append((key, 100))
    queries = [LogClaims(0) for _ in range(size // 6)]
    for claims in queries:
        claims.expect(readers, 3_600 * SECOND_US, 0)

    def second() -> None:
        for claims in queries:
            for who, positions in needs.items():
                claims.acknowledge(who, positions, SECOND_US)
            claims.tick(SECOND_US)

    yield Figure(f"{size:,} roles: a second of the monitor's claims", _seconds(second) * 1_000, "ms")


def _query(number: int) -> Query:
    return load_query(departures({}, name=f"q{number}"))


def _children(size: int) -> list[Child]:
    """The roles of so many queries, at most `size`."""
    found: list[Child] = []
    number = 0
    while len(found) < size:
        record = QueryRecord(f"q{number}", _query(number).dump(), 1)
        found += [child for child in query_children(record, SITE, SITE) if child.kind in HOSTED]
        number += 1
    return found[:size]


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
