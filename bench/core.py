"""`boreal bench core`: the pure machines and the embedded driver on one core.

Each rate is the best of three rounds in this process, after a warm-up round, on synthetic frames made beforehand: three
streams of (time, int key of 1,000, double value), 8,192 tuples a frame, times jittered within a stream's bucket and
sorted within a frame. Latency and the year of flights run the whole embedded driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from bench.figures import Figure, as_report
from boreal.model.errors import UserError
from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Origin
from boreal.model.schema import Schema
from boreal.query.plan import Plan
from boreal.query.planner import plan
from boreal.query.spec import Mode, Policy, load_query
from boreal.query.sql_writing import write_sql
from embedded.file_log import FileLogStore
from embedded.file_sources import read_source
from embedded.paced_sources import Pace
from embedded.run import Run
from embedded.world import SkipClock
from logs.log import LogStore
from logs.memory_checkpoints import MemoryCheckpointStore
from logs.memory_log import MemoryLogStore
from operators.graph import FragmentGraph
from reconcile.events import (
    Acknowledge,
    Append,
    Effect,
    Follow,
    Frames,
    InstanceId,
    Obey,
    Read,
    ReadDone,
    Reconciled,
    Send,
    StateChanged,
    StoreCheckpoint,
    Tick,
    Unfollow,
    Wake,
    Watch,
)
from reconcile.host import Host
from reconcile.instance import Instance
from reconcile.recovery import Restart
from reconcile.strategy import Strategy
from sunion.port import Port
from sunion.steps import Step
from sunion.sunion import Merge, Settings, SUnion

FRAME_ROWS = 8_192
STREAMS = 3
ROUNDS = 3
STATE_KEYS = 10_000
STATE_BATCH = 40_000
BUCKET_US = 10_000
SCHEMA = Schema.of({"k": "int", "v": "double"})
SOURCE = Origin("", 1)


def main() -> dict[str, Any]:
    """Measure everything on one core, and return the report."""
    example = flights_example()
    with tempfile.TemporaryDirectory() as folder:
        prepare_flights(example, Path(folder))
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        pa.set_cpu_count(1)
        pure = [*_sql_to_plan(example), *_merge(), *_aggregate(), *_join(), *_redo(), *_rollback()]
        return as_report("core", [*pure, *_latency(), *_simulator(), *_flights(example, Path(folder))])


def flights_example() -> Path:
    """The folder examples/flights of the checkout that this is, or that the current directory is. It is in no installed
    package, so that it cannot be imported. UserError where there is none."""
    for root in (Path(__file__).resolve().parents[1], Path.cwd()):
        folder = root / "examples" / "flights"
        if (folder / "prepare.py").is_file():
            return folder
    problem = "measures the flights example too, and there is no examples/flights here"
    raise UserError("NAME", "core", problem, "run it in a checkout of boreal")


def prepare_flights(example: Path, folder: Path) -> None:
    """Write the example's inputs to a folder. UserError where its data is not installed."""
    command = [sys.executable, "-P", str(example / "prepare.py"), str(folder)]
    made = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if made.returncode:
        reason = made.stderr.strip().splitlines()[-1]
        problem = f"cannot make the inputs of the flights example: {reason}"
        raise UserError("NAME", "core", problem, "run pip install 'boreal[examples]'")


def _best(work: Callable[[], float]) -> float:
    work()
    return max(work() for _ in range(ROUNDS))


# Frames


def _frames(count: int, tuples_per_bucket: int, seed: int = 0) -> list[list[tuple[Data, Boundary]]]:
    """For each stream `count` frames, each with its boundary; a bucket has `tuples_per_bucket` tuples over all streams."""
    random = np.random.default_rng(seed)
    span = max(FRAME_ROWS * STREAMS * BUCKET_US // tuples_per_bucket, 1)
    streams = []
    for _ in range(STREAMS):
        frames = []
        for number in range(count):
            start = number * span
            times = np.sort(random.integers(start, start + span, FRAME_ROWS))
            columns = [pa.array(times), pa.array(random.integers(0, 1000, FRAME_ROWS)), pa.array(random.random(FRAME_ROWS))]
            batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA.arrow)
            data = Data(SOURCE, 0, number * FRAME_ROWS, batch, False, ((INFINITY, number),), start + span)
            frames.append((data, Boundary(SOURCE, 0, start + span, False, number, number)))
        streams.append(frames)
    return streams


