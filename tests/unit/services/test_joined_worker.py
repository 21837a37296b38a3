"""A worker that has joined, with roles that are played: what it runs, what it says, when it ends. And the supervisor's part."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from boreal.model.errors import UserError
from deployment.placement_record import Assignment, PlacementRecord, RoleReport, WorkerReport, worker_report
from deployment.placer import LOST
from deployment.query_record import QueryRecord
from deployment.supervision import Child
from services.hosting.connections import Connections
from services.hosting.process import EXIT_FAILED, EXIT_STOPPED, StatusPublisher, StopSignal, program_version
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.stack import joined_workers
from services.stack.joined_workers import JoinedWorkers
from services.worker import joined
from services.worker.joined import JoinedWorker
from tests.waiting import wait_until

PATIENCE_S = 120.0
SETTINGS = ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")})
QUERY = QueryRecord("q", {}, 3)


@dataclass
class PlayedRole:
    """Says that it is ready, and ends when it is asked to, or at once if its part is 'broken'."""

    connections: Connections
    name: str
    record: QueryRecord
    part: str

    def serve(self, stopping: StopSignal) -> int:
        if self.part == "broken":
            raise RuntimeError("an operator raises")
        self.connections.statuses._ready.add(self.name)  # as its first status would
        assert stopping.wait(PATIENCE_S)
        self.connections.statuses._ready.discard(self.name)
        return EXIT_STOPPED


@dataclass
class Heard:
    """The topic of placement records, which the test writes."""

    on_record: Callable[[PlacementRecord], None] = lambda record: None
    on_problem: Callable[[str], None] = lambda why: None
    begun: threading.Event = field(default_factory=threading.Event)

    def follow(self, home: Any, site: str, on_record: Callable[[Any], None], on_problem: Callable[[str], None]) -> Any:
        self.on_record, self.on_problem = on_record, on_problem
        self.begun.set()
        return SimpleNamespace(close=lambda: None)


@dataclass
class Joined:
    """A worker in a thread; the test writes the placement records and the queries that it reads."""

    worker: JoinedWorker
    roles: list[PlayedRole]
    heard: Heard
    stopping: StopSignal = field(default_factory=StopSignal)
    code: int | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        self.code = self.worker.serve(self.stopping)

    @property
    def status(self) -> dict[str, Any]:
        return self.worker._status()

    def write(self, number: int, *roles: str, revision: int = 3, refused: str | None = None) -> None:
        at = Assignment("w", self.status["incarnation"], 1, revision, "c")
        refusals = {at.incarnation: refused} if refused is not None else {}
        self.heard.on_record(PlacementRecord("a", number, program_version(), dict.fromkeys(roles, at), refusals))

    def says(self, **roles: RoleReport) -> None:
        wanted = {name.replace("_", "."): said for name, said in roles.items()}
        wait_until(lambda: worker_report({**self.status}).roles == wanted, f"it says {wanted}, not {self.status['roles']}")

    def end(self) -> int | None:
        self.stopping.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self.code


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Joined]:
    heard = Heard()
    monkeypatch.setattr(joined, "follow_placement", heard.follow)
    monkeypatch.setattr(StatusPublisher, "deliver", lambda self: None)
    roles: list[PlayedRole] = []

    def make(*arguments: Any) -> PlayedRole:
        roles.append(PlayedRole(*arguments))
        return roles[-1]

    made = Joined(JoinedWorker(SETTINGS, "a", "w", {"node": make, "egress": make}), roles, heard)
    assert heard.begun.wait(PATIENCE_S)
    made.worker._queries.take("q", QUERY)
    yield made
    made.end()


def test_it_runs_what_the_record_gives_it_and_says_so(hosted: Joined) -> None:
    hosted.write(1, "node.q.r0", "egress.q.a")
    hosted.says(node_q_r0=RoleReport(1, True), egress_q_a=RoleReport(1, True))
    assert {role.part: role.record for role in hosted.roles} == {"r0": QUERY.run(1), "a": QUERY}
    hosted.write(2, "node.q.r0")
    hosted.says(node_q_r0=RoleReport(1, True))
    status = hosted.status
    assert (status["number"], status["problem"], status["ready"], status["site"]) == (2, None, True, "a")


def test_a_role_waits_for_the_record_of_its_query(hosted: Joined) -> None:
    hosted.write(1, "node.q.r0", revision=4)
    hosted.says(node_q_r0=RoleReport(1, False))
    later = QueryRecord("q", {}, 4)
    hosted.worker._queries.take("q", later)
    hosted.says(node_q_r0=RoleReport(1, True))
    assert [role.record for role in hosted.roles] == [later.run(1)]


def test_a_role_that_fails_is_reported_alone(hosted: Joined) -> None:
    hosted.write(1, "node.q.r0", "node.q.broken")
    hosted.says(node_q_r0=RoleReport(1, True), node_q_broken=RoleReport(1, False, EXIT_FAILED))


def test_a_record_that_is_damaged_disturbs_nothing_and_is_in_the_status(hosted: Joined) -> None:
    hosted.write(1, "node.q.r0")
    hosted.says(node_q_r0=RoleReport(1, True))
    hosted.heard.on_problem("is damaged: x")
    wait_until(lambda: hosted.status["problem"] == "a record is damaged: x; record 1 is obeyed", "it says so")
    assert not hosted.status["ready"]
    hosted.says(node_q_r0=RoleReport(1, True))
    hosted.write(2, "node.q.r0")
    wait_until(lambda: hosted.status["problem"] is None, "the next record is obeyed")


def test_one_that_is_refused_ends_when_it_runs_nothing(hosted: Joined) -> None:
    hosted.write(1, "node.q.r0", refused="another version")
    hosted.says(node_q_r0=RoleReport(1, True))
    assert hosted.status["problem"] == "another version" and hosted.thread.is_alive()
    hosted.write(2, refused="another version")
    hosted.thread.join(PATIENCE_S)
    assert hosted.code == EXIT_FAILED


def test_one_that_is_stopped_ends_its_roles_and_says_that_it_leaves(hosted: Joined) -> None:
    hosted.write(1, "node.q.r0")
    hosted.says(node_q_r0=RoleReport(1, True))
    assert hosted.end() == EXIT_STOPPED
    assert hosted.status["leaves"] and hosted.status["roles"] == {}


def test_an_unknown_site_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UserError, match=r"--site: is not among the sites.*name one of a"):
        JoinedWorker(SETTINGS, "z", "w")


# The supervisor's end


@dataclass
class PlayedWriter:
    """Finds no record, and keeps the newest."""

    home: Any
    site: str
    on_found: Callable[[PlacementRecord | None], None]
    on_fenced: Callable[[], None]
    newest: PlacementRecord | None = None

    def put(self, record: PlacementRecord) -> None:
        self.newest = record

    def close(self) -> None:
        pass


@dataclass
class Pool:
    """JoinedWorkers at a time that the test sets, in seconds."""

    monkeypatch: pytest.MonkeyPatch
    now: float = 1.0
    ended: list[tuple[str, int]] = field(default_factory=list)
    ready: list[tuple[str, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(joined_workers, "PlacementWriter", PlayedWriter)
        self.monkeypatch.setattr(joined_workers, "now_us", lambda: round(self.now * 1e6))
        self.workers = JoinedWorkers(
            None,  # type: ignore[arg-type]
            ["a"],
            lambda name, code: self.ended.append((name, code)),
            lambda name, ready: self.ready.append((name, ready)),
            lambda: None,
        )
        self.writer = cast(PlayedWriter, self.workers._writers["a"])
        self.writer.on_found(None)

    def start(self, *names: str) -> None:
        for name in names:
            self.workers.start(Child(name, name.split(".")[0], "q", (), site="a"), {})
        self.workers.settle()

    def hear(self, name: str, leaves: bool = False, **roles: RoleReport) -> None:
        said = {name.replace("_", "."): report for name, report in roles.items()}
        number = self.writer.newest.number if self.writer.newest is not None else 0
        report = WorkerReport(name, name, name, program_version(), number, said, leaves)
        self.workers.hear({**report.fields(), "kind": "worker", "site": "a"})

    def later(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            self.workers.hear_self()
            self.workers.tick()

    @property
    def places(self) -> dict[str, str]:
        assert self.writer.newest is not None
        return {name: at.worker for name, at in self.writer.newest.roles.items()}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    made = Pool(monkeypatch)
    made.start("node.q.r0", "node.q.r1")
    made.later(0.5)
    made.hear("v")
    made.hear("w")
    made.later(1)
    return made


def test_roles_are_written_to_the_record_and_their_readiness_is_told(pool: Pool) -> None:
    assert pool.places == {"node.q.r0": "v", "node.q.r1": "w"}
    assert pool.writer.newest is not None
    pool.hear("v", node_q_r0=RoleReport(pool.writer.newest.number, True))
    assert pool.ready == [("node.q.r0", True)] and pool.workers.place_of("node.q.r0") == "v"


def test_a_role_that_is_stopped_leaves_the_record_and_ends_when_its_worker_says_so(pool: Pool) -> None:
    pool.workers.stop("node.q.r0")
    pool.workers.settle()
    assert pool.places == {"node.q.r1": "w"} and not pool.ended
    pool.hear("v")
    assert pool.ended == [("node.q.r0", 0)]
    pool.workers.stop("node.q.r0")  # its end is on its way to the supervisor
    assert len(pool.ended) == 1


def test_the_roles_of_a_worker_that_leaves_have_ended_at_once(pool: Pool) -> None:
    pool.hear("v", leaves=True)
    assert pool.ended == [("node.q.r0", LOST)] and pool.places == {"node.q.r1": "w"}


def test_a_role_that_cannot_be_placed_says_why(pool: Pool) -> None:
    pool.start("node.q.r2")
    for _ in range(4):
        pool.later(1)
        pool.hear("v", node_q_r0=RoleReport(1))
        pool.hear("w", node_q_r1=RoleReport(1))
    problem = "each worker of site a runs another replica: start one more for node.q.r2"
    assert pool.workers.problem_of("q") == problem and pool.workers.problem_of("p") is None


def test_a_role_with_many_rows_counts_for_several(pool: Pool) -> None:
    pool.start("source.q.busy")
    said = {"kind": "source", "process": "source.q.busy", "query": "q"}
    pool.workers.hear({**said, "rows": 0})
    pool.now += 10
    pool.workers.hear({**said, "rows": 120_000})
    pool.workers.hear({"kind": "source", "process": "source.other.s", "query": "other"})
    assert pool.workers._sites["a"]._roles["source.q.busy"].weight == 5


def test_when_the_supervisor_ends_its_roles_go_on(pool: Pool) -> None:
    before = pool.writer.newest
    pool.workers.let_go()
    for name in ("node.q.r0", "node.q.r1"):
        pool.workers.stop(name)
    pool.workers.settle()
    assert pool.ended == [("node.q.r0", EXIT_STOPPED), ("node.q.r1", EXIT_STOPPED)] and pool.writer.newest == before
