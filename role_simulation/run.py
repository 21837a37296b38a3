"""Runs a scenario, and says what is wrong with the results that clients were given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pyarrow as pa
from kafka import TopicPartition

from boreal.model.frames import LogId, State
from boreal.query.plan import Plan
from formats.client_headers import ID, INCARNATION
from formats.json_text import column_texts, joined, object_parts, time_us
from role_simulation.broker import Broker
from role_simulation.scenario import FED_US, QUIET_US, STEADY_FROM_US, RoleFault, RoleScenario
from role_simulation.scheduler import SimulatedProcess
from role_simulation.threads import EPOCH_US, now_us
from role_simulation.world import SITE, Program, RoleWorld
from services.hosting.process import EXIT_BEGIN_ANEW, EXIT_FAILED
from services.kafka.topics import STATUS, latest_topic, out_topic, stable_topic
from simulation.client import faults_of_records
from simulation.feed import StreamFeed
from simulation.oracle import Oracle

SLACK_US = 300_000
"""How much longer than X a result may take in a run: requests and turns take time, also where X does not count them."""

_UNDUE = {EXIT_FAILED: "it has failed", EXIT_BEGIN_ANEW: "rows that it needed were trimmed"}
"""Exit codes that no fault of a run accounts for."""


@dataclass
class RoleRun:
    """What a run has shown."""

    problems: list[str] = field(default_factory=list)
    """What is wrong; empty if all is right."""
    rows: int = 0
    """The number of stable rows."""
    tentative: int = 0
    """The number of tentative rows that clients were given."""
    longest_lag_us: int = 0
    """How far results were behind the clock, at most, where that is bounded."""
    ends: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often a role of each kind has ended by itself, with which exit code."""
    passed: Counter[str] = field(default_factory=Counter)
    """How often each failpoint was passed."""
    digest: str = ""
    """Of all records of all topics but the statuses, which tell of the real machine too."""
    turns: int = 0
    """The number of turns of all threads."""


def run_scenario(scenario: RoleScenario) -> RoleRun:
    """Run it to its end, and check it."""
    world = RoleWorld(scenario.seed, [scenario.record], scenario.workers)
    found = RoleRun()
    out = TopicPartition(out_topic(scenario.query.name, SITE, (SITE,)), 0)
    lag = _Lag(world.broker, out)
    with world.in_use():
        for topic in scenario.records:
            world.broker.create(topic, 1)
        world.broker.on_append.append(lag.take)
        world.begin()
        _feed(world, scenario)
        for fault in scenario.faults:
            _plan(world, fault)
        try:
            world.run(FED_US + QUIET_US)
        except AssertionError as error:
            found.problems.append(f"the run does not end: {error}")
        found.problems += [f"{thread.name} has ended: {error!r}" for thread, error in world.scheduler.errors]
        found.ends, found.passed, found.turns = world.ends, world.passed, world.scheduler.turns
        if not scenario.has_twins:
            found.problems += [f"a {kind} has ended: {_UNDUE[code]}" for kind, code in world.ends if code in _UNDUE]
        found.digest = _digest(world.broker)
        found.problems += _check(world, scenario, out, found)
        world.end()
    found.longest_lag_us = lag.longest_us
    plan = world.layouts[scenario.query.name].plan
    allowed_us = plan.delay_threshold_us + plan.disorder_us + plan.bucket_us + scenario.longest_pause_us + SLACK_US
    if scenario.spares_last_worker and lag.longest_us > allowed_us:
        found.problems.append(f"results were {lag.longest_us} us behind the clock, at {lag.at_us} us")
    return found


def _digest(broker: Broker) -> str:
    made = sha256()
    for place, partition in sorted(broker.partitions.items()):
        if place.topic != STATUS:
            made.update(repr([(place, each.timestamp_ms, each.key, each.value) for each in partition.records]).encode())
    return made.hexdigest()[:16]