def _steps(streams: list[list[tuple[Data, Boundary]]]) -> Iterator[Step]:
    """The stable steps of a SUnion that gets the streams' frames in turn."""
    ports = [Port(f"s{at}/0", f"s{at}", BUCKET_US, 0) for at in range(STREAMS)]
    settings = Settings(BUCKET_US, 0, 1 << 60, 1 << 30)
    merges = (Merge("all", tuple(range(STREAMS)), SCHEMA),)
    sunion = SUnion(ports, merges, settings, "bench", Policy(), 1 << 60)
    for number, turn in enumerate(zip(*streams, strict=True)):
        for port, (data, boundary) in zip(ports, turn, strict=True):
            port.take_stable(data, number)
            port.take_boundary(boundary, number)
        while items := sunion.advance(number, True):
            for item in items:
                if isinstance(item, Step):
                    yield item
        sunion.trim(sunion.base.position)


# SUnion


def _merge() -> list[Figure]:
    large, small = _frames(200, FRAME_ROWS), _frames(100, 100)

    def merge(streams: list[list[tuple[Data, Boundary]]]) -> float:
        started = time.perf_counter()
        rows = sum(step.batches["all"].num_rows for step in _steps(streams))
        return rows / (time.perf_counter() - started) / 1e6

    def plain_union() -> float:
        started = time.perf_counter()
        rows = sum(pa.concat_batches([data.batch for data, _ in turn]).num_rows for turn in zip(*large, strict=True))
        return rows / (time.perf_counter() - started) / 1e6

    merged, union = _best(lambda: merge(large)), _best(plain_union)
    return [
        Figure("SUnion, 3 streams, buckets of 8,192", merged, "M tuples/s", 30),
        Figure("SUnion, buckets of 100", _best(lambda: merge(small)), "M tuples/s", 5),
        Figure("SUnion's time over a plain union's (concatenation alone)", union / merged, "x"),
    ]


# Operators


WIDE = "  sums: {aggregate: all, window: {tumbling: 1h}, by: [k], compute: {n: count(*), total: sum(v)}}"


def _graph(operators: str, output: str) -> FragmentGraph:
    streams = "\n".join(f"  s{at}: {{time: time, schema: {{k: int, v: double}}, disorder: 0s}}" for at in range(STREAMS))
    text = f"name: bench\nstreams:\n{streams}\noperators:\n  all: {{union: [s0, s1, s2]}}\n{operators}\noutput: {output}\n"
    return FragmentGraph(plan(load_query(text)).fragments[0])


AGGREGATE = """
  late: {filter: all, where: "v > 0.1"}
  sums: {aggregate: late, window: {tumbling: 1s}, by: [k], compute: {n: count(*), total: sum(v)}}
"""


def _aggregate() -> list[Figure]:
    graph = _graph(AGGREGATE, "sums")

    def run(streams: list[list[tuple[Data, Boundary]]]) -> float:
        state, rows = graph.empty(), 0
        started = time.perf_counter()
        for step in _steps(streams):
            rows += step.batches["all"].num_rows
            graph.step(state, step.batches, step.upto)
        return rows / (time.perf_counter() - started) / 1e6

    figures = []
    for bucket, target in ((24_000, 10), (3_000, 3)):
        streams = _frames(100, bucket)
        rate = _best(lambda streams=streams: run(streams))  # type: ignore[misc]
        figures.append(Figure(f"SUnion + filter + 1 s aggregate, buckets of {bucket:,}", rate, "M tuples/s", target))
    return figures


def _join_graph(within: str) -> FragmentGraph:
    text = f"""
name: bench
streams:
  s0: {{time: time, schema: {{k: int, v: double}}, disorder: 0s}}
  s1: {{time: time, schema: {{k: int, v: double}}, disorder: 0s}}
operators:
  both: {{join: [s0, s1], on: [k], within: {within}, how: inner}}
output: both
"""
    return FragmentGraph(plan(load_query(text)).fragments[0])


def _join() -> list[Figure]:
    graph = _join_graph("1ms")
    streams = _frames(60, FRAME_ROWS)[:2]

    def run() -> float:
        state, rows = graph.empty(), 0
        started = time.perf_counter()
        for (left, boundary), (right, _) in zip(*streams, strict=True):
            rows += 2 * FRAME_ROWS
            graph.step(state, {"s0": left.batch, "s1": right.batch}, boundary.time)
        return rows / (time.perf_counter() - started) / 1e6

    return [Figure("window join, 1,000 keys, within 1 ms", _best(run), "M tuples/s", 3)]


# Redo


