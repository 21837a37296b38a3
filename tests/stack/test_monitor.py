"""The monitor as a process, on a real Kafka and a real Redis; the test speaks for the query's processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.warm_processes import AnyProcess, start_process
from boreal.query.planner import plan
from boreal.query.spec import load_query
from deployment.events import RecordedEvent, read_event
from deployment.evolution import BUILDING, CLAIMING, TAKEN_OVER, TAKING_OVER, evolve, state_of
from deployment.failures import Failures
from deployment.layout import Layout, make_layout
from deployment.query_record import QueryRecord, inner_name
from deployment.shared_sources import STATE
from formats.control_messages import ControlItem, acknowledge_item, instance_of
from logs.checkpoints import Checkpoint
from operators.graph import FragmentGraph
from reconcile.events import InstanceId
from services.hosting import failpoints
from services.hosting.process import EXIT_FENCED, EXIT_STOPPED, StatusPublisher, now_us
from services.kafka.clusters import Cluster, make_clusters
from services.kafka.control import ControlPlane
from services.kafka.control_desk import ControlDesk
from services.kafka.events import EventWriter
from services.kafka.follower import TopicFollower
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.statuses import Statuses
from services.kafka.topics import EVENTS, STATUS, control_topic, ensure, query_topics, system_topics
from services.monitor.reports import QueryReports
from services.stack.servers import KafkaServer, RedisServer
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis
from tests.thoroughness import every
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("monitor")]

PATIENCE_S = 90.0
R0, R1, OUT = (instance_of(name) for name in ("main.r0.0", "main.r1.0", "egress.r0.0"))


def spec(name: str, **changes: object) -> dict[str, Any]:
    return {
        "name": name,
        "streams": {"jfk": {"topic": "flights.jfk", "time": "at", "schema": {"carrier": "string"}}},
        "operators": {"some": {"filter": "jfk", "where": "carrier = 'UA'"}},
        "output": "some",
        "delay_threshold": "1s",
        "replicas": 2,
        **changes,
    }


@dataclass
class Site:
    """The servers, and the monitor's process."""

    root: Path
    kafka: KafkaServer
    redis: RedisServer
    name: str
    """The query's: no other test on these servers has it."""
    process: AnyProcess | None = None
    statuses: Statuses = field(init=False)
    reports: QueryReports = field(init=False)

    @property
    def settings(self) -> ServiceSettings:
        return ServiceSettings.model_validate(
            {"sites": {"a": {"bootstrap": self.kafka.bootstrap}}, "redis": {"url": self.redis.url}, "data": self.root}
        )

    @property
    def home(self) -> Cluster:
        return make_clusters(self.settings, "test")["a"]

    @property
    def log(self) -> str:
        return (self.root / "monitor.log").read_text()

    def start(self, failpoint: str = "") -> None:
        """failpoint: where it dies."""
        environment = {
            **os.environ,
            "BOREAL_FAILPOINT": failpoint,
            "BOREAL_SITES__A__BOOTSTRAP": self.kafka.bootstrap,
            "BOREAL_REDIS__URL": self.redis.url,
            "BOREAL_DATA": str(self.root),
        }
        self.process = start_process((sys.executable, "-m", "services.monitor"), environment, self.root / "monitor.log")

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """The exit code. A process that takes longer than ten seconds fails the test."""
        assert self.process is not None
        self.process.send_signal(number)
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def monitor(self) -> dict[str, Any]:
        """What the monitor last said of itself; empty if it never did."""
        return self.statuses.newest().get("monitor", {})

    @property
    def query(self) -> dict[str, Any]:
        """What it last said of the query."""
        return self.reports.newest().get(self.name, {})

    @property
    def journal(self) -> list[dict[str, Any]]:
        return self.query.get("journal", [])


@pytest.fixture(scope="module")
def machines(servers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaServer, RedisServer]]:
    """Not the shared ones: a monitor watches all queries that there are, and one test kills them."""
    root = tmp_path_factory.mktemp("monitor")
    with KafkaServer(root / "kafka") as kafka, RedisServer(root / "redis") as redis:
        yield kafka, redis