class _Lag:
    """How far what clients have been told reaches behind the clock."""

    def __init__(self, broker: Broker, out: TopicPartition) -> None:
        self.longest_us = 0
        self.at_us = 0
        self._broker = broker
        self._out = out
        self._through: int | None = None

    def take(self, place: TopicPartition, offset: int) -> None:
        if place != self._out:
            return
        record = json.loads(self._broker.partitions[place].records[offset].value or b"")
        if record["type"] != "boundary":
            return
        now = now_us()
        if self._through is not None and STEADY_FROM_US < self._since_start(now) < FED_US:
            # Just before this record, this was the last that clients had heard.
            lag = now - self._through
            if lag > self.longest_us:
                self.longest_us, self.at_us = lag, self._since_start(now)
        self._through = max(self._through or 0, time_us(record["through"]))

    def _since_start(self, now: int) -> int:
        return now - EPOCH_US


def _feed(world: RoleWorld, scenario: RoleScenario) -> None:
    producers = SimulatedProcess("producers")

    def write(topic: str) -> None:
        for at_us, partition, value in scenario.records[topic]:
            world.scheduler.sleep(max(at_us - world.scheduler.now_us, 0))
            world.broker.put(TopicPartition(topic, partition), value)

    for topic in scenario.records:
        world.scheduler.start(producers, topic, lambda topic=topic: write(topic))  # type: ignore[misc]


def _plan(world: RoleWorld, fault: RoleFault) -> None:
    if fault.kind == "failpoint":
        world.kill_at[fault.name] = fault.at_us
        return
    worker = world.workers[fault.worker]
    if fault.kind == "twin":
        world.scheduler.call(fault.at_us, lambda: _double(world, worker, fault.for_us))
        return
    begin, end = {
        "kill": (lambda: world.kill(worker), lambda: None),
        "freeze": (lambda: world.freeze(worker), lambda: world.thaw(worker)),
        "cut": (lambda: worker.link.cut.update(("read", "write")), worker.link.cut.clear),
        "cut_reads": (lambda: worker.link.cut.add("read"), worker.link.cut.clear),
        "cut_writes": (lambda: worker.link.cut.add("write"), worker.link.cut.clear),
        "late": (lambda: setattr(worker.link, "late", 0.05), lambda: setattr(worker.link, "late", 0.0)),
        "lossy": (lambda: setattr(worker.link, "lost", 0.05), lambda: setattr(worker.link, "lost", 0.0)),
        "redis_down": (lambda: setattr(world.redis, "is_up", False), lambda: setattr(world.redis, "is_up", True)),
        "redis_silent": (lambda: setattr(world.redis, "is_silent", True), lambda: setattr(world.redis, "is_silent", False)),
        "broker": (lambda: setattr(world.broker, "is_up", False), lambda: setattr(world.broker, "is_up", True)),
    }[fault.kind]
    world.scheduler.call(fault.at_us, begin)
    world.scheduler.call(fault.at_us + fault.for_us, end)


def _double(world: RoleWorld, worker: Program, for_us: int) -> None:
    twin = world.double(worker)
    world.scheduler.call(for_us, lambda: world.remove(twin))


# What is right


def _check(world: RoleWorld, scenario: RoleScenario, out: TopicPartition, found: RoleRun) -> Iterator[str]:
    plan = world.layouts[scenario.query.name].plan
    expected = expected_rows(plan, scenario)
    stable = list(world.broker.committed(TopicPartition(stable_topic(scenario.query.name), 0)))
    found.rows = len(stable)
    ids = [int(dict(record.headers)[ID]) for record in stable]
    if ids != list(range(len(ids))):
        yield f"q.stable has the ids {ids}"
    texts = [(record.value or b"").decode() for record in stable]
    yield from _differences("q.stable", texts, expected)
    found.tentative = sum(record["type"] == "tentative" for _, _, record in _records_of(world.broker, out))
    yield from _faults_of_out(world.broker, out, expected)
    if not scenario.has_twins:
        texts = [(record.value or b"").decode() for record in world.broker.committed(out)]
        yield from faults_of_records(texts, expected, is_settled=True)
    if plan.latest:
        yield from _faults_of_latest(world.broker, TopicPartition(latest_topic(scenario.query.name), 0), expected)
    yield from _unready(world)


