"""Evolutions that are broken on their way, on a stack of real processes, brokers and commands: whatever dies, and whenever,
clients of each site have each row once, as the version in charge computes it. In the order of the file: each test goes on with
the stack as the one before left it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition

from deployment.evolution import BUILDING, CLAIMING, ROLLED_BACK, ROLLING_BACK, TAKEN_OVER, TAKING_OVER, state_of
from deployment.query_record import QueryRecord, inner_name
from formats.client_headers import VERSION
from services.kafka.clusters import make_clusters
from services.kafka.queries import QueryRegistry
from tests.stack.lives import records_of, replayed, values_of
from tests.stack.test_evolution import (
    STALL_S,
    Feed,
    at_states,
    await_windows,
    check,
    given,
    settings_of,
    slowest_new_ms,
    spec_of,
)
from tests.stack.test_stack import PATIENCE_S, ROOT, Commands, have_ended
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.soak, pytest.mark.xdist_group("servers")]

X_MS = 6_000
COLUMNS = ({"rows": "count(*)"}, {"rows": "count(*)", "total": "sum(value)"}, {"rows": "count(*)", "least": "min(value)"})
"""What the versions compute, in turn."""


@dataclass
class Trial:
    """A stack with a query that evolves, and rows that flow."""

    boreal: Commands
    changes: Mapping[str, Any]
    """Of the query, to that of the other tests."""
    columns: dict[int, set[str]] = field(default_factory=dict)
    """Of each version."""
    charges: list[int] = field(default_factory=list)
    """The versions that were in charge, in order."""

    def __post_init__(self) -> None:
        self.clusters = make_clusters(settings_of(self.boreal), "test")
        self.home = self.clusters["a"]
        self.write(COLUMNS[0])
        assert self.boreal.json("query", "apply", str(self.path))["live"]
        self.columns[1], self.charges[:] = set(COLUMNS[0]), [1]
        self.feed = Feed(*(self.boreal.status()["kafka"][site] for site in self.clusters))
        await_windows(self.home, 3)

    @property
    def path(self) -> Path:
        return self.boreal.data.parent / "counts.json"

    def write(self, compute: dict[str, str]) -> None:
        spec = {**spec_of(**compute), "shards": 1, **self.changes}
        self.path.write_text(json.dumps({key: value for key, value in spec.items() if value is not None}))

    def record(self) -> QueryRecord:
        with closing(QueryRegistry(self.home)) as registry:
            return registry.load()["counts"]

    def await_state(self, state: str | None) -> None:
        wait_until(lambda: state_of(self.record()) == state, str(state), PATIENCE_S)

    def next(self) -> int:
        """Write the file of another version; its number."""
        number = max(self.columns) + 1
        compute = COLUMNS[(number - 1) % len(COLUMNS)]
        self.columns[number] = set(compute)
        self.write(compute)
        return number

    def evolve(self) -> int:
        """Another version takes over; its number."""
        number = self.next()
        found = self.boreal.json("query", "apply", str(self.path), "--evolve")
        assert (found["version"], found["evolution"]["state"]) == (number, TAKEN_OVER)
        return number

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """A command of `boreal query`, as a process that can be killed."""
        command = [sys.executable, "-m", "boreal", "query", *arguments, "--json", "--data", str(self.boreal.data)]
        return subprocess.Popen(command, cwd=ROOT, env=self.boreal.environment, stdout=subprocess.DEVNULL, text=True)

    def settle(self) -> None:
        assert self.boreal.json("query", "settle", "counts")["evolution"] is None

    def kill(self, name: str, state: str = "") -> None:
        """Kill a process once it runs; state: and is in this one."""

        def found() -> int | None:
            process = self.boreal.processes().get(name)
            return process["pid"] if process is not None and state in ("", process["state"]) else None

        wait_until(lambda: found() is not None, f"{name} runs")
        pid = found()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    @contextmanager
    def killing(self, at: Mapping[str, Sequence[tuple[str, ...]]]) -> Iterator[None]:
        """Kill processes, in this order, from when the query comes to a state; see `kill`."""

        def kill_all(each: Sequence[tuple[str, ...]]) -> None:
            for one in each:
                self.kill(*one)

        killers = {state: threading.Thread(target=kill_all, args=(each,)) for state, each in at.items()}
        with at_states(self.home, {state: killer.start for state, killer in killers.items()}):
            yield
        for killer in killers.values():
            killer.join()

    def check(self, now: int, since_us: int | None = None, rows_of: int = 3, but_for: str = "") -> None:
        """This version is in charge now, and each site's clients have each row once. since_us: X held from then on, but_for: at
        all sites but this one, whose egress was dead for a while."""
        if self.charges[-1] != now:
            self.charges.append(now)
        stall_s = self.feed.stall_s
        await_windows(self.home, rows_of, version=now)
        outs = {site: "counts.out" + (f".{site}" if len(self.clusters) > 1 else "") for site in self.clusters}
        assert [version for version, _ in check(self.home, self.feed, self.columns, outs["a"])] == self.charges
        for site, out in outs.items():
            rows = [(version, row) for _, version, row in given(self.home)]
            wait_until(lambda: len(self._stable(site, out)) >= len(rows), f"{site} has all rows")  # noqa: B023
            assert self._stable(site, out)[: len(rows)] == rows
        if since_us is not None:
            owed = {site: out for site, out in outs.items() if site != but_for}
            slowest = {site: slowest_new_ms(self.clusters[site], since_us, out) for site, out in owed.items()}
            print(f"\nslowest new rows: {slowest}; X: {X_MS} ms; rows were stopped for {stall_s:.2f} s at most")
            assert stall_s >= STALL_S or max(slowest.values()) <= X_MS

    def _stable(self, site: str, out: str) -> list[tuple[int, dict[str, Any]]]:
        """The version and the columns of each stable row at a site's clients."""
        replayed(values_of(self.clusters[site], out))
        found = [(dict(record.headers), json.loads(record.value)) for record in records_of(self.clusters[site], out)]
        return [(int(of.get(VERSION, b"1")), said["data"]) for of, said in found if said["type"] == "stable"]

    def since(self) -> int:
        self.feed.stall_s = 0.0
        return time.time_ns() // 1_000