def _feed(instance: Instance, logs: LogStore, effects: list[Effect], now: int) -> None:
    """Perform the reads of an instance until it has no more work. Nobody reads what it writes, and it has no peers."""
    pending = list(effects)
    while pending or instance.has_more:
        follow_up: list[Effect] = []
        for effect in pending:
            match effect:
                case Read(log_id, after_id, max_bytes, token):
                    log = logs.open(log_id)
                    items = log.read(log.offset_after(after_id), 64, max_bytes)
                    follow_up += instance.handle(ReadDone(log_id, token, tuple(items)), now)
                case Append() | Follow() | Unfollow() | Watch() | Send() | Acknowledge() | Wake() | StoreCheckpoint():
                    pass
                case Obey() | StateChanged() | Reconciled():
                    pass
                case _:
                    assert_never(effect)
        while not follow_up and instance.has_more:
            follow_up = instance.handle(Tick(), now)
        pending = follow_up


def _redo_rate(logs: LogStore, memory: str) -> float:
    """Millions of tuples per second that an instance redoes after a cut of one of its three streams, without other load."""
    tuning = f"tuning: {{bucket: 10ms, boundary_interval: 10ms, memory: {memory}}}\nreconcile: overlay_redo\n"
    streams = "\n".join(f"  s{at}: {{time: time, schema: {{k: int, v: double}}, disorder: 0s}}" for at in range(STREAMS))
    text = (
        f"name: bench\nstreams:\n{streams}\noperators:\n  all: {{union: [s0, s1, s2]}}\n{AGGREGATE}\noutput: sums\n"
        f"delay_threshold: 1s\n{tuning}"
    )
    planned = plan(load_query(text))
    instance = Instance(planned, InstanceId("main", "r0", 0), Restart(1))
    instance.begin(0)
    count = 100
    frames = _frames(count, FRAME_ROWS)
    ids = [LogId(f"s{at}", "", 0) for at in range(STREAMS)]
    offsets = dict.fromkeys(ids, 0)

    def give(at: int, number: int, now: int) -> None:
        data, boundary = frames[at][number]
        items: tuple[tuple[int, Frame], ...] = ((offsets[ids[at]], data), (offsets[ids[at]] + 1, boundary))
        offsets[ids[at]] += 2
        _feed(instance, logs, instance.handle(Frames(ids[at], items, offsets[ids[at]]), now), now)

    for at in range(STREAMS):
        for data, boundary in frames[at]:
            for frame in (data, boundary):
                logs.open(ids[at]).append(frame)
    now = 1_000
    for at in range(STREAMS):
        give(at, 0, now)
    for number in range(1, count):
        now += 20_000
        for at in range(STREAMS - 1):
            give(at, number, now)
    for _ in range(200):
        now += 20_000
        for at in range(STREAMS - 1):
            heartbeat = frames[at][count - 1][1]
            _feed(instance, logs, instance.handle(Frames(ids[at], ((offsets[ids[at]], heartbeat),), 0), now), now)
    assert instance.status().is_tentative, "the cut must have led to tentative output"
    items: list[tuple[int, Frame]] = []
    for number in range(1, count):
        data, boundary = frames[STREAMS - 1][number]
        items += [(2 * number, data), (2 * number + 1, boundary)]
    started = time.perf_counter()
    _feed(instance, logs, instance.handle(Frames(ids[-1], tuple(items), 2 * count), now), now)
    while (status := instance.status()).is_redoing or status.is_tentative:
        now += 1_000
        _feed(instance, logs, instance.handle(Tick(), now), now)
    return status.redo_tuples / (time.perf_counter() - started) / 1e6


def _redo() -> list[Figure]:
    def from_file() -> float:
        with tempfile.TemporaryDirectory() as folder:
            logs = FileLogStore(Path(folder))
            try:
                return _redo_rate(logs, "1MB")
            finally:
                logs.close()

    from_memory = _best(lambda: _redo_rate(MemoryLogStore(), "1GB"))
    return [
        Figure("redo (SUnion + filter + aggregate) from memory", from_memory, "M tuples/s", 10),
        Figure("redo, read again from a file log", _best(from_file), "M tuples/s", 3),
    ]


# Rollback


def _rollback() -> list[Figure]:
    """MARK and ROLLBACK time against state size; undo_redo's includes the rebuild, from rows in memory.

    Two kinds of state: a join's, which is its input rows, and an aggregate's, in which each row stands for many input rows
    that a rebuild must process again.
    """
    join, aggregate = _join_graph("1h"), _graph(WIDE, "sums")
    figures = []
    overlay: dict[int, float] = {}
    for megabytes in (1, 10, 100):
        batches = _state_rows(megabytes * 1_000_000 // 24, STATE_KEYS)
        for mode in Mode:
            taken = min(_rollback_once(join, "s0", mode, batches) for _ in range(ROUNDS)) * 1e3
            if mode is Mode.OVERLAY_REDO:
                overlay[megabytes] = taken
            figures.append(Figure(f"mark + rollback, join state of {megabytes} MB, {mode.value}", taken, "ms"))
    batches = _state_rows(10_000_000, 100_000)
    for mode in Mode:
        taken = min(_rollback_once(aggregate, "all", mode, batches) for _ in range(ROUNDS)) * 1e3
        figures.append(Figure(f"mark + rollback, 100,000 groups of 100 rows each, {mode.value}", taken, "ms"))
    figures.append(Figure("overlay_redo's mark + rollback at 100 MB", overlay[100], "ms", 5, lower_is_better=True))
    return figures


def _state_rows(rows: int, keys: int) -> list[pa.RecordBatch]:
    """Rows of 24 bytes each, in batches of the size of steps."""
    batches = []
    for first in range(0, rows, STATE_BATCH):
        times = np.arange(first, min(first + STATE_BATCH, rows))
        columns = [pa.array(times), pa.array(times % keys), pa.array(np.ones(len(times)))]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA.arrow))
    return batches