@pytest.fixture
def site(tmp_path: Path, machines: tuple[KafkaServer, RedisServer], fresh_name: str) -> Iterator[Site]:
    site = Site(tmp_path, *machines, fresh_name)
    for server in machines:
        server.start()
    ensure(site.home, system_topics())
    site.start()
    with closing(Statuses(site.home)) as site.statuses, closing(QueryReports(site.home)) as site.reports:
        yield site
    if site.is_running:
        site.end()


@dataclass
class Players:
    """Speak for the processes of a query. Who is in `readers` acknowledges all the while what stands there."""

    site: Site
    spec: dict[str, Any]
    readers: dict[Any, dict[str, int]] = field(default_factory=dict)
    trims: list[dict[str, int]] = field(default_factory=list)

    def __enter__(self) -> Players:
        query = load_query(self.spec)
        layout = Layout(plan(query), ("a",))
        self.key = next(key for key in layout.readers() if key.startswith("jfk"))
        self.out = next(key for key in layout.readers() if not key.startswith("jfk"))
        for specs in query_topics(layout).values():
            ensure(self.site.home, specs)
        QueryRegistry(self.site.home).put(QueryRecord(self.site.name, query.dump(), 1))
        self._stopping = threading.Event()
        self._desk = ControlDesk(make_clusters(self.site.settings, "players")["a"])
        self._control = ControlPlane({"a": self._desk}, control_topic(self.site.name), "players", "a")
        self._control.listen(self._hear)
        self._thread = threading.Thread(target=self._speak, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._control.close()
        self._desk.close()
        if self.site.kafka.pid is not None:
            QueryRegistry(self.site.home).delete(self.site.name)

    @property
    def trimmed_before(self) -> int:
        """How far the readers' input was said to be free."""
        return max((trim.get(self.key, 0) for trim in self.trims), default=0)

    def _hear(self, sender: str, items: list[ControlItem]) -> None:
        if sender == "monitor":
            self.trims += [dict(item["trim"]) for item in items]

    def _speak(self) -> None:
        while not self._stopping.wait(0.1):
            self._control.send([acknowledge_item(who, tuple(needs.items())) for who, needs in list(self.readers.items())])


def test_trims_follow_the_slowest_reader_and_a_new_life_holds_back_what_it_does_not_know(site: Site):
    with Players(site, spec(site.name)) as players:
        players.readers = {R0: {players.key: 50}, R1: {players.key: 20}, OUT: {players.out: 5}}
        wait_until(lambda: {players.key: 20, players.out: 5} in players.trims, "the first trim")
        players.readers[R1] = {players.key: 40}
        wait_until(lambda: players.trimmed_before == 40, "the next trim")
        # A new life that hears only one of the two lets nothing go.
        site.end()
        del players.readers[R1]
        players.readers[R0] = {players.key: 900}
        site.start()
        wait_until(lambda: site.query, "a status")
        before = site.query["at_ms"]
        wait_until(lambda: site.query["at_ms"] > before + 3_000, "three seconds of the new life")
        assert players.trimmed_before == 40
        players.readers[R1] = {players.key: 70}
        wait_until(lambda: players.trimmed_before == 70, "the trim once all are heard")
        assert max(trim.get(players.out, 0) for trim in players.trims) == 5
        players.readers[R0] = {players.key: 60}
        assert site.end(signal.SIGTERM) == 0


@pytest.mark.soak
def test_a_silent_reader_loses_its_claim_until_it_is_heard_again_and_old_checkpoints_are_dropped(site: Site):
    """Both take their time, and so go on together. A damaged checkpoint is told of."""
    with (
        closing(connect_redis(site.settings.redis)) as client,
        Players(site, spec(site.name, tuning={"retention": "4s"})) as players,
    ):
        store = RedisCheckpointStore(client, site.name)
        for number in range(1, 7):
            store.put(Checkpoint(str(R0), number, number, 0, (), (), b"state"))
        store.put(Checkpoint(str(R1), 1, 1, 0, (), (), b"state"))
        blob = json.loads(client.hget(f"boreal:{site.name}:{R0}:manifests", "6"))["blob"]  # type: ignore[arg-type]
        client.hset(f"boreal:{site.name}:{R0}:blob:{blob}", "0", b"damaged")
        players.readers = {R0: {players.key: 50}, R1: {players.key: 20}, OUT: {players.out: 5}}
        wait_until(lambda: players.trimmed_before == 20, "the first trim")
        del players.readers[R1]
        wait_until(lambda: players.trimmed_before == 50, "the trim without the dead reader")
        wait_until(lambda: site.query["claims"]["lost"] == [str(R1)], "the loss in the status")
        assert any(entry["who"] == str(R1) and entry["kind"] == "claim" for entry in site.query["journal"])
        assert "WARNING" in site.log and f"{site.name}: {R1} was silent for" in site.log
        wait_until(lambda: store.numbers(str(R0)) == [5, 6], "the old ones are dropped")
        assert store.numbers(str(R1)) == [1]
        wait_until(lambda: any(e["kind"] == "checkpoint" for e in site.journal), "the damage is told")
        # A later life goes on with the journal.
        site.end()
        site.start()
        wait_until(lambda: any(entry["kind"] == "claim" for entry in site.journal), "the journal")
        players.readers[R1] = {players.key: 45}
        wait_until(lambda: site.query["claims"]["lost"] == [], "the claim is back")


def test_the_status_of_a_query_is_made_of_what_its_processes_say_and_goes_with_it(site: Site):
    entry = {"fragment": "main", "shard": 0, "position": 7, "state": "STABLE", "alpha_x_ms": 800.0, "missing": []}
    source = {"ready": True, "state": "live", "last_boundary": "2013-01-01T00:00:00.000000Z", "last_ingest_ms": 1.0, "rows": 3}
    egress = {"ready": True, "state": "STABLE", "counts": {"stable": 9, "tentative": 1, "undone": 1}, "violations": 2}

    def states() -> list[str]:
        return [replica["state"] for replica in site.query["replicas"]]

    with Players(site, spec(site.name)), ExitStack() as publishers:
        for replica in ("r0", "r1"):
            said = {"ready": True, "instances": [{**entry, "replica": replica}]}
            publishers.enter_context(closing(StatusPublisher(site.home, f"node.{site.name}.{replica}", partial(dict, said))))
        publishers.enter_context(closing(StatusPublisher(site.home, f"source.{site.name}.jfk", lambda: source)))
        publishers.enter_context(closing(StatusPublisher(site.home, f"egress.{site.name}.a", lambda: egress)))
        # It is ready by one replica: the other may be heard of a moment later.
        wait_until(lambda: site.query.get("ready") and states() == ["STABLE", "STABLE"], "all have been heard")
        status = site.query
        assert (status["state"], status["x_ms"], status["alpha_x_ms"], status["violations"]) == ("STABLE", 1000.0, 800.0, 2)
        assert status["counts"] == {"stable": 9, "tentative": 1, "undone": 1}
        QueryRegistry(site.home).put(QueryRecord(site.name, load_query(spec(site.name, delay_threshold="2s")).dump(), 2))
        wait_until(lambda: site.query["x_ms"] == 2000.0, "a new X")
    wait_until(lambda: not site.query, "the status goes with the query")
    assert site.monitor["ready"]


def test_what_happens_is_recorded_once_though_the_monitor_is_killed_again_and_again(site: Site):
    """Failures, and who changed the query; a change that came while no monitor ran is recorded by the next."""
    entry: dict[str, Any] = {"fragment": "main", "shard": 0, "position": 7, "alpha_x_ms": 800.0, "missing": [], "inputs": []}
    changes = [["RECOVERING", 1_000.0], ["STABLE", 2_000.0]]
    counts = {"stable": 9, "tentative": 0, "undone": 0}
    held: dict[str, Any] = {"outstanding": 0, "since_ms": None, "cause": None}
    egress = {"ready": True, "state": "STABLE", "since_ms": 2_000.0, "counts": counts, "violations": 0, "tentative": held}
    history: list[RecordedEvent] = []

    def node(replica: str) -> dict[str, Any]:
        since = {"state": changes[-1][0], "since_ms": changes[-1][1], "changes": list(changes)}
        return {"ready": True, "instances": [{**entry, "replica": replica, **since}]}

    def kinds() -> list[str]:
        return [event.kind for event in history if event.query == site.name]

    def again() -> None:
        site.end()
        site.start()

    with Players(site, spec(site.name)), ExitStack() as closed:

        def take(record: Any) -> None:
            history.append(read_event(record.value))

        closed.enter_context(closing(TopicFollower(site.home, EVENTS, take, read_committed=True)))
        for replica in ("r0", "r1"):
            closed.enter_context(closing(StatusPublisher(site.home, f"node.{site.name}.{replica}", partial(node, replica))))
        closed.enter_context(closing(StatusPublisher(site.home, f"egress.{site.name}.a", lambda: egress)))
        wait_until(lambda: site.query.get("ready"), "all have been heard")
        wait_until(lambda: kinds() == ["created"], "its creation")
        changes.append(["UP_FAILURE", now_us() / 1_000])
        wait_until(lambda: kinds().count("detected") == 2, "both replicas notice")
        held.update(outstanding=3, since_ms=now_us() / 1_000, cause="main.r0.0-1")
        wait_until(lambda: "tentative" in kinds(), "the first tentative row")
        site.end()
        # While no monitor runs, all of this comes to its end, and the query is changed.
        changes.extend([["STABILIZATION", now_us() / 1_000], ["STABLE", now_us() / 1_000 + 1]])
        held.update(outstanding=0, since_ms=None, cause=None)
        counts.update(undone=3, tentative=3)
        changed = QueryRecord(site.name, load_query(spec(site.name, delay_threshold="2s")).dump(), 2)
        QueryRegistry(site.home).update(site.name, lambda old: changed, "ann (operator)")
        site.start()
        wait_until(lambda: "over" in kinds(), "the end of the failure")
        again()
        wait_until(lambda: site.monitor.get("ready") and site.query.get("ready"), "another life")
        whole = ["changed", "created", *["detected"] * 2, *["healed"] * 2, "over", *["reconciled"] * 2, "tentative", "undone"]
        assert sorted(kinds()) == whole
    failures = Failures()
    for event in history:
        failures.take(event)
    [failure] = [each.summary() for each in failures.of(site.name)]
    assert (failure["state"], failure["rows_tentative"], failure["x_ms"]) == ("over", 3, 1_000.0)
    [change] = [event for event in history if event.query == site.name and event.kind == "changed"]
    assert (change.by, change.facts["changes"]) == ("ann (operator)", {"delay_threshold": ["1s", "2s"]})


@pytest.mark.soak
def test_what_was_counted_for_an_objective_is_recorded_when_the_monitor_is_stopped(site: Site):
    counts = {"stable": 9, "tentative": 0, "undone": 0}
    egress: dict[str, Any] = {"ready": True, "state": "STABLE", "since_ms": 2_000.0, "counts": counts}
    egress |= {"violations": 0, "new_rows": 100}
    served: list[RecordedEvent] = []

    def take(record: Any) -> None:
        event = read_event(record.value)
        if event.query == site.name and event.kind == "served":
            served.append(event)

    def give() -> dict[str, Any]:
        """New rows with each status: what the first one that is heard says was counted by a life before."""
        egress["new_rows"] += 7
        return egress

    def on_time() -> int:
        return ((site.query.get("slo") or {}).get("results") or {}).get("on_time", 0)

    with (
        Players(site, spec(site.name, slo="99%/7d")),
        closing(TopicFollower(site.home, EVENTS, take, read_committed=True)),
        closing(StatusPublisher(site.home, f"egress.{site.name}.a", give)),
    ):
        wait_until(on_time, "rows are counted")
        counted = on_time()
        assert site.end(signal.SIGTERM) == EXIT_STOPPED
        wait_until(lambda: sum(event.facts["on_time"] for event in served) >= counted, "they are recorded")


def test_a_job_is_recorded_once_though_the_monitor_was_away_when_it_ended(site: Site):
    found: list[RecordedEvent] = []
    job: dict[str, Any] = {"id": site.name, "kind": "comparison", "query": "q", "by": "ann (operator)", "problem": None}
    job |= {"state": "running", "created_ms": now_us() / 1_000, "ended_ms": None}

    def take(record: Any) -> None:
        event = read_event(record.value)
        if event.facts.get("id") == site.name:
            found.append(event)

    with (
        Players(site, spec(site.name)),
        closing(TopicFollower(site.home, EVENTS, take, read_committed=True)),
        closing(StatusPublisher(site.home, "api", lambda: {"ready": True, "jobs": [job]})),
    ):
        wait_until(lambda: len(found) == 1, "it is asked for")
        site.end()
        job |= {"state": "done", "ended_ms": now_us() / 1_000}
        site.start()
        wait_until(lambda: len(found) == 2, "its end")
        site.end()
        site.start()
        wait_until(lambda: site.monitor.get("ready") and site.query.get("ready") is not None, "another life")
        time.sleep(2.5)  # statuses come every second
    assert [(event.kind, event.by) for event in found] == [("job_created", "ann (operator)"), ("job_done", None)]


def test_a_second_writer_of_events_ends_the_first(site: Site):
    written, read = threading.Event(), threading.Event()

    def take(record: Any) -> None:
        if record.key == site.name.encode():
            written.set()

    with closing(TopicFollower(site.home, EVENTS, take, read_committed=True)), Players(site, spec(site.name)):
        wait_until(written.is_set, "the first has recorded the query")
        with closing(EventWriter(site.home, lambda events: read.set(), lambda: None)):
            wait_until(read.is_set, "the second has begun")
            changed = QueryRecord(site.name, load_query(spec(site.name, delay_threshold="2s")).dump(), 2)
            QueryRegistry(site.home).put(changed)  # which the first wants to record
            wait_until(lambda: not site.is_running, "the first has ended")
    assert site.process is not None and site.process.poll() == EXIT_FENCED


@pytest.mark.soak
def test_it_outlasts_kafka_and_redis(site: Site):
    with Players(site, spec(site.name)) as players:
        players.readers = {R0: {players.key: 50}, R1: {players.key: 20}, OUT: {players.out: 5}}
        wait_until(lambda: players.trimmed_before == 20, "the first trim")
        site.redis.kill()
        wait_until(lambda: site.monitor.get("redis") == "out of reach", "the outage of Redis in the status")
        site.kafka.kill()
        time.sleep(1.5)
        players.readers[R1] = {players.key: 44}
        site.kafka.start()
        site.redis.start()
        wait_until(lambda: players.trimmed_before == 44, "trims after the outage")
        wait_until(lambda: site.monitor.get("redis") == "reachable", "Redis is back in the status")
        assert site.is_running
        site.kafka.kill()
        assert site.end(signal.SIGTERM) == 0


def test_garbage_on_its_topics_is_passed_over(site: Site):
    with Players(site, spec(site.name)) as players:
        producer = site.home.make_producer()
        common = {"pid": 1, "at_ms": 0, "ready": True}
        nonsense = {**common, "v": 1, "process": f"node.{site.name}.r0", "kind": "node", "query": site.name, "instances": 3}
        bad: list[object] = [
            3,
            {"v": 1, "sender": "x", "items": [3, {"acknowledge": {}}]},
            {"v": 9},
            {"v": 1, "process": "x"},
            nonsense,
        ]
        for value in bad:
            producer.send(control_topic(site.name), json.dumps(value).encode(), partition=0)
            producer.send(STATUS, json.dumps(value).encode(), key=b"x", partition=0)
        producer.close()
        players.readers = {R0: {players.key: 50}, R1: {players.key: 20}, OUT: {players.out: 5}}
        wait_until(lambda: players.trimmed_before == 20, "the trim")
        assert site.is_running


@pytest.mark.parametrize("name", every(4, sorted(name for name in failpoints.NAMES if name.startswith("monitor."))))
def test_a_monitor_that_dies_at_each_step_of_an_evolution_takes_each_step_once(site: Site, name: str):
    """The first life dies at the proposal of a time, the second at the end of the takeover."""
    wider = spec(site.name, operators={"some": {"map": "jfk", "select": {"carrier": "carrier", "other": "carrier"}}})
    record = evolve(QueryRecord(site.name, load_query(spec(site.name)).dump(), 1), load_query(wider), "earliest")
    reached = 1_700_000_000_000_000
    egress: dict[str, Any] = {
        "ready": True, "state": "STABLE", "version": 1, "through_us": reached, "takeover": None, "violations": 0,
        "counts": {"stable": 9, "tentative": 0, "undone": 0},
    }  # fmt: skip
    entry = {"fragment": "main", "replica": "r0", "shard": 0, "position": reached, "state": "STABLE", "missing": []}
    node = {"ready": True, "instances": [{**entry, "alpha_x_ms": 800.0}]}

    def look() -> QueryRecord:
        with closing(QueryRegistry(site.home)) as registry:
            return registry.load()[site.name]

    def dies(failpoint: str) -> None:
        site.start(failpoint)
        assert site.process is not None
        assert site.process.wait(PATIENCE_S) == -signal.SIGKILL

    site.end()
    with Players(site, spec(site.name)), ExitStack() as closed:
        ensure(site.home, query_topics(make_layout(load_query(wider), ("a",), inner_name(site.name, 2)))["a"])
        QueryRegistry(site.home).put(record)
        closed.enter_context(closing(StatusPublisher(site.home, f"node.{site.name}-2.r0", lambda: node)))
        closed.enter_context(closing(StatusPublisher(site.home, f"egress.{site.name}.a", lambda: egress)))
        dies(name)
        is_written = name == "monitor.after_evolution"
        assert state_of(look()) == (TAKING_OVER if is_written else BUILDING)
        site.start()
        wait_until(lambda: state_of(look()) == TAKING_OVER, "the next life proposes a time, or finds it")
        proposed = look()
        assert proposed.revision == record.revision + 1
        site.end()
        egress.update(version=2)
        dies(name)
        assert look() == proposed if not is_written else state_of(look()) == TAKEN_OVER
        site.start()
        wait_until(lambda: state_of(look()) == TAKEN_OVER, "the next life ends the takeover, or finds that it has ended")
        found = look()
        assert proposed.takeover is not None
        assert (found.version, found.since, found.revision) == (2, proposed.takeover.at, record.revision + 2)


@pytest.mark.parametrize("name", every(4, sorted(name for name in failpoints.NAMES if name.startswith("monitor."))))
def test_a_monitor_that_dies_as_it_hands_states_on_names_one_for_good_and_drops_the_others(site: Site, name: str):
    """It waits while there is none. Where it dies before the record names one, the next life may choose another replica's."""
    first = {"each": {"distinct": "jfk", "on": ["carrier"]}}
    old = load_query(spec(site.name, operators=first, output="each"))
    shown = {**first, "shown": {"map": "each", "select": {"carrier": "carrier"}}}
    new = load_query(spec(site.name, operators=shown, output="shown"))
    state = FragmentGraph(plan(old).fragments[0]).empty().encode()
    inner, key = inner_name(site.name, 2), "jfk/0"

    def checkpoint(who: InstanceId, number: int, time: int) -> Checkpoint:
        return Checkpoint(str(who), number, time, time, (("each/0", 5),), ((key, 0),), state)

    def look() -> QueryRecord:
        with closing(QueryRegistry(site.home)) as registry:
            return registry.load()[site.name]

    with Players(site, old.dump()), closing(connect_redis(site.settings.redis)) as client:
        former, store = RedisCheckpointStore(client, site.name), RedisCheckpointStore(client, inner)
        ensure(site.home, query_topics(make_layout(new, ("a",), inner))["a"])
        QueryRegistry(site.home).put(evolve(QueryRecord(site.name, old.dump(), 1), new, STATE))
        wait_until(lambda: "not there yet" in str((site.query.get("evolution") or {}).get("waits_for")), "it says so")
        site.end()
        former.put(checkpoint(R1, 7, 1_000_000))
        site.start(name)
        assert site.process is not None and site.process.wait(PATIENCE_S) == -signal.SIGKILL
        is_written = name == "monitor.after_evolution"
        assert (state_of(look()), store.instances()) == (BUILDING if is_written else CLAIMING, ["carried/main.r1.0"])
        former.put(checkpoint(R0, 3, 2_000_000))
        site.start()
        wait_until(lambda: state_of(look()) == BUILDING, "the next life names one, or finds it")
        time_us, place = (1_000_000, ("carried/main.r1.0", 7)) if is_written else (2_000_000, ("carried/main.r0.0", 3))
        beside = look().beside
        assert beside is not None and beside.shared is not None
        assert (beside.shared.states, beside.shared.first_ids) == ({"main/0": place}, {key: 0})
        assert beside.shared.reach == {"jfk": time_us}
        found = store.get(*place)
        assert (found.time, found.next_ids, found.inputs) == (time_us, (), ((key, 0),))
        left = [(owner, number) for owner in store.instances() for number in store.numbers(owner)]
        if len(left) > 1:
            wait_until(lambda: not store.numbers("carried/main.r1.0"), "what it does not name is dropped")
        assert store.get(*place) == found
        store.forget()
        former.forget()