@contextmanager
def trial_of(root: Path, changes: Mapping[str, Any], *options: str) -> Iterator[Trial]:
    boreal = Commands(root / "data")
    with ExitStack() as stack:
        stack.callback(boreal.run, "down")
        boreal.begin("up", *options)
        boreal.guard()
        trial = Trial(boreal, {"records": None, "debezium": None, **changes})
        stack.enter_context(closing(trial.feed))
        yield trial


def test_workers_that_are_killed_in_each_state_cost_no_row(tmp_path: Path) -> None:
    """On one site, where all roles share two processes. X does not hold while the one with the egress is dead."""
    with trial_of(tmp_path, {"replicas": 2}, "--workers", "2") as workers:
        with workers.killing({BUILDING: [("node.counts-2.r0",)], TAKING_OVER: [("egress.counts.a",)]}):
            number = workers.evolve()
        workers.check(number)
        workers.settle()
        with workers.killing({BUILDING: [("source.counts-3.left", "running"), ("node.counts-2.r1",)]}):
            number = workers.evolve()
        workers.check(number)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[Trial]:
    """Two sites, a broker and a replica at each; the right stream is at the second. Each role has a process of its own."""
    streams = {**spec_of()["streams"]}
    streams["right"] = {**streams["right"], "site": "b"}
    with trial_of(
        tmp_path_factory.mktemp("sites"), {"streams": streams, "replicas": 2}, "--sites", "2", "--allow-chaos"
    ) as trial:
        yield trial


def test_both_sites_change_at_one_time(sites: Trial) -> None:
    since = sites.since()
    sites.check(sites.evolve(), since)


def test_what_dies_while_a_version_is_built_costs_no_row(sites: Trial) -> None:
    """The new version's source, as soon as it is there, and its replicas; a replica of the version in charge, one at a time."""
    sites.settle()
    since, old, new = sites.since(), inner_name("counts", sites.charges[-1]), inner_name("counts", max(sites.columns) + 1)
    dying = [(f"source.{new}.left",), (f"node.{new}.r0",), (f"node.{old}.r0",), (f"node.{new}.r1", "running")]
    with sites.killing({BUILDING: dying}):
        number = sites.evolve()
    sites.check(number, since)


def test_what_dies_while_the_versions_change_costs_no_row(sites: Trial) -> None:
    """Back, and forth again: an egress of each site, the monitor, a replica of each version."""
    [old, new] = sites.charges[-2:]
    since = sites.since()
    with sites.killing({TAKING_OVER: [("egress.counts.b",), (f"node.{inner_name('counts', old)}.r1",)]}):
        found = sites.boreal.json("query", "rollback", "counts")
    assert (found["version"], found["evolution"]["state"]) == (old, ROLLED_BACK)
    sites.check(old, since, but_for="b")
    since = sites.since()
    with sites.killing(
        {ROLLING_BACK: [("monitor",)], TAKING_OVER: [("egress.counts.a",), (f"node.{inner_name('counts', new)}.r0",)]}
    ):
        found = sites.boreal.json("query", "rollback", "counts")
    assert (found["version"], found["evolution"]["state"]) == (new, TAKEN_OVER)
    sites.check(new, since, but_for="a")