def _rollback_once(graph: FragmentGraph, name: str, mode: Mode, batches: list[pa.RecordBatch]) -> float:
    host, strategy = Host(graph, mode), Strategy(graph, mode)

    def give(batch: pa.RecordBatch, tentative: bool) -> int:
        upto = int(batch.column(0)[-1].as_py()) + 1
        host.step(Step({"s1": SCHEMA.empty(), name: batch}, upto, tentative, False, ((upto, 0),)))
        return upto

    def fill() -> int:
        return [give(batch, False) for batch in batches][-1]

    upto = fill()
    one = pa.RecordBatch.from_arrays([pa.array([upto]), pa.array([-1]), pa.array([1.0])], schema=SCHEMA.arrow)
    started = time.perf_counter()
    host.mark(strategy.copies_at_mark)
    strategy.copied_at = upto
    marked = time.perf_counter() - started
    give(one, True)
    started = time.perf_counter()
    host.roll_back(keep_live=False)
    if strategy.replay_from(upto) < upto:
        fill()
    host.redone()
    return marked + time.perf_counter() - started


# The embedded driver


def _run(planned: Plan, rows: dict[str, Any], pace: Pace) -> tuple[dict[str, Any], float]:
    run = Run(planned, rows, pace, (), SkipClock(), MemoryLogStore(), MemoryCheckpointStore())
    started = time.perf_counter()
    outcome = run.go()
    assert outcome.is_stable
    return outcome.report, time.perf_counter() - started


def _latency() -> list[Figure]:
    """Ingest to client at 10,000 tuples/s with 10 ms buckets, on a clock that counts the real time of all work. A row logged at
    its bucket's start must wait for the bucket's end, and for the boundary after it, which comes once a boundary interval."""
    text = """
name: bench
streams: {s0: {time: time, schema: {k: int, v: double}, disorder: 0s}}
operators:
  kept: {filter: s0, where: "v >= 0"}
output: kept
delay_threshold: 1s
tuning: {bucket: 10ms, boundary_interval: 5ms}
"""
    query = load_query(text)
    rows = {"s0": read_source("s0", query.streams["s0"], "generate:10000,10,100")}
    report, _ = _run(plan(query), rows, Pace(speed=1.0))
    own_wait_ms = 10.0
    return [
        Figure("embedded latency at 10,000 tuples/s, 10 ms buckets, p99", report["delay_new_ms_p99"], "ms"),
        Figure("p99 beyond the bucket's own 10 ms", report["delay_new_ms_p99"] - own_wait_ms, "ms", 5, lower_is_better=True),
    ]


def _sql_to_plan(example: Path) -> list[Figure]:
    """The first query that this process plans: no expression is in a cache."""
    text = write_sql(load_query(example / "weather.yaml"))

    def run() -> float:
        started = time.perf_counter()
        plan(load_query(text))
        return (time.perf_counter() - started) * 1e3

    return [Figure("weather.yaml in SQL, from its text to its plan", run(), "ms", 50, lower_is_better=True)]


def _simulator() -> list[Figure]:
    from simulation.campaign import simulate

    simulate(5, 1)
    started = time.perf_counter()
    seeds = 100
    simulate(seeds, 1)
    return [Figure("simulator", seeds / (time.perf_counter() - started) * 60, "seeds/min", 600)]


def _flights(example: Path, folder: Path) -> list[Figure]:
    """folder: the example's inputs."""
    query = load_query(example / "departures.yaml")
    started = time.perf_counter()
    rows = {name: read_source(name, query.streams[name], f"{folder}/{name}.csv") for name in query.streams}
    read = time.perf_counter() - started
    departures = sum(source.batch.num_rows for source in rows.values())
    _, took = _run(plan(query), rows, Pace(rate=1e9))
    return [
        Figure("flights of a year", departures, "tuples"),
        Figure("the year through departures.yaml, reading the files included", read + took, "s", 3, lower_is_better=True),
    ]