def _faults_of_latest(broker: Broker, latest: TopicPartition, expected: list[str]) -> Iterator[str]:
    """What is wrong with the newest record of each key, once nothing is tentative any more."""
    newest = {record.key: record for record in broker.committed(latest)}
    rows = {record.value.decode() for record in newest.values() if record.value is not None}
    if any(name == "tentative" for record in newest.values() for name, _ in record.headers):
        yield "q.latest has tentative rows"
    if rows != (due := set({json.dumps(_key_of(text)): text for text in expected}.values())):
        yield f"q.latest has {sorted(rows - due)[:2]}, and lacks {sorted(due - rows)[:2]}"


def _key_of(text: str) -> object:
    return json.loads(text)["k"]


def _differences(name: str, texts: list[str], expected: list[str]) -> Iterator[str]:
    for at, (text, due) in enumerate(zip(texts, expected, strict=False)):
        if text != due:
            yield f"row {at} of {name} is {text} instead of {due}"
            return
    if len(texts) != len(expected):
        yield f"{name} has {len(texts)} rows instead of {len(expected)}"


def _faults_of_out(broker: Broker, out: TopicPartition, expected: list[str]) -> Iterator[str]:
    """What is wrong for a reader of q.out that keeps to the rules of docs/readers.md."""
    rows: list[Any] = []
    tentative: list[int] = []
    newest = seq = 0
    for incarnation, id_, record in _records_of(broker, out):
        if incarnation < newest:
            continue
        number = record["seq"]
        # Of two that begin at the same moment one only writes its first record.
        is_of_twin = incarnation == newest and record["type"] == "undo" and number <= seq
        # An egress that begins while another one still writes may give numbers again, but leaves none out.
        if number > seq + 1 or (incarnation == newest and number != seq + 1 and not is_of_twin):
            yield f"seq {number} of incarnation {incarnation} after {seq} of {newest}"
            return
        newest, seq = incarnation, seq if is_of_twin else number
        match record["type"]:
            case "stable" if id_ == len(rows):
                rows.append(record["data"])
            case "stable" if id_ > len(rows):
                yield f"q.out has no row {len(rows)} before {id_}"
                return
            case "tentative":
                tentative.append(number)
            case "undo":
                tentative = [each for each in tentative if each <= record["after_seq"]]
    if repr(rows) != repr([json.loads(text) for text in expected]):
        yield f"q.out leaves {len(rows)} rows other than the {len(expected)} expected ones"
    if tentative:
        yield f"q.out leaves {len(tentative)} tentative rows"


def _records_of(broker: Broker, out: TopicPartition) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Of each record of q.out: the incarnation of its writer, its id (-1 if it is no stable row), and what it says."""
    for record in broker.committed(out):
        headers = dict(record.headers)
        yield int(headers[INCARNATION]), int(headers.get(ID, -1)), json.loads(record.value or b"")


def _unready(world: RoleWorld) -> Iterator[str]:
    """The roles whose last status does not say that they are ready, and whose is too old."""
    last: dict[str, dict[str, Any]] = {}
    for record in world.broker.committed(TopicPartition(STATUS, 0)):
        last[(record.key or b"").decode()] = json.loads(record.value or b"")
    for worker in world.workers:
        for role in worker.roles:
            status = last.get(role.name)
            if status is None or not status["ready"]:
                yield f"{role.name} is not ready: {status}"
            elif now_us() / 1_000 - status["at_ms"] > 3_000:
                yield f"{role.name} has said nothing for {now_us() / 1_000 - status['at_ms']} ms"
            elif role.kind == "node":
                yield from (
                    f"{role.name} is {each['state']}" for each in status["instances"] if each["state"] != State.STABLE.value
                )


def expected_rows(plan: Plan, scenario: RoleScenario) -> list[str]:
    """The stable rows as JSON texts: what plain Python makes of the records."""
    feeds = {}
    for edge in plan.sources:
        schema = edge.schema.arrow
        rows = [{name: row[name] for name in schema.names} for row in scenario.rows[edge.operator]]
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        feeds[edge.operator] = StreamFeed(batch, (0, batch.num_rows))
    oracle, output = Oracle(plan, feeds), plan.output
    batch = oracle.batch(LogId(output.name, "", 0).key)
    texts: list[str] = joined(object_parts(column_texts(output.schema, batch))).to_pylist()
    return texts
