"""What happens in a run, drawn from its seed: the query, the records of its topics, and the faults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

from boreal.query.spec import Query
from deployment.query_record import QueryRecord
from formats.json_text import moment
from role_simulation.threads import EPOCH_US
from services.kafka.clusters import REQUEST_TIMEOUT_MS

FED_US = 10_000_000
"""For how long producers write records."""
QUIET_US = 16_000_000
"""How long nothing fails at the end of a run: by then all must be right."""
MOVED_US = 14_000_000
"""How much longer it takes where roles move: a supervisor waits longer after each failure of a role."""
FIRST_FAULT_US = 3_000_000
"""When faults may begin."""
DISORDER_US = 500_000
STEADY_FROM_US = 4_000_000
"""From here on a run has results, if nothing fails."""

_STREAM = {"time": "at", "disorder": "500ms", "idle": "2s", "schema": {"k": "string", "v": "int"}}
_TOPICS = ("orders", "clicks")
_WINDOWED: dict[str, Any] = {
    "operators": {
        "all": {"union": ["orders", "clicks"]},
        "sums": {"aggregate": "all", "window": {"tumbling": "1s"}, "by": ["k"], "compute": {"n": "count(*)", "s": "sum(v)"}},
    },
    "output": "sums",
    "latest": True,
}
_PLAIN: dict[str, Any] = {
    "operators": {
        "few": {"filter": "orders", "where": "v > 3"},
        "all": {"union": ["few", "clicks"]},
    },
    "output": "all",
}
_JOINED: dict[str, Any] = {
    "operators": {
        "both": {"join": ["orders", "clicks"], "on": ["k"], "within": "400ms"},
        "sums": {"aggregate": "both", "window": {"tumbling": "1s"}, "by": ["k"], "compute": {"n": "count(*)"}},
    },
    "output": "sums",
    "shards": 2,
}
_SHAPES = (_WINDOWED, _PLAIN, _JOINED)
_MODES = ("checkpoint_redo", "undo_redo", "overlay_redo")

OF_A_WORKER = ("kill", "freeze", "cut", "cut_reads", "cut_writes", "late", "lossy", "twin")
"""The faults of a worker, and of its links."""
_OF_ALL = ("failpoint", "failpoint", "broker")
_BETWEEN_SITES = ("part",)
_FAILPOINTS = (
    "node.before_append",
    "node.between_appends",
    "node.before_acknowledge",
    "node.before_checkpoint",
    "node.after_checkpoint",
    "egress.before_out",
    "egress.between_out_and_stable",
    "egress.between_out_and_latest",
    "egress.before_commit",
    "egress.after_commit",
    "source.started",
    "source.between_announcements",
    "source.announced",
    "source.between_logs",
)
_REPEATED_US = REQUEST_TIMEOUT_MS * 1_000
"""How long after a fault a request may be repeated that was lost in it."""
_FAULTS = (*OF_A_WORKER, *_OF_ALL, *_BETWEEN_SITES, "redis_down", "redis_silent")


@dataclass(frozen=True)
class RoleFault:
    """One fault."""

    kind: str
    """One of `_FAULTS`."""
    at_us: int
    """When it begins."""
    for_us: int
    """How long it lasts; a process that is killed begins again by itself."""
    worker: int = 0
    """The number of the worker that it concerns, or of a worker whose site it concerns."""
    name: str = ""
    """The failpoint, and `at_us` is then the number of the pass."""


@dataclass(frozen=True)
class RoleScenario:
    """A run."""

    seed: int
    """The seed that it was drawn from."""
    query: Query
    """The query."""
    workers: int
    """The number of workers."""
    sites: tuple[str, ...]
    """The sites, the home site first."""
    partitions: int
    """The number of partitions of each topic."""
    records: Mapping[str, list[tuple[int, int, bytes]]]
    """By topic, when each record is written (microseconds since the start), to which partition, and its value."""
    rows: Mapping[str, list[dict[str, Any]]]
    """By topic, the same records as rows."""
    faults: tuple[RoleFault, ...] = field(default=())
    """What fails."""
    is_joined: bool = False
    """Whether the workers have joined their sites, and a supervisor decides what they run."""

    @property
    def record(self) -> QueryRecord:
        return QueryRecord(self.query.name, self.query.dump(), 1)

    def site_of(self, topic: str) -> str:
        """The site of a topic."""
        return self.query.streams[topic].site or self.sites[0]

    @property
    def quiet_us(self) -> int:
        """How long nothing fails at the end of the run."""
        return QUIET_US + (MOVED_US if self.is_joined else 0)

    @property
    def longest_pause_us(self) -> int:
        """For how long a stream's boundary may stand still, as no row moves it on."""
        if all(stream.boundary == "clock" for stream in self.query.streams.values()):
            return 0
        times = [[at_us for at_us, _, _ in records] for records in self.records.values()]
        return max(later - earlier for of_topic in times for earlier, later in pairwise(of_topic))

    @property
    def has_twins(self) -> bool:
        """Whether roles run twice for a while: as those of a worker that is not heard, and has not ended, do where a supervisor
        gives them to another one."""
        twins = ("twin", "freeze", "cut", "cut_reads", "cut_writes") if self.is_joined else ("twin",)
        return any(fault.kind in twins for fault in self.faults)

    @property
    def keeps_x(self) -> bool:
        """Whether clients of the last worker's egress have answers within X: nothing fails that this worker, with its egress
        and a replica, depends on, and no two others fail at once. All sources may be theirs, and without input there is nothing
        to answer."""
        if self.is_joined:
            return False  # roles move, one of an egress as well
        others = [fault for fault in self.faults if fault.kind in (*OF_A_WORKER, *_BETWEEN_SITES)]
        if any(fault.kind in _OF_ALL for fault in self.faults) or any(
            fault.kind in OF_A_WORKER and fault.worker == self.workers - 1 for fault in others
        ):
            return False
        return not any(
            one.worker != other.worker and one.at_us < other.at_us + other.for_us + _REPEATED_US
            for one in others
            for other in others
            if one.at_us >= other.at_us
        )


