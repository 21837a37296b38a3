"""A worker and its supervisor's end of the channel, with roles that are played."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deployment.query_record import QueryRecord
from deployment.supervision import Child
from services.hosting.connections import Connections
from services.hosting.process import EXIT_FAILED, EXIT_STOPPED, StopSignal
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.stack.channel import Started, start_with_channel
from services.stack.workers import role_workers
from services.worker import role_threads
from services.worker.worker import Worker
from tests.waiting import wait_until

PATIENCE_S = 120.0
RELEASE = threading.Event()
"""A role of the query 'stuck' ends when this is set, whatever it is asked."""


@dataclass
class PlayedRole:
    """Ends when it is asked to, or as its query's name says."""

    connections: Connections
    name: str
    query: str

    def serve(self, stopping: StopSignal) -> int:
        if self.query == "broken":
            raise RuntimeError("an operator raises")
        if self.query == "fenced":
            return 3
        if self.query == "stuck":
            assert RELEASE.wait(PATIENCE_S)
            return EXIT_FAILED
        assert stopping.wait(PATIENCE_S)
        return EXIT_STOPPED


@dataclass
class Hosted:
    """A worker in a thread of this process, and the supervisor's end of its channel."""

    made: list[PlayedRole] = field(default_factory=list)
    stopping: StopSignal = field(default_factory=StopSignal)

    def __post_init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(PATIENCE_S)
        self.lines = self.channel.makefile("rb")
        settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")})
        worker = Worker(Connections(settings, "worker.0"), theirs, {"node": self._make})
        self.thread = threading.Thread(target=worker.serve, args=(self.stopping,))
        self.thread.start()
        assert self.hear() == {"warm": True}

    def _make(self, connections: Connections, name: str, record: QueryRecord, part: str) -> PlayedRole:
        self.made.append(PlayedRole(connections, name, record.name))
        return self.made[-1]

    def say(self, **message: Any) -> None:
        self.channel.sendall(json.dumps(message).encode() + b"\n")

    def start(self, name: str, query: str, **proxies: str) -> None:
        links = {"proxies": proxies, "stream_proxies": {"jfk": proxies["a"]}} if proxies else {}
        record = json.loads(QueryRecord(query, {}, 1).to_json())
        self.say(start=name, kind="node", record=record, part="r0", links=links)

    def hear(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.lines.readline())
        return found

    def end(self) -> None:
        self.channel.shutdown(socket.SHUT_RDWR)
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def hosted() -> Iterator[Hosted]:
    made = Hosted()
    yield made
    made.end()


def test_a_role_runs_until_it_is_asked_to_end(hosted: Hosted) -> None:
    hosted.start("node.p.r0", "p")
    hosted.start("node.q.r0", "q", a="socks5://127.0.0.1:9")
    hosted.say(stop="node.q.r0")
    assert hosted.hear() == {"ended": "node.q.r0", "code": EXIT_STOPPED}
    settings = {role.name: role.connections.settings for role in hosted.made}
    assert {name: (own.proxies, own.stream_proxies) for name, own in settings.items()} == {
        "node.p.r0": ({}, {}),
        "node.q.r0": ({"a": "socks5://127.0.0.1:9"}, {"jfk": "socks5://127.0.0.1:9"}),
    }


def test_roles_share_connections_but_for_those_with_links_of_their_own(hosted: Hosted) -> None:
    for query in "pq":
        hosted.start(f"node.{query}.r0", query)
    hosted.start("node.s.r0", "s", a="socks5://127.0.0.1:9")
    hosted.say(stop="node.s.r0")
    hosted.hear()
    shared, also, own = (role.connections for role in sorted(hosted.made, key=lambda role: role.name))
    assert shared is also and own is not shared


def test_a_role_that_fails_ends_alone_with_its_exit_code(hosted: Hosted) -> None:
    hosted.start("node.p.r0", "p")
    hosted.start("node.broken.r0", "broken")
    assert hosted.hear() == {"ended": "node.broken.r0", "code": EXIT_FAILED}
    hosted.start("node.fenced.r0", "fenced")
    assert hosted.hear() == {"ended": "node.fenced.r0", "code": 3}
    hosted.say(stop="node.broken.r0")
    hosted.say(stop="node.p.r0")
    assert hosted.hear() == {"ended": "node.p.r0", "code": EXIT_STOPPED}


