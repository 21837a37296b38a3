"""`boreal bench delays`: are answers given within X, and bounds kept, where replicas, limits and time are difficult?

Each figure runs production objects: whole queries in the embedded driver, one instance that is fed by hand, a source's intake,
or a scenario of the simulator. Time is simulated, so that runs repeat exactly, except where work itself is measured: the
backlog of an instance, and the copy of a large state.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from bench.figures import Figure, as_report
from boreal.model.frames import INFINITY, Boundary, Data, LogId, Origin
from boreal.query.plan import EGRESS, Plan
from boreal.query.planner import plan
from boreal.query.spec import Stream, load_query
from embedded.faults import check_faults, parse_fault
from embedded.file_sources import read_source
from embedded.paced_sources import Pace
from embedded.run import Run
from embedded.world import Clock, ModelClock, SkipClock
from intake.intake import Intake, SourceStream
from intake.place import SourcePlace
from intake.user_records import PartitionRecords
from logs.memory_checkpoints import MemoryCheckpointStore
from logs.memory_log import MemoryLogStore
from reconcile.events import Effect, Event, Frames, InstanceId, Read, ReadDone, Tail, Tick
from reconcile.instance import Instance
from reconcile.recovery import Restart
from simulation.campaign import ScenarioJudge
from simulation.families import make_family_scenario

SECOND = 1_000_000
X_MS = 1_000.0
START_US = 1_767_225_600_000_000
ROWS = Stream.model_validate({"topic": "rows", "time": "time", "schema": {"k": "int", "v": "double"}})
STREAM = "{time: time, schema: {k: int, v: double}}"

BACKLOG_STREAMS, BACKLOG_FRAMES, BACKLOG_ROWS = 8, 60, 20_000
BACKLOG_MEMORY_MB = 64

SIMULATED = (
    ("a correction that ends inside a tentative frame", "overtaken", 40),
    ("a fixed alpha*X, two shards whose clocks differ by 10 to 30 ms", "shared", 0),
    ("rows out of order for longer than X", "early", 0),
    ("wall clocks that are wrong by up to 2 s", "clocks", 5),
)
"""(what, family, seed) of figures that are scenarios of the simulator."""


def main() -> dict[str, Any]:
    """Measure everything, and return the report."""
    return as_report(
        "delays",
        [
            *_lost_inputs(),
            _replica_behind(),
            _future_row(),
            _long_failure(),
            _ended_stream(),
            *_backlog(),
            _large_state(),
            *(_scenario(*simulated) for simulated in SIMULATED),
        ],
    )


# Whole queries


def query_of(operators: str, output: str, more: str = "") -> Plan:
    """The plan of a query over the streams a and b, with X = 1 s and two replicas. more: further lines of the query."""
    text = f"""
name: delays
streams:
  a: {STREAM}
  b: {STREAM}
