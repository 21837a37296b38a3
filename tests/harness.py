"""Shared helpers: queries in a line, embedded runs with everything recorded, and drivers of single machines.

Nothing here waits: all time is virtual, in microseconds. `run` plays a whole query under the model clock and keeps each
frame of each log; `check` holds what must be so after any run. `SUnionDriver` and `InstanceDriver` feed one machine by
hand, a frame at a time.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pyarrow as pa

from boreal.model.durations import parse_duration
from boreal.model.frames import INFINITY, Boundary, Data, Frame, Ingest, LogId, Origin, RecDone, Start, State, Undo
from boreal.model.schema import Schema
from boreal.query.plan import Plan
from boreal.query.planner import Overrides
from boreal.query.planner import plan as make_plan
from boreal.query.spec import Hold, Policy, Query, load_query
from embedded.faults import check_faults, parse_fault
from embedded.file_sources import SourceRows, read_source
from embedded.paced_sources import Pace
from embedded.run import Run
from embedded.world import ModelClock, World
from logs.checkpoints import CheckpointStore
from logs.memory_checkpoints import MemoryCheckpointStore
from logs.memory_log import MemoryLog, MemoryLogStore
from reconcile.events import Append, Effect, Event, Frames, InstanceId, Send, StateChanged, Tail, Tick
from reconcile.host import Host
from reconcile.instance import Instance
from reconcile.recovery import Restart
from sunion.port import Port
from sunion.steps import Item, Mark, Redone, Step
from sunion.sunion import Merge, Settings, SUnion

MS = 1_000
S = 1_000_000

STREAM = {"time": "time", "schema": {"k": "int", "v": "double"}}


# Queries and plans


INTERVALS = {"bucket": "100ms", "boundary_interval": "50ms", "heartbeat": "100ms"}
"""Those of most queries here."""


def query_of(
    operators: Mapping[str, Any] | None = None,
    output: str = "all",
    streams: Sequence[str] = ("a", "b", "c"),
    x: str = "1s",
    tuning: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A query file as a mapping: by default the union of three streams of one shape, with two replicas. Its intervals do not
    follow from X."""
    return {
        "name": "q",
        "streams": dict.fromkeys(streams, STREAM),
        "operators": dict(operators) if operators is not None else {"all": {"union": list(streams)}},
        "output": output,
        "delay_threshold": x,
        "replicas": 2,
        "tuning": {**INTERVALS, **(tuning or {})},
        **options,
    }


def chain_of(length: int, **options: Any) -> dict[str, Any]:
    """A union of three streams, then filters that keep every row: `length` fragments f1, f2, ... one after the other."""
    operators: dict[str, Any] = {"all": {"union": ["a", "b", "c"]}}
    for place in range(2, length + 1):
        operators[f"s{place}"] = {"filter": "all" if place == 2 else f"s{place - 1}", "where": "v >= 0"}
    fragments = {f"f{place}": {"operators": [name]} for place, name in enumerate(operators, start=1)}
    return query_of(operators, list(operators)[-1], fragments=fragments, **options)


def plan_of(query: str | Mapping[str, Any] | Query, **overrides: Any) -> Plan:
    """The plan of a query given as YAML text, as a mapping, or ready."""
    return make_plan(query if isinstance(query, Query) else load_query(query), Overrides(**overrides))


# Embedded runs


class RowClock(ModelClock):
    """A model clock for slow machines: each row that a replica of `fragments` processes costs it `us_per_row` more."""

    def __init__(self, us_per_row: int, fragments: Iterable[str] = ("main",)) -> None:
        super().__init__()
        self.us_per_row = us_per_row
        self.fragments = frozenset(fragments)
        self.rows = 0

    def charge(self, work: Callable[[], list[Effect]], event: Event | None) -> tuple[list[Effect], int]:
        self.rows = 0
        effects, took = super().charge(work, event)
        return effects, took + self.rows * self.us_per_row


@contextmanager
def _metered(world: World, clock: ModelClock) -> Iterator[None]:
    """While it holds, every row that a host steps through is counted by a RowClock."""
    if not isinstance(clock, RowClock):
        yield
        return
    step_unmetered = Host.step

    def step(host: Host, item: Step) -> Mapping[str, pa.RecordBatch]:
        [who] = [p.id for p in world.processes.values() if p.instance is not None and p.instance.engine.host is host]
        if who.fragment in clock.fragments:
            clock.rows += sum(batch.num_rows for batch in item.batches.values())
        return step_unmetered(host, item)

    with mock.patch.object(Host, "step", step):
        yield