def test_a_stream_that_is_cut_while_the_versions_change_delays_the_takeover_and_costs_no_row(sites: Trial) -> None:
    sites.settle()
    since = sites.since()
    struck: list[dict[str, Any]] = []
    cutter = threading.Thread(target=lambda: struck.append(sites.boreal.begin("fault", "cut", "right", "for", "10s")))
    with at_states(sites.home, {TAKING_OVER: cutter.start}):
        number = sites.evolve()
    cutter.join()
    assert len(struck[0]["targets"]) == 2, "the stream of both versions is cut"
    sites.check(number, since, rows_of=8)


def test_a_supervisor_that_is_killed_in_the_midst_goes_on_where_the_query_was(sites: Trial) -> None:
    """With all that it runs, the brokers too; the command that evolves is killed as well."""
    for state in (BUILDING, TAKING_OVER):
        sites.settle()
        number = sites.next()
        has_come = threading.Event()
        with at_states(sites.home, {state: has_come.set}):
            command = sites.begin("apply", str(sites.path), "--evolve")
            assert has_come.wait(PATIENCE_S)
        with sites.feed.paused():
            everything = sites.boreal.everything()
            everything[0].kill()
            wait_until(lambda: have_ended(everything), "all have died with it")  # noqa: B023
            command.kill()
            command.wait()
            sites.boreal.begin("up", "--allow-chaos")
            sites.boreal.guard()
        sites.await_state(TAKEN_OVER)
        sites.check(number)


def test_a_state_is_handed_on_between_sites_while_what_has_it_dies(sites: Trial) -> None:
    """One that depends on all rows ever: former rows come again, and count no more. The monitor dies as it looks for the state;
    then the source and a replica at the other site, and a replica of the version in charge; in the end both replicas of the new
    one."""
    if sites.record().beside is not None:
        sites.settle()

    def evolve(operators: Mapping[str, Any], *arguments: str) -> int:
        sites.changes = {**sites.changes, "operators": operators, "output": list(operators)[-1]}
        number = sites.next()
        sites.columns[number] = {"rows"}
        found = sites.boreal.json("query", "apply", str(sites.path), "--evolve", *arguments)
        assert (found["version"], found["evolution"]["state"]) == (number, TAKEN_OVER)
        return number

    own = spec_of(rows="count(*)")
    each = {"all": own["operators"]["all"], "each": {"distinct": "all", "on": ["key", "value"]}}
    counted = {**each, "per_key": {**own["operators"]["per_key"], "aggregate": "each"}}
    sites.changes = {**sites.changes, "tuning": {**own["tuning"], "history": "1ms", "checkpoint_interval": "500ms"}}
    sites.check(evolve(counted))
    sites.settle()
    old, new = inner_name("counts", sites.charges[-1]), inner_name("counts", max(sites.columns) + 1)

    def trimmed(site: str, side: str) -> int:
        log = TopicPartition(f"{old}.log.{side}", 0)
        with closing(sites.clusters[site].make_consumer()) as consumer:
            return int(consumer.beginning_offsets([log])[log])

    logs = {"a": "left", "b": "right"}
    wait_until(lambda: all(trimmed(*log) for log in logs.items()), "rows are trimmed behind checkpoints", every_s=1.0)
    sites.feed.repeats = True
    since = sites.since()
    dying = [(f"source.{old}.right",), (f"node.{new}.r1", "running"), (f"node.{old}.r0",)]
    with sites.killing({CLAIMING: [("monitor",)], BUILDING: dying}):
        number = evolve({**counted, "shown": {"map": "per_key", "select": {"key": "key", "rows": "rows"}}}, "--from", "state")
    sites.check(number, since)
    sites.settle()
    for replica in ("r0", "r1"):
        sites.kill(f"node.{new}.{replica}", "running")
    before = {site: trimmed(site, side) for site, side in logs.items()}
    wait_until(lambda: all(trimmed(*log) > before[log[0]] for log in logs.items()), "the logs are trimmed", every_s=1.0)
    sites.check(number)