operators:
  all: {{union: [a, b]}}
{operators}
output: {output}
delay_threshold: 1s
replicas: 2
policy: {{failure: process, stabilization: process}}
{more}
"""
    return plan(load_query(text))


def run(planned: Plan, rows: dict[str, str], *faults: str, seed: int = 1, clock: Clock | None = None) -> dict[str, Any]:
    """The report of a run, as `boreal run --speed 1x --seed K --clock skip` prints it. AssertionError if not all replicas end
    STABLE."""
    struck = [parse_fault(fault) for fault in faults]
    check_faults(struck, planned)
    given = {name: read_source(name, ROWS, made, seed) for name, made in rows.items()}
    logs, store = MemoryLogStore(), MemoryCheckpointStore()
    outcome = Run(planned, given, Pace(speed=1.0), struck, clock or ModelClock(), logs, store).go()
    assert outcome.is_stable, outcome.report["states"]
    return outcome.report


def _delay(name: str, report: dict[str, Any]) -> Figure:
    return Figure(f"longest delay: {name}", report["delay_new_ms_max"], "ms", X_MS, lower_is_better=True)


def _lost_inputs() -> list[Figure]:
    union, rows = query_of("", "all"), dict.fromkeys("ab", "generate:50,20")
    found = [
        _delay(f"b is cut, then a to {replica}", run(union, rows, "cut b at 3s for 14s", f"cut a to {replica} at 6s for 10s"))
        for replica in ("r0", "r1")
    ]
    unlike = run(union, rows, "cut b to r0 at 3s for 14s", "cut a to r1 at 6s for 10s")
    return [*found, _delay("b is cut to r0, a to r1", unlike)]


def _long_failure() -> Figure:
    """The state has no window, so it is checkpointed all the time, and notes and trims meet at the correction."""
    seen = query_of("  seen: {distinct: all, on: [k]}", "seen", "reconcile: checkpoint_redo")
    report = run(seen, dict.fromkeys("ab", "generate:20,400,1000"), "cut b at 60s for 320s")
    return _delay("an unbounded state, b is cut for 320 s", report)


def _ended_stream() -> Figure:
    """The cut ends when open windows have just been flushed without b."""
    report = run(query_of("", "all"), {"a": "generate:50,3", "b": "generate:50,25"}, "cut b at 2s for 2s")
    return _delay("a has ended, b comes back after that", report)


def _large_state() -> Figure:
    """The copy at MARK takes its real time."""
    seen = query_of("  seen: {distinct: all, on: [k], window: {tumbling: 1h}}", "seen", "reconcile: checkpoint_redo")
    report = run(seen, dict.fromkeys("ab", "generate:50000,8,900000"), "cut b at 6s for 3s", clock=SkipClock())
    return _delay("MARK with a state of 500,000 groups", report)


# One instance


def _frames(schema: pa.Schema, first_id: int, times: np.ndarray, now: int, replica: str = "") -> tuple[Data, Boundary]:
    """Rows of these times, and the boundary behind them."""
    columns = [pa.array(times), pa.array(times % 9), pa.array(np.ones(len(times)))]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    origin, end = Origin(replica, 1), int(times[-1]) + 1
    return Data(origin, 0, first_id, batch, False, ((INFINITY, now),), end), Boundary(origin, 0, end, False, now, now)


def _replica_behind() -> Figure:
    """Of two STABLE replicas r0, which is read, falls behind by 5 s, half as fast as time passes; r1 is current."""
    planned = query_of("", "all")
    egress = Instance(planned, InstanceId(EGRESS, "r0", 0), Restart(1))
    egress.begin(0)
    [link] = egress.links
    schema, step = planned.output.schema.arrow, 50_000
    for number in range(1, 400):
        now = number * step
        reached = now - min(now // 2, 5 * SECOND)
        data, _ = _frames(schema, number - 1, np.array([reached]), now, "r0")
        boundary = Boundary(Origin("r0", 1), 0, reached + 1, False, reached, now)
        events: list[Event] = [Tail(LogId("all", "r1", 0), Boundary(Origin("r1", 1), 0, now, False, now, now))]
        if link.upstream.live.log.replica == "r0":
            events.insert(0, Frames(LogId("all", "r0", 0), ((2 * number, data), (2 * number + 1, boundary)), 2 * number + 2))
        for event in events:
            egress.handle(event, now)
        while egress.has_more:
            egress.handle(Tick(), now)
        if link.upstream.live.log.replica == "r1":
            return Figure("a STABLE replica falls behind: how far, when it is left", (now - reached) / 1e3, "ms", X_MS, True)
    return Figure("a STABLE replica falls behind: how far, when it is left", 5_000.0, "ms", X_MS, True)


def _backlog() -> list[Figure]:
    """Every input always has the next frame waiting, as a reader's flow control gives it: one, until the last is taken."""
    names = [f"s{number}" for number in range(BACKLOG_STREAMS)]
    streams = "\n".join(f"  {name}: {STREAM}" for name in names)
    planned = plan(
        load_query(
            f"name: backlog\nstreams:\n{streams}\noperators:\n  all: {{union: [{', '.join(names)}]}}\n"
            f"  kept: {{filter: all, where: 'v > 0.5'}}\noutput: kept\ndelay_threshold: 2s\nreplicas: 2\n"
            f"tuning: {{memory: {BACKLOG_MEMORY_MB}MB}}\n"
        )
    )
    instance = Instance(planned, InstanceId("main", "r0", 0), Restart(1))
    schema, logs = planned.fragment("main").edges[0].schema.arrow, MemoryLogStore()
    for name in names:
        for number in range(BACKLOG_FRAMES):
            times = np.arange(BACKLOG_ROWS) * 5 + number * 100_000
            for frame in _frames(schema, number * BACKLOG_ROWS, times, 0):
                logs.open(LogId(name, "", 0)).append(frame)
    started = time.perf_counter()

    def now() -> int:
        return int((time.perf_counter() - started) * 1e6)

    reads: deque[Read] = deque()

    def perform(effects: list[Effect]) -> None:
        reads.extend(effect for effect in effects if isinstance(effect, Read))

    perform(instance.begin(now()))
    inbox = deque((now(), name, 0) for name in names)
    pauses, ticked_at, held = [0], now(), 0
    while inbox or reads or instance.has_more:
        if reads:
            read = reads.popleft()
            log = logs.open(read.log)
            items = tuple(log.read(log.offset_after(read.after_id), 64, read.max_bytes))
            perform(instance.handle(ReadDone(read.log, read.token, items), now()))
        elif inbox and not instance.is_starving(now()):
            _, name, offset = inbox.popleft()
            log_id = LogId(name, "", 0)
            items = tuple(logs.open(log_id).read(offset, 2, 1 << 30))
            perform(instance.handle(Frames(log_id, items, 2 * BACKLOG_FRAMES), now()))
            if offset + 2 < 2 * BACKLOG_FRAMES:
                inbox.append((now(), name, offset + 2))
        else:
            pauses.append(now() - ticked_at)
            perform(instance.handle(Tick(inbox[0][0] if inbox else None), now()))
            ticked_at = now()
        held = max(held, instance.held_bytes)
    frame_mb = BACKLOG_ROWS * 24 / 1e6
    rows = BACKLOG_STREAMS * BACKLOG_FRAMES * BACKLOG_ROWS
    return [
        Figure(
            f"a backlog of {rows / 1e6:.1f} M rows on eight inputs: longest time without a Tick",
            max(pauses) / 1e3,
            "ms",
            300,
            lower_is_better=True,
        ),
        Figure("the same: most that the ports held", held / 1e6, "MB", BACKLOG_MEMORY_MB + frame_mb, lower_is_better=True),
    ]