@dataclass(frozen=True, slots=True)
class Logged:
    """A frame, and when it was logged."""

    at: int
    frame: Frame


class RecordedLog(MemoryLog):
    """A memory log that also keeps all that was ever appended, trimmed or not."""

    def __init__(self, log: LogId, now: Callable[[], int]) -> None:
        super().__init__(log)
        self.now = now
        self.history: list[Logged] = []

    def append(self, frame: Frame) -> int:
        self.history.append(Logged(self.now(), frame))
        return super().append(frame)


class RecordedLogs(MemoryLogStore):
    def __init__(self) -> None:
        super().__init__()
        self.now: Callable[[], int] = lambda: 0

    def open(self, log: LogId) -> MemoryLog:
        if log not in self._logs:
            self._logs[log] = RecordedLog(log, lambda: self.now())
        return self._logs[log]


@dataclass
class Ran:
    """A finished run. changes: parsed records of changes.jsonl; stable: parsed lines of stable.jsonl."""

    query: Query
    plan: Plan
    run: Run
    is_stable: bool
    report: dict[str, Any]
    changes: list[dict[str, Any]]
    stable: list[dict[str, Any]]
    logs: RecordedLogs

    @property
    def world(self) -> World:
        return self.run.world

    @property
    def n_tentative(self) -> int:
        count: int = self.report["n_tentative"]
        return count

    @property
    def delay_ms(self) -> float:
        """delay_new_ms_max."""
        delay: float = self.report["delay_new_ms_max"]
        return delay

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.changes if record["type"] == kind]

    def history(self, stream: str, replica: str, partition: int = 0) -> list[Logged]:
        """All frames ever written to one log, with the time of each."""
        log = self.logs.open(LogId(stream, replica, partition))
        assert isinstance(log, RecordedLog)
        return log.history

    def states(self, fragment: str, replica: str = "r0", shard: int = 0) -> list[tuple[str, float, float]]:
        """(state, from ms, to ms) in order, 'DEAD' for a crashed one; the egress too."""
        who = InstanceId(fragment, replica, shard)
        entries = [e for e in self.world.journal if e.who == who and isinstance(e.what, StateChanged)]
        ends = [entry.at for entry in entries[1:]] + [self.world.now]
        return [
            (entry.what.state.value if entry.what.state else "DEAD", entry.at / MS, end / MS)
            for entry, end in zip(entries, ends, strict=True)
            if isinstance(entry.what, StateChanged)
        ]

    def during(self, state: str, fragment: str, replica: str = "r0") -> list[tuple[float, float]]:
        """When an instance was in a state, in ms."""
        return [(since, until) for name, since, until in self.states(fragment, replica) if name == state]

    def reconciliations(self, fragment: str, replica: str | None = None) -> list[dict[str, Any]]:
        return [
            entry
            for entry in self.report["reconciliations"]
            if entry["fragment"] == fragment and replica in (None, entry["replica"])
        ]


Rows = str | Mapping[str, str | SourceRows]


def run(
    query: str | Mapping[str, Any],
    *faults: str,
    rows: Rows = "generate:100,8",
    speed: float = 1.0,
    clock: ModelClock | None = None,
    prepare: Callable[[Run], None] | None = None,
    store: CheckpointStore | None = None,
    checked: bool = True,
    **overrides: Any,
) -> Ran:
    """Run a query to its end. rows: a generator for all streams, or what each one holds. prepare(run) is called once all
    instances have begun, at the first tick. checked: hold the result against `check`."""
    parsed = load_query(query)
    plan = plan_of(parsed, **overrides)
    struck = [parse_fault(fault) for fault in faults]
    check_faults(struck, plan)
    given = {name: rows if isinstance(rows, str) else rows[name] for name in parsed.streams}
    sources = {
        name: read_source(name, parsed.streams[name], held, 0) if isinstance(held, str) else held
        for name, held in given.items()
    }
    changes, stable, logs = io.StringIO(), io.StringIO(), RecordedLogs()
    played = Run(
        plan,
        sources,
        Pace(speed=speed),
        struck,
        clock or ModelClock(),
        logs,
        store or MemoryCheckpointStore(),
        changes=changes,
        stable=stable,
    )
    logs.now = lambda: played.world.now
    if prepare is not None:
        played.watch = _once(prepare)
    with _metered(played.world, played.clock):  # type: ignore[arg-type]
        outcome = played.go()
    ran = Ran(
        parsed, plan, played, outcome.is_stable, outcome.report, _records(changes), _records(stable), logs
    )
    if checked:
        check(ran)
    return ran


