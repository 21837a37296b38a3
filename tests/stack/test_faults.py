"""Real processes, really broken: each scenario breaks something while rows flow, mends it, and then holds I1-I6.

All scenarios of a deployment share it, one after the other, as a day in production would: what one leaves behind, the
next has to live with. The figures of each are printed as a table (docs/faults.md has a copy).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from bench.deployment import Deployment, Feeder, wait_until
from services.topics import control_topic, delete, ensure, query_topics

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("deployed")]

X_S = 3.0
WINDOW_US = 1_000_000
STALL_S = 0.3
QUERY: dict[str, Any] = {
    "name": "faults",
    "streams": {
        name: {
            "topic": f"in.{name}",
            "time": "at",
            "time_unit": "us",
            "schema": {"key": "int", "value": "int"},
        }
        for name in ("left", "right")
    },
    "operators": {
        "all": {"union": ["left", "right"]},
        "per_key": {
            "aggregate": "all",
            "window": {"tumbling": "1s"},
            "by": ["key"],
            "compute": {"rows": "count(*)", "total": "sum(value)"},
        },
    },
    "output": "per_key",
    "delay_threshold": f"{X_S}s",
    "replicas": 2,
    "engine": "native",
}
"""Left and right, counted per key and second."""


class Ear:
    """Hears the rows that are fed, as they arrive in their topics; no process of the query is in between. As a context.

    worst_silence_s: the longest that a topic gave nothing since this was last set to 0. Rows are fed without a pause, so
    for so long the machine, or who shares it, has kept everybody from their work.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.worst_silence_s = 0.0
        self._bootstrap = deployment.kafka[deployment.layout.home].bootstrap
        self._topics = [stream.topic for stream in deployment.spec.streams.values() if stream.topic]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Ear:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "ear", "fetch.wait.max.ms": 20, "log_level": 0}
        )
        end = confluent_kafka.OFFSET_END
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, end) for topic in self._topics])
        heard: dict[str, float] = {}
        while not self._stopping.is_set():
            records = consumer.consume(1000, timeout=0.02)
            now = time.monotonic()
            self.worst_silence_s = max([self.worst_silence_s, *(now - at for at in heard.values())])
            heard |= {str(record.topic()): now for record in records if not record.error()}
        consumer.close()