# A source


@dataclass(frozen=True)
class _Record:
    """A record of a user's topic."""

    offset: int
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    key: bytes | None = None
    timestamp: int = 0


def _future_row() -> Figure:
    """1,000 rows, 10 ms apart, as they happen; the 100th is dated an hour ahead."""
    planned = query_of("", "all")
    edges = tuple(edge for edge in planned.sources if edge.operator == "a")
    stream = SourceStream("a", ROWS, "a", edges, planned.bucket_us)
    intake = Intake(stream, Origin("", 1), SourcePlace({f"{edge.name}/0": 0 for edge in edges}))
    refused = 0
    for offset in range(1_000):
        now = START_US + offset * 10_000
        at = now + (3_600 * SECOND if offset == 100 else 0)
        value = json.dumps({"time": datetime.fromtimestamp(at / 1e6, UTC).isoformat(), "k": 1, "v": 1.0}).encode()
        batch = intake.take({0: PartitionRecords.of([_Record(offset, value)], False)}, now)
        refused += len(batch.letters) - (offset == 100)
    return Figure("a row an hour ahead: other rows that are refused", refused, "rows", 0, lower_is_better=True)


# Scenarios of the simulator


def _scenario(name: str, family: str, seed: int) -> Figure:
    violations = ScenarioJudge(make_family_scenario(family, seed)).judge().violations
    return Figure(f"{name}: violations of I1 to I7", len(violations), "violations", 0, lower_is_better=True)