def _once(action: Callable[[Run], None]) -> Callable[[Run], None]:
    waiting = [action]

    def watch(played: Run) -> None:
        if waiting:
            waiting.pop()(played)

    return watch


def _records(text: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.getvalue().splitlines()]


def small_steps(step_rows: int) -> Callable[[Run], None]:
    """For `prepare`: every SUnion of a replica hands on about so few rows a step, as a slow machine must."""

    def prepare(played: Run) -> None:
        for process in played.world.processes.values():
            assert process.instance is not None
            sunion = process.instance.sunion
            sunion.settings = replace(sunion.settings, step_rows=step_rows)

    return prepare


_clean: dict[str, Ran] = {}


def clean(query: Mapping[str, Any], rows: str = "generate:100,8", speed: float = 1.0) -> Ran:
    """The run without faults, made once for each query."""
    key = json.dumps([query, rows, speed], sort_keys=True)
    if key not in _clean:
        _clean[key] = run(query, rows=rows, speed=speed)
    return _clean[key]


# What holds after any run


def check(ran: Ran) -> None:
    """A client that replays its changelog holds the stable output; no log ever took back, repeated or skipped a stable
    tuple; replicas wrote the same stable rows under the same ids (I1, I2, I6)."""
    assert replayed(ran.changes, leave_tentative=True)[: len(ran.stable)] == ran.stable
    if ran.is_stable:
        assert replayed(ran.changes) == ran.stable
        assert ran.report["n_tentative"] == ran.report["n_undone"]
    for fragment in ran.plan.fragments:
        for edge in fragment.outputs:
            for partition in range(edge.producers * edge.partitions):
                versions = [stable_of(ran.history(edge.name, replica, partition)) for replica in fragment.replicas]
                longest = max(versions, key=len)
                for version in versions:
                    assert version == longest[: len(version)], f"replicas of {edge.name} differ"


def replayed(changes: Iterable[dict[str, Any]], leave_tentative: bool = False) -> list[Any]:
    """What a client holds at the end of its changelog. An undo may revoke tentative records only."""
    held: list[dict[str, Any]] = []
    for record in changes:
        if record["type"] in ("stable", "tentative"):
            held.append(record)
        elif record["type"] == "undo":
            kept = [other for other in held if other["seq"] <= record["after_seq"]]
            assert all(other["type"] == "tentative" for other in held[len(kept) :]), "an undo revokes stable records"
            held = kept
    assert leave_tentative or all(record["type"] == "stable" for record in held), "tentative records remain"
    return [record["data"] for record in held]


def stable_of(history: Iterable[Logged]) -> list[tuple[Any, ...]]:
    """The stable rows of a log, which must have contiguous ids and never be undone; boundaries must hold."""
    rows: list[tuple[Any, ...]] = []
    through, incarnation = -INFINITY, 0
    tentative = False
    for logged in history:
        frame = logged.frame
        if frame.origin.incarnation < incarnation:
            continue
        incarnation = frame.origin.incarnation
        match frame:
            case Data(tentative=True):
                tentative = True
            case Data():
                assert not tentative, "stable rows follow tentative ones with no undo between"
                assert frame.first_id == len(rows), f"ids begin at {frame.first_id}, {len(rows)} rows are logged"
                rows += [tuple(row.values()) for row in frame.batch.to_pylist()]
                assert frame.batch.column(0)[0].as_py() >= through, "a row before the stable boundary"
            case Undo():
                assert frame.last_id == len(rows) - 1, "an undo reaches into the stable rows"
                tentative = False
            case Start():
                tentative = False
            case Boundary(tentative=False):
                assert frame.time >= through, "a stable boundary goes back"
                through = frame.time
    return rows


def tentative_spans(history: Iterable[Logged]) -> list[list[str]]:
    """The kinds of frames of a log in order, heartbeats left out: 'stable', 'tentative', 'undo', 'rec_done', 'start'."""
    kinds: list[str] = []
    for logged in history:
        match logged.frame:
            case Data(tentative=tentative):
                kind = "tentative" if tentative else "stable"
            case Undo():
                kind = "undo"
            case RecDone():
                kind = "rec_done"
            case Start():
                kind = "start"
            case _:
                continue
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
    return [kinds]


# Rows and frames by hand

SCHEMA = Schema.of({"v": "int"})


def batch_of(times: Sequence[int], values: Sequence[int] | None = None) -> pa.RecordBatch:
    """Rows (time, v); v counts from 0 where no values are given."""
    held = list(values) if values is not None else list(range(len(times)))
    return pa.RecordBatch.from_arrays([pa.array(list(times), pa.int64()), pa.array(held, pa.int64())], schema=SCHEMA.arrow)