@dataclass
class Bench:
    """A deployment with rows flowing, and how far it has been checked."""

    deployment: Deployment
    feeder: Feeder
    ear: Ear

    def mark(self) -> int:
        self.ear.worst_silence_s = 0.0
        return len(self.deployment.changes())

    @property
    def may_be_timed(self) -> bool:
        """Whether deadlines can be asked for: not where the machine has stopped everybody for long since the mark."""
        return self.ear.worst_silence_s < STALL_S

    def check(self, since: int, may_be_late: bool = False) -> dict[str, Any]:
        """I1-I6 once all has healed: what clients hold is what the rows come to; figures since a mark."""
        deployment = self.deployment
        deployment.wait_ready()
        until = (time.time_ns() // 1000) // WINDOW_US * WINDOW_US
        settled_s = wait_until(lambda: self._reaches(until), "stable output has caught up", deployment.explain)
        stable = deployment.stable()
        given = Counter(_window(row) for row in stable)
        expected = self.feeder.windows(until, WINDOW_US)
        so_far = Counter({window: count for window, count in given.items() if window[0] + WINDOW_US <= until})
        assert so_far == expected, f"missing {list(expected - so_far)[:5]}, invented {list(so_far - expected)[:5]}"
        # Read after q.stable, since every row is in q.out first.
        changes = deployment.changes()
        held = [row for row in replay(changes) if row["_kind"] == "stable"]
        assert held[: len(stable)] == [{**row, "_kind": "stable"} for row in stable]
        figures = figures_of(changes[since:], changes[:since])
        if not may_be_late and self.may_be_timed:
            assert figures["delay_new_ms_max"] is None or figures["delay_new_ms_max"] <= X_S * 1000, figures
        return {**figures, "settled_s": round(settled_s, 1)}

    def _reaches(self, until: int) -> bool:
        time.sleep(0.3)  # each look reads the whole topic
        rows = self.deployment.stable()
        return bool(rows) and max(_window(row)[0] for row in rows) >= until

    def breathe(self, seconds: float) -> None:
        """Let rows flow: what a fault does shows only over time."""
        time.sleep(seconds)


def _window(row: dict[str, Any]) -> tuple[int, int, int, int]:
    return _micros(row["window_start"]), row["key"], row["rows"], row["total"]


def _micros(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1_000_000)


def replay(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client holds after all these records; AssertionError where they break the contract of q.out."""
    held: list[tuple[int, dict[str, Any]]] = []
    seq = stable_seq = epoch = 0
    for record in changes:
        kind = record["type"]
        assert record["seq"] == seq + 1, f"seq {record['seq']} follows {seq}"
        seq = record["seq"]
        if kind == "stable":
            stable_seq = seq
            assert not any(row["_kind"] == "tentative" for _, row in held[-1:]), "stable after tentative"
        assert record["stable_seq"] == stable_seq
        assert record["epoch"] > epoch if kind == "undo" else record["epoch"] >= epoch
        epoch = record["epoch"]
        if kind in ("stable", "tentative"):
            held.append((seq, {**record["data"], "_kind": kind}))
        elif kind == "undo":
            revoked = [row for at, row in held if at > record["after_seq"]]
            assert all(row["_kind"] == "tentative" for row in revoked), "a stable row is undone"
            held = [(at, row) for at, row in held if at <= record["after_seq"]]
    return [row for _, row in held]


def figures_of(changes: list[dict[str, Any]], before: list[dict[str, Any]]) -> dict[str, Any]:
    """delay_new (R14), tuples sent tentative and undone, over some records."""
    highest = max((record["t_max"] for record in before if record.get("t_max")), default="")
    delays, undone, outstanding = [], 0, 0
    kinds = Counter(record["type"] for record in changes)
    for record in changes:
        if record["type"] in ("stable", "tentative") and record["t_max"] > highest:
            delays.append(record["emitted_ms"] - record["ingest_ms"])
        if record.get("t_max"):
            highest = max(highest, record["t_max"])
        outstanding += record["type"] == "tentative"
        if record["type"] == "undo":
            undone, outstanding = undone + outstanding, 0
    return {
        "delay_new_ms_max": round(max(delays), 1) if delays else None,
        "stable": kinds["stable"],
        "tentative": kinds["tentative"],
        "undone": undone,
    }


@pytest.fixture(scope="module")
def one_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Deployment(tmp_path_factory.mktemp("one-site"), QUERY) as deployment:
        deployment.wait_ready()
        with Feeder(deployment) as feeder, Ear(deployment) as ear:
            yield Bench(deployment, feeder, ear)


Scenario = Callable[[Bench], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(action: Scenario) -> Scenario:
    SCENARIOS[action.__name__] = action
    return action


@scenario
def nothing_happens(bench: Bench) -> None:
    bench.breathe(3)


@scenario
def a_replica_is_killed(bench: Bench) -> None:
    bench.deployment.kill("node.r0")
    bench.breathe(4)


@scenario
def both_replicas_are_killed(bench: Bench) -> None:
    bench.deployment.kill("node.r0")
    bench.deployment.kill("node.r1")
    bench.breathe(4)


@scenario
def a_source_is_killed(bench: Bench) -> None:
    bench.deployment.kill("source.left")
    bench.breathe(4)


@scenario
def a_source_is_dead_for_longer_than_x(bench: Bench) -> None:
    with bench.deployment.dead("source.left"):
        bench.breathe(2 * X_S)


@scenario
def the_egress_is_killed(bench: Bench) -> None:
    bench.deployment.kill("egress.a")
    bench.breathe(4)


@scenario
def the_monitor_is_killed(bench: Bench) -> None:
    bench.deployment.kill("monitor")
    bench.breathe(2)


@scenario
def a_source_is_cut_for_less_than_alpha_x(bench: Bench) -> None:
    with bench.deployment.cut("source.left"):
        bench.breathe(0.25 * X_S)


@scenario
def a_source_is_cut_for_five_x(bench: Bench) -> None:
    with bench.deployment.cut("source.left"):
        bench.breathe(5 * X_S)


@scenario
def a_source_is_cut_again_in_mid_correction(bench: Bench) -> None:
    with bench.deployment.cut("source.left"):
        bench.breathe(2 * X_S)
    wait_until(
        lambda: any(state in ("STABILIZATION", "STABLE") for state in bench.deployment.states().values()),
        "a correction has begun",
    )
    with bench.deployment.cut("source.left"):
        bench.breathe(2 * X_S)


@scenario
def a_replica_is_killed_in_up_failure(bench: Bench) -> None:
    with bench.deployment.cut("source.left"):
        bench.breathe(1.5 * X_S)
        bench.deployment.kill("node.r0")
        bench.breathe(X_S)


@scenario
def a_replica_is_killed_in_mid_correction(bench: Bench) -> None:
    with bench.deployment.cut("source.right"):
        bench.breathe(2 * X_S)
    bench.deployment.kill("node.r1")
    bench.breathe(2)


@scenario
def a_replica_is_frozen_and_thaws(bench: Bench) -> None:
    with bench.deployment.frozen("node.r0"):
        bench.breathe(2 * X_S)


@scenario
def a_replica_is_cut_from_its_broker(bench: Bench) -> None:
    with bench.deployment.cut("node.r1"):
        bench.breathe(2 * X_S)


@scenario
def a_link_is_slow(bench: Bench) -> None:
    link = bench.deployment.service("source.right").links["a"]
    link.slow(0.3)
    try:
        bench.breathe(6)
    finally:
        link.slow(0)


@scenario
def the_broker_is_killed_and_comes_back(bench: Bench) -> None:
    kafka = bench.deployment.kafka["a"]
    kafka.kill()
    bench.breathe(1)
    kafka.start()
    bench.breathe(2)


@scenario
def redis_is_killed_and_comes_back(bench: Bench) -> None:
    bench.deployment.redis.kill()
    with bench.deployment.cut("source.left"):
        bench.breathe(2 * X_S)
    bench.deployment.redis.start()


@scenario
def redis_is_wiped_and_a_replica_killed(bench: Bench) -> None:
    bench.deployment.redis.wipe()
    bench.deployment.kill("node.r0")
    bench.breathe(3)


for _failpoint, _who in (
    ("node.before_append:200", "node.r0"),
    ("node.between_appends:200", "node.r0"),
    ("node.before_acknowledge:5", "node.r1"),
    ("source.between_logs:20", "source.left"),
    ("egress.between_out_and_stable:20", "egress.a"),
    ("egress.before_commit:5", "egress.a"),
    ("egress.after_commit:5", "egress.a"),
):

    def _dies(bench: Bench, who: str = _who, failpoint: str = _failpoint) -> None:
        lives = bench.deployment.service(who).lives
        bench.deployment.dies_at(who, failpoint)
        wait_until(lambda: bench.deployment.service(who).lives >= lives + 2, f"{who} has died at {failpoint}", within_s=30)

    SCENARIOS[f"dies at {_failpoint.partition(':')[0]}"] = _dies


@scenario
def the_control_topic_is_lost(bench: Bench) -> None:
    home = bench.deployment.clusters["a"]
    delete(home, [control_topic("faults")])
    bench.breathe(2 * X_S)
    ensure(home, query_topics(bench.deployment.layout)["a"])


for _failpoint in ("node.before_checkpoint", "node.after_checkpoint"):

    def _dies_at_checkpoint(bench: Bench, failpoint: str = _failpoint) -> None:
        """A checkpoint is made where a failure begins to be answered tentatively."""
        service = bench.deployment.service("node.r0")
        lives = service.lives
        bench.deployment.dies_at("node.r0", failpoint)
        wait_until(lambda: service.lives > lives, "the life that will die has begun")
        bench.deployment.wait_ready()
        with bench.deployment.cut("source.left"):
            wait_until(lambda: service.lives >= lives + 2, f"node.r0 has died at {failpoint}", within_s=30)

    SCENARIOS[f"dies at {_failpoint}"] = _dies_at_checkpoint


LATE = {
    # All paths are gone, or the client's own: nothing can be given meanwhile.
    "both_replicas_are_killed",
    "the_egress_is_killed",
    "the_broker_is_killed_and_comes_back",
}


EVERY_RUN = {
    "a_replica_is_killed",
    "a_source_is_killed",
    "the_egress_is_killed",
    "the_monitor_is_killed",
    "a_source_is_cut_for_less_than_alpha_x",
    "a_source_is_cut_for_five_x",
    "a_source_is_cut_again_in_mid_correction",
    "a_replica_is_killed_in_mid_correction",
    "a_replica_is_frozen_and_thaws",
    "the_broker_is_killed_and_comes_back",
    "redis_is_killed_and_comes_back",
    "the_control_topic_is_lost",
}
"""`make test` takes these; `make faults` takes them all."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERY_RUN else pytest.mark.soak) for name in SCENARIOS]
)
def test_after_it_the_answer_is_right(one_site: Bench, name: str) -> None:
    since = one_site.mark()
    SCENARIOS[name](one_site)
    figures = one_site.check(since, may_be_late=name in LATE or name.startswith("dies at egress"))
    _report(name, figures)
    if name in ("nothing_happens", "a_source_is_cut_for_less_than_alpha_x", "the_control_topic_is_lost"):
        assert figures["tentative"] == 0
    if name == "a_source_is_cut_for_five_x":
        assert figures["tentative"] > 0 and figures["undone"] == figures["tentative"]


@pytest.fixture(scope="module")
def two_sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Deployment(tmp_path_factory.mktemp("two-sites"), {**QUERY, "name": "sites"}, ("a", "b")) as deployment:
        deployment.wait_ready()
        with Feeder(deployment) as feeder, Ear(deployment) as ear:
            yield Bench(deployment, feeder, ear)


@pytest.mark.soak
@pytest.mark.parametrize("length", [0.25 * X_S, 2 * X_S])
def test_two_sites_that_are_cut_from_each_other_agree_in_the_end(two_sites: Bench, length: float) -> None:
    deployment = two_sites.deployment
    since = two_sites.mark()
    with ExitStack() as cuts:
        for service in ("node.r1", "egress.b"):
            cuts.enter_context(deployment.cut(service, "a"))
        for service in ("node.r0", "egress.a"):
            cuts.enter_context(deployment.cut(service, "b"))
        two_sites.breathe(length)
    figures = two_sites.check(since)
    _report(f"two sites are cut from each other for {length:g} s", figures)
    if two_sites.may_be_timed:
        assert figures["tentative"] == 0, "the home site has all it needs"
    stable = deployment.stable()

    def there() -> list[dict[str, Any]]:
        return [row for row in replay(deployment.changes("b")) if row["_kind"] == "stable"]

    wait_until(lambda: len(there()) >= len(stable), "the other site has all rows too", deployment.explain)
    assert there()[: len(stable)] == [{**row, "_kind": "stable"} for row in stable]


def _report(name: str, figures: dict[str, Any]) -> None:
    path = os.environ.get("BOREAL_FAULTS_TABLE")
    if path:
        shown = ("delay_new_ms_max", "stable", "tentative", "undone", "settled_s")
        cells = (name.replace("_", " "), *(figures[key] for key in shown))
        with Path(path).open("a") as file:
            file.write("| " + " | ".join(str(cell) for cell in cells) + " |\n")