def test_a_role_that_does_not_end_is_left_to_itself_and_its_successor_begins(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who kills it kills all others with it."""
    monkeypatch.setattr(role_threads, "END_WITHIN_S", 0.05)
    RELEASE.clear()
    hosted.start("node.stuck.r0", "stuck")
    hosted.say(stop="node.stuck.r0")
    hosted.say(stop="node.stuck.r0")
    assert hosted.hear() == {"ended": "node.stuck.r0", "code": EXIT_STOPPED}
    hosted.start("node.stuck.r0", "p")
    wait_until(lambda: len(hosted.made) == 2)
    left = [thread for thread in threading.enumerate() if thread.name == "node.stuck.r0"]
    RELEASE.set()
    wait_until(lambda: sum(thread.is_alive() for thread in left) == 1, "the one that was left ends at last")
    monkeypatch.setattr(role_threads, "END_WITHIN_S", PATIENCE_S)
    hosted.say(stop="node.stuck.r0")
    assert hosted.hear() == {"ended": "node.stuck.r0", "code": EXIT_STOPPED}, "and says nothing of its successor"


@pytest.mark.parametrize("by_signal", [False, True])
def test_all_roles_end_with_the_worker(by_signal: bool) -> None:
    hosted = Hosted()
    for query in "pq":
        hosted.start(f"node.{query}.r0", query)
    hosted.say(stop="node.p.r0")
    hosted.hear()
    if by_signal:
        hosted.stopping.set()
        assert hosted.hear() == {"ended": "node.q.r0", "code": EXIT_STOPPED}
    hosted.end()


# The supervisor's end: workers that are real processes, and do what a line says.

PLAYED_WORKER = """
import json, os, signal, sys, time
sys.path.insert(0, {root!r})
import socket
channel = socket.socket(fileno=0)
lines = channel.makefile("rb")
say = lambda message: channel.sendall(json.dumps(message).encode() + b"\\n")
say({{"warm": True}})
for line in lines:
    request = json.loads(line)
    if "stop" in request:
        say({{"ended": request["stop"], "code": 0}})
    elif request["record"]["name"] == "fatal":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass
class Pool:
    """The workers of a supervisor, and what it hears of them."""

    count: int
    ended: queue.SimpleQueue[tuple[str, int]] = field(default_factory=queue.SimpleQueue)
    spawned: list[subprocess.Popen[bytes]] = field(default_factory=list)
    with_rows: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.workers = role_workers(
            self.count, self._spawn, lambda name, code: self.ended.put((name, code)), lambda role: role in self.with_rows
        )

    def _spawn(self, name: str, command: Sequence[str]) -> Started:
        program = PLAYED_WORKER.format(root=str(Path.cwd()))
        started = start_with_channel(lambda stdin: subprocess.Popen([sys.executable, "-c", program], stdin=stdin))
        self.spawned.append(started[0])
        return started

    def start(self, kind: str, query: str, part: str) -> str:
        name = f"{kind}.{query}.{part}"
        command = (sys.executable, "-m", f"services.{kind}", query, part)
        self.workers.start(Child(name, kind, query, command, record=QueryRecord(query, {}, 1)), {})
        return name


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(2)
    yield made
    made.workers.close()
    assert all(process.poll() is not None for process in made.spawned)


def test_roles_are_spread_and_replicas_kept_apart(pool: Pool) -> None:
    names = [pool.start("node", query, replica) for query in "pq" for replica in ("r0", "r1")]
    pids = [pool.workers.identity_of(name) for name in names]
    assert None not in pids and len(set(pids)) == 2
    assert pids[0] != pids[1] and pids[2] != pids[3]
    with pytest.raises(RuntimeError, match="another replica"):
        pool.start("node", "p", "r2")


def test_a_role_that_was_asked_to_end_is_reported_once(pool: Pool) -> None:
    name = pool.start("source", "p", "s")
    pool.workers.stop(name)
    assert pool.ended.get(timeout=PATIENCE_S) == (name, 0)
    assert pool.workers.identity_of(name) is None
    pool.workers.stop(name)
    assert pool.ended.empty()


def test_the_roles_of_a_worker_that_dies_go_to_one_that_is_warm(pool: Pool) -> None:
    names = [pool.start("source", "p", stream) for stream in "st"]
    wait_until(lambda: all(worker.is_warm for worker in pool.workers._workers.values()))
    identity = pool.workers.identity_of(names[0])
    survivor = pool.workers.identity_of(names[1])
    assert identity is not None and survivor is not None
    os.kill(identity[0], signal.SIGKILL)
    assert pool.ended.get(timeout=PATIENCE_S) == (names[0], -signal.SIGKILL)
    pool.start("source", "p", "s")
    assert pool.workers.identity_of(names[0]) == survivor
    assert len(pool.spawned) == 3


def test_of_a_worker_that_dies_the_roles_for_which_clients_wait_are_reported_first() -> None:
    pool = Pool(1)
    replica, calm = pool.start("node", "p", "r0"), [pool.start("source", "p", "s"), pool.start("egress", "p", "a")]
    busy = [pool.start("source", "q", "s"), pool.start("egress", "q", "a")]
    pool.with_rows.update(busy)
    identity = pool.workers.identity_of(replica)
    assert identity is not None
    os.kill(identity[0], signal.SIGKILL)
    reported = [pool.ended.get(timeout=PATIENCE_S)[0] for _ in range(5)]
    assert reported == [*busy, *calm, replica]
    pool.workers.close()


def test_a_role_that_kills_its_worker_at_once_is_reported(pool: Pool) -> None:
    name = pool.start("node", "fatal", "r0")
    assert pool.ended.get(timeout=PATIENCE_S) == (name, -signal.SIGKILL)


def test_a_frozen_worker_is_woken_to_end_a_role(pool: Pool) -> None:
    name = pool.start("egress", "p", "a")
    pool.workers.send(name, signal.SIGSTOP)
    pool.workers.stop(name)
    assert pool.ended.get(timeout=PATIENCE_S) == (name, 0)