def rows_of(name: str, times: Sequence[int], columns: Mapping[str, Sequence[Any]], schema: Schema) -> SourceRows:
    """What a source holds, by hand; times rising."""
    arrays = [pa.array(list(columns[column]), kind.arrow) for column, kind in schema.columns]
    return SourceRows(name, pa.RecordBatch.from_arrays([pa.array(list(times), pa.int64()), *arrays], schema=schema.arrow), [])


# One SUnion


def told(items: Iterable[Item]) -> list[tuple[Any, ...]]:
    """Items in short: ('stable' | 'tentative' | 'muted', rows (time, v), upto), ('mark', n), ('redone', n)."""
    short: list[tuple[Any, ...]] = []
    for item in items:
        match item:
            case Step():
                kind = "muted" if item.muted else "tentative" if item.tentative else "stable"
                rows = [tuple(row.values()) for batch in item.batches.values() for row in batch.to_pylist()]
                short.append((kind, rows, item.upto))
            case Mark(number):
                short.append(("mark", number))
            case Redone(number):
                short.append(("redone", number))
    return short


class SUnionDriver:
    """A SUnion over named ports with one column v, driven by hand. Buckets of 10; alpha*X is 1000, grace is 0."""

    def __init__(
        self,
        *names: str,
        alpha_x: int = 1000,
        failure: Hold = Hold.PROCESS,
        stabilization: Hold = Hold.PROCESS,
        grace: int = 0,
        stable_lag_max: int = 1_000_000,
        memory: int = 1 << 30,
        step_rows: int = 1 << 20,
        step_bytes: int = 1 << 30,
        bucket: int = 10,
        x: int = 0,
    ) -> None:
        self.names = names
        self.now = 0
        self.ports = {name: Port(f"{name}/0", name, bucket, grace) for name in names}
        settings = Settings(
            bucket_us=bucket,
            grace_us=grace,
            stable_lag_max_us=stable_lag_max,
            memory_bytes=memory,
            step_rows=step_rows,
            step_bytes=step_bytes,
            threshold_us=x,
        )
        merge = Merge("all", tuple(range(len(names))), SCHEMA)
        policy = Policy(failure=failure, stabilization=stabilization)
        self.sunion = SUnion(list(self.ports.values()), (merge,), settings, "t", policy, alpha_x)
        self.overdue_counts = True
        self.origin = Origin("r0", 1)

    def rows(
        self, name: str, *times: int, v: Sequence[int] | None = None, ingest: int | None = None, ingests: Ingest | None = None
    ) -> None:
        """Stable rows, ids as they follow; v is the id by default. `ingests` gives their ingest times in runs."""
        frame = self._data(self.ports[name].tape.next_id, times, v, ingest, False)
        self.ports[name].take_stable(frame if ingests is None else replace(frame, ingest=ingests), self.now)

    def tentative(
        self, name: str, *times: int, v: Sequence[int] | None = None, ingest: int | None = None, ingests: Ingest | None = None
    ) -> None:
        """Tentative rows; `ingests` gives their ingest times in runs."""
        frame = self._data(self.ports[name].tape.next_id, times, v, ingest, True)
        self.ports[name].take_tentative(frame if ingests is None else replace(frame, ingest=ingests))

    def boundary(self, name: str, time: int, tentative: bool = False, ingest: int | None = None) -> None:
        at = self.now if ingest is None else ingest
        self.ports[name].take_boundary(Boundary(self.origin, 0, time, tentative, at, at), self.now)

    def boundaries(self, time: int) -> None:
        """The same stable boundary on every port."""
        for name in self.names:
            self.boundary(name, time)

    def undo(self, name: str) -> None:
        self.ports[name].revoke(self.now)

    def silence(self, name: str, silent: bool = True) -> None:
        self.ports[name].silent = self.ports[name].failed = silent

    def at(self, now: int) -> list[tuple[Any, ...]]:
        """Let it be `now`, and take all that leaves, in short."""
        return told(self.items(now))

    def items(self, now: int) -> list[Item]:
        self.now = now
        out: list[Item] = []
        while items := self.sunion.advance(now, self.overdue_counts):
            out += items
        return out

    def _data(
        self, first: int, times: Sequence[int], v: Sequence[int] | None, ingest: int | None, tentative: bool
    ) -> Data:
        values = list(range(first, first + len(times))) if v is None else list(v)
        at = self.now if ingest is None else ingest
        t_max = max(times) - max(times) % 10 + 10
        return Data(self.origin, 0, first, batch_of(times, values), tentative, ((INFINITY, at),), t_max)