def draw(seed: int) -> RoleScenario:
    """The scenario of a seed."""
    rng = Random(seed)
    workers, partitions = rng.choice((2, 2, 3)), rng.choice((1, 2))
    sites = rng.choice((("a",), ("a",), ("a", "b")))
    threshold, boundary = rng.choice(("800ms", "1s", "3s")), rng.choice(("clock", "data"))
    query = _query(rng.randrange(len(_SHAPES)), rng.choice(_MODES), threshold, boundary, sites)
    records: dict[str, list[tuple[int, int, bytes]]] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for topic in _TOPICS:
        records[topic], rows[topic] = _feed(Random(f"{seed} {topic}"), partitions)
    spared = workers - 1 if rng.random() < 0.4 else None
    faults = tuple(fault for _ in range(rng.choice((0, 1, 2, 2, 3))) for fault in _faults(rng, workers, spared))
    return RoleScenario(seed, query, workers, sites, partitions, records, rows, faults)


def draw_joined(seed: int) -> RoleScenario:
    """The scenario of a seed whose workers have joined their sites. Faults may strike the supervisor as well: its number is
    that of the workers."""
    rng, drawn = Random(f"{seed} joined"), draw(seed)
    workers = drawn.workers if len(drawn.sites) > 1 else 3
    faults = [replace(fault, worker=rng.randrange(workers + 1)) for fault in drawn.faults]
    if rng.random() < 0.5:
        at_us, kind = rng.randrange(FIRST_FAULT_US, FED_US), rng.choice(OF_A_WORKER)
        faults.append(RoleFault(kind, at_us, rng.choice((300_000, 1_500_000, 4_000_000)), workers))
    return replace(drawn, workers=workers, faults=tuple(faults), is_joined=True)


def with_faults_of(kind: str, drawn: RoleScenario) -> RoleScenario:
    """A scenario with several faults of one kind in place of those that were drawn. kind: one that strikes a worker."""
    rng = Random(f"{drawn.seed} {kind}")
    faults = [RoleFault(kind, rng.randrange(FIRST_FAULT_US, FED_US), 1_500_000, rng.randrange(drawn.workers)) for _ in range(6)]
    return replace(drawn, faults=tuple(faults))


@cache
def _query(shape: int, mode: str, threshold: str, boundary: str, sites: tuple[str, ...]) -> Query:
    where = zip(_TOPICS, (sites[0], sites[-1]), strict=True)
    streams = {topic: {**_STREAM, "topic": topic, "boundary": boundary, "site": site} for topic, site in where}
    spec = {
        "name": "q", "streams": streams, **_SHAPES[shape], "delay_threshold": threshold, "reconcile": mode, "replicas": 2,
        "tuning": {"history": "0s"},
    }  # fmt: skip
    return Query.model_validate(spec)


def _feed(rng: Random, partitions: int) -> tuple[list[tuple[int, int, bytes]], list[dict[str, Any]]]:
    records, rows, used = [], [], set()
    now = rng.randrange(500_000)
    every = rng.choice((40_000, 150_000, 400_000))
    while now < FED_US:
        # A little earlier than the stream's disorder allows: a record is under way for a moment.
        time = EPOCH_US + now - rng.randrange(DISORDER_US - 100_000)
        if time not in used:
            used.add(time)
            row = {"time": time, "k": rng.choice("abc"), "v": rng.randrange(10)}
            rows.append(row)
            records.append(
                (now, rng.randrange(partitions), json.dumps({"at": moment(time), "k": row["k"], "v": row["v"]}).encode())
            )
        now += rng.randrange(1, 2 * every)
    return records, rows


def _faults(rng: Random, workers: int, spared: int | None) -> list[RoleFault]:
    first = _fault(rng, workers, spared)
    if first.kind not in ("late", "lossy") or rng.random() < 0.5:
        return [first]
    # What is under way when a process dies matters most where much is.
    return [first, RoleFault("kill", first.at_us + rng.randrange(first.for_us), 0, first.worker)]


def _fault(rng: Random, workers: int, spared: int | None) -> RoleFault:
    kinds = [kind for kind in _FAULTS if spared is None or kind not in _OF_ALL]
    kind = rng.choice(kinds)
    at_us = rng.randrange(FIRST_FAULT_US, FED_US)
    worker = rng.choice([number for number in range(workers) if number != spared])
    if kind == "failpoint":
        return RoleFault(kind, rng.choice((1, 3, 10, 40)), 0, name=rng.choice(_FAILPOINTS))
    return RoleFault(kind, at_us, rng.choice((300_000, 1_500_000, 4_000_000)), worker)