# One instance


class InstanceDriver:
    """One instance, fed by hand: no logs and no network, only what the test delivers.

    frames: what it appended, per log, in order. sent: messages. effects: everything, in order.
    """

    def __init__(self, plan: Plan, fragment: str = "main", replica: str = "r0", restart: Restart | None = None) -> None:
        self.plan = plan
        self.me = InstanceId(fragment, replica, 0)
        self.now = 0
        self.instance = Instance(plan, self.me, restart or Restart(1))
        self.effects: list[Effect] = []
        self.offsets: dict[LogId, int] = {}
        self.ids: dict[LogId, int] = {}
        self._take(self.instance.begin(0))

    @property
    def state(self) -> State:
        return self.instance.state

    @property
    def appended(self) -> list[Append]:
        return [effect for effect in self.effects if isinstance(effect, Append)]

    @property
    def states(self) -> list[State | None]:
        return [effect.state for effect in self.effects if isinstance(effect, StateChanged)]

    def frames(self, kind: type[Frame]) -> list[Frame]:
        return [effect.frame for effect in self.appended if isinstance(effect.frame, kind)]

    def sent(self, kind: type) -> list[Send]:
        return [effect for effect in self.effects if isinstance(effect, Send) and isinstance(effect.message, kind)]

    def until(self, now: int) -> list[Effect]:
        """Let time pass: every deadline up to `now` is kept, then a tick at `now`. Returns the effects since."""
        taken: list[Effect] = []
        while (due := self.instance.next_deadline()) <= now:
            self.now = max(self.now, due)
            taken += self._take(self.instance.handle(Tick(), self.now))
        self.now = now
        return taken + self._take(self.instance.handle(Tick(), now))

    def give(self, event: Event) -> list[Effect]:
        """Hand an event over, and tick as long as the instance has more to do."""
        taken = self._take(self.instance.handle(event, self.now))
        while self.instance.has_more:
            taken += self._take(self.instance.handle(Tick(), self.now))
        return taken

    def deliver(self, log: LogId, *frames: Frame, end: int | None = None) -> list[Effect]:
        """Frames of a followed log, at the offsets that follow."""
        first = self.offsets.get(log, 0)
        self.offsets[log] = first + len(frames)
        items = tuple(enumerate(frames, start=first))
        return self.give(Frames(log, items, self.offsets[log] if end is None else end))

    def deliver_all(self, rows: Mapping[str, Sequence[int]], boundary: int) -> list[Effect]:
        """Stable rows of each source stream, then a stable boundary on each."""
        taken: list[Effect] = []
        for edge in self.plan.fragment(self.me.fragment).edges:
            log = LogId(edge.name, "", 0)
            if rows.get(edge.name):
                taken += self.deliver(log, self.rows(edge.name, rows[edge.name]))
            taken += self.deliver(log, self.boundary(boundary))
        return taken

    def tail(self, log: LogId, frame: Frame) -> list[Effect]:
        """The newest boundary of a watched log."""
        return self.give(Tail(log, frame))

    def rows(
        self,
        stream: str,
        times: Sequence[int],
        replica: str = "",
        tentative: bool = False,
        epoch: int = 0,
        v: Sequence[int] | None = None,
    ) -> Data:
        """A DATA frame of the stream's log; stable ids follow one another."""
        log = LogId(stream, replica, 0)
        first = self.ids.get(log, 0)
        schema = next(e.schema for e in self.plan.fragment(self.me.fragment).edges if e.name == stream)
        values = list(v) if v is not None else list(range(first, first + len(times)))
        columns = [pa.array(list(times), pa.int64())]
        columns += [pa.array(values).cast(kind.arrow) for _, kind in schema.columns]
        if not tentative:
            self.ids[log] = first + len(times)
        batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
        bucket = self.plan.bucket_us
        t_max = max(times) - max(times) % bucket + bucket
        return Data(Origin(replica, 1), epoch, first, batch, tentative, ((INFINITY, self.now),), t_max)

    def boundary(
        self,
        time: int,
        replica: str = "",
        state: State = State.STABLE,
        tentative: bool = False,
        epoch: int = 0,
        incarnation: int = 1,
    ) -> Boundary:
        return Boundary(Origin(replica, incarnation), epoch, time, tentative, self.now, self.now, state)

    def _take(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects


def duration(text: str) -> int:
    """Microseconds of '250ms', '5s'."""
    return parse_duration(text, "duration")


