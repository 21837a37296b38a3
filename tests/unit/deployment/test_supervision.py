"""The supervisor's decisions: what starts, what ends, in which order, and how soon it is started again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployment.supervision import (
    BACKOFF_LAST_US,
    DEFAULT_GRACE_US,
    GRACE_US,
    HEALTHY_AFTER_US,
    HOPELESS_AFTER_US,
    Child,
    KillProcess,
    ProcessExit,
    ProcessPhase,
    ProcessTargets,
    ReadinessReport,
    StartProcess,
    Supervision,
    SupervisionEffect,
    SupervisionEvent,
    SupervisionTick,
    TerminateProcess,
)

KAFKA = Child("kafka.a", "kafka", None, ("kafka",))
REDIS = Child("redis", "redis", None, ("redis",))
MONITOR = Child("monitor", "monitor", None, ("monitor",))
SOURCE = Child("source.q.jfk", "source", "q", ("source",), "1")
NODES = tuple(Child(f"node.q.r{n}", "node", "q", ("node", f"r{n}"), "1", "x") for n in range(3))
EGRESS = Child("egress.q.a", "egress", "q", ("egress",), "1", "x")
ALL = (KAFKA, REDIS, MONITOR, SOURCE, *NODES, EGRESS)


class World:
    """A supervision with its processes, which do what they are told: they start, and end when asked to."""

    def __init__(self, children: Sequence[Child] = ALL, ready: bool = True) -> None:
        self.supervision = Supervision()
        self.now = 0
        self.running: dict[str, Child] = {}
        self.log: list[str] = []
        self.want(children)
        if ready:
            self.answer(*self.running)

    def want(self, children: Sequence[Child], held: frozenset[str] = frozenset()) -> None:
        self.tell(ProcessTargets(tuple(children), held))

    def answer(self, *names: str) -> None:
        for name in names:
            self.tell(ReadinessReport(name, True))

    def tell(self, event: SupervisionEvent) -> list[SupervisionEffect]:
        effects = self.supervision.handle(event, self.now)
        for effect in effects:
            match effect:
                case StartProcess(child):
                    assert child.name not in self.running, f"{child.name} is started twice"
                    self.running[child.name] = child
                    self.log.append(f"start {child.name}")
                case TerminateProcess(name):
                    assert name in self.running
                    self.log.append(f"terminate {name}")
                case KillProcess(name):
                    assert name in self.running
                    self.log.append(f"kill {name}")
        return effects

    def exits(self, name: str) -> None:
        del self.running[name]
        self.tell(ProcessExit(name))

    def pass_time(self, us: int) -> None:
        """To each deadline on the way."""
        end = self.now + us
        while (due := self.supervision.next_deadline()) is not None and due <= end:
            self.now = due
            self.tell(SupervisionTick())
        self.now = end
        self.tell(SupervisionTick())

    def drain(self) -> list[str]:
        taken, self.log = self.log, []
        return taken


def test_what_is_wanted_is_started_servers_first() -> None:
    world = World(ready=False)
    assert [line.split()[1].split(".")[0] for line in world.drain()] == [
        "kafka", "redis", "monitor", "source", "node", "node", "node", "egress",
    ]  # fmt: skip
    assert world.supervision.unready()
    world.answer(*world.running)
    assert not world.supervision.unready()


def test_the_first_restart_is_at_once_and_backoff_doubles_to_ten_seconds_and_begins_anew_after_health() -> None:
    world = World([MONITOR])
    waits = []
    for _ in range(8):
        world.exits("monitor")
        before = world.now
        world.pass_time(BACKOFF_LAST_US)
        process = world.supervision.processes["monitor"]
        waits.append(process.since - before)
        world.now = process.since
    assert waits == [0, 200_000, 400_000, 800_000, 1_600_000, 3_200_000, 6_400_000, 10_000_000]
    assert world.supervision.processes["monitor"].restarts == 8
    world.pass_time(HEALTHY_AFTER_US)
    world.exits("monitor")
    assert world.supervision.processes["monitor"].since == world.now
    world.exits("monitor")
    assert world.supervision.next_deadline() == world.now + 200_000


def test_one_that_ends_unasked_comes_back_whatever_its_exit_code() -> None:
    world = World([MONITOR])
    world.exits("monitor")
    assert world.supervision.processes["monitor"].state == "starting"
    world.exits("monitor")
    assert world.supervision.processes["monitor"].state == "waiting"
    world.pass_time(200_000)
    assert world.supervision.processes["monitor"].state == "starting"
    world.answer("monitor")
    assert world.supervision.processes["monitor"].state == "running"


def test_all_end_downstream_first_each_stage_after_the_one_before() -> None:
    world = World()
    world.drain()
    world.want(())
    stages = []
    while world.running:
        asked = [line.split()[1] for line in world.drain()]
        stages.append(asked)
        for name in asked:
            world.exits(name)
    assert stages == [
        ["egress.q.a"], ["node.q.r0", "node.q.r1", "node.q.r2"], ["source.q.jfk"], ["monitor"], ["redis"], ["kafka.a"],
    ]  # fmt: skip
    assert not world.supervision.processes


def test_a_deleted_query_ends_and_nothing_else_does() -> None:
    world = World()
    world.drain()
    world.want((KAFKA, REDIS, MONITOR))
    while asked := [line.split()[1] for line in world.drain()]:
        for name in asked:
            world.exits(name)
    assert sorted(world.running) == ["kafka.a", "monitor", "redis"]
    assert sorted(world.supervision.processes) == ["kafka.a", "monitor", "redis"]


def test_one_that_waits_for_its_restart_is_not_started_once_it_is_unwanted() -> None:
    world = World([KAFKA, MONITOR])
    world.exits("monitor")
    world.exits("monitor")
    world.want([KAFKA])
    world.drain()
    world.pass_time(BACKOFF_LAST_US)
    assert world.drain() == []
    assert sorted(world.supervision.processes) == ["kafka.a"]


@pytest.mark.parametrize(("child", "grace"), [(MONITOR, DEFAULT_GRACE_US), (KAFKA, GRACE_US["kafka"])])
def test_one_that_does_not_end_is_killed_after_its_grace(child: Child, grace: int) -> None:
    world = World([child])
    world.want(())
    world.drain()
    world.pass_time(grace - 1)
    assert world.drain() == []
    world.pass_time(1)
    assert world.drain() == [f"kill {child.name}"]
    world.pass_time(10 * grace)
    assert world.drain() == []
    world.exits(child.name)
    assert not world.supervision.processes


def test_one_that_is_wanted_again_while_it_ends_comes_back_at_once() -> None:
    world = World([MONITOR])
    world.want(())
    world.want([MONITOR])
    world.drain()
    world.exits("monitor")
    assert world.drain() == ["start monitor"]
    assert world.supervision.processes["monitor"].restarts == 0


def test_another_revision_restarts_at_once_and_the_same_one_never() -> None:
    world = World()
    world.drain()
    world.want(ALL)
    assert world.drain() == []
    world.want([replace(child, revision="2") if child.query else child for child in ALL])
    assert sorted(world.drain()) == sorted(f"terminate {child.name}" for child in ALL if child.query)
    world.exits("source.q.jfk")
    assert world.drain() == ["start source.q.jfk"]
    assert world.running["source.q.jfk"].revision == "2"


def test_another_turn_restarts_one_at_a_time_and_waits_for_it_to_be_ready() -> None:
    world = World()
    world.drain()
    turned = [replace(child, turn="y") if child.turn else child for child in ALL]
    world.want(turned)
    order = []
    for _ in range(4):
        (line,) = world.drain()
        name = line.removeprefix("terminate ")
        order.append(name)
        world.exits(name)
        assert world.drain() == [f"start {name}"]
        world.pass_time(60_000_000)
        assert world.drain() == [], "the next one waits for this one"
        assert name in world.supervision.unready()
        world.answer(name)
    assert sorted(order) == ["egress.q.a", "node.q.r0", "node.q.r1", "node.q.r2"]
    assert world.drain() == []
    assert not world.supervision.unready()


def test_one_that_never_was_ready_is_turned_without_waiting() -> None:
    world = World(ready=False)
    world.answer("node.q.r1")
    world.drain()
    world.want([replace(child, turn="y") if child.turn else child for child in ALL])
    assert world.drain() == ["terminate egress.q.a", "terminate node.q.r0", "terminate node.q.r2"]


def test_one_that_is_unready_for_a_moment_takes_its_turn_and_for_long_waits_for_nobody() -> None:
    world = World()
    world.tell(ReadinessReport("node.q.r0", False))
    world.tell(ReadinessReport("node.q.r1", False))
    assert world.supervision.processes["node.q.r0"].state == "recovering"
    world.drain()
    world.want([replace(child, turn="y") if child.turn else child for child in ALL])
    assert world.drain() == []
    world.pass_time(HOPELESS_AFTER_US - 1)
    assert world.drain() == []
    world.pass_time(1)
    assert world.drain() == ["terminate node.q.r0", "terminate node.q.r1"]


def test_what_an_ending_process_says_makes_it_not_ready() -> None:
    world = World([MONITOR])
    world.want(())
    world.answer("monitor")
    assert not world.supervision.processes["monitor"].ready


def test_one_that_is_held_waits_once_and_starts_when_it_is_held_no_longer() -> None:
    world = World()
    world.drain()
    world.want(ALL, held=frozenset({"node.q.r0"}))
    assert world.drain() == [], "it runs still"
    world.exits("node.q.r0")
    world.pass_time(HEALTHY_AFTER_US)
    process = world.supervision.processes["node.q.r0"]
    assert (world.drain(), world.supervision.next_deadline(), process.restarts) == ([], None, 1)
    assert world.supervision.unready() == {"node.q.r0"}
    world.want(ALL)
    assert world.drain() == ["start node.q.r0"]


def test_one_that_is_held_may_be_wanted_no_longer() -> None:
    world = World()
    world.want(ALL, held=frozenset({"node.q.r0"}))
    world.exits("node.q.r0")
    world.want((KAFKA, REDIS, MONITOR), held=frozenset({"node.q.r0"}))
    assert "node.q.r0" not in world.supervision.processes


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_whatever_happens_the_wanted_run_in_the_end_and_the_unwanted_do_not(data: st.DataObject) -> None:
    """Any order of wishes, exits, answers and time; then processes end when asked to, and answer."""
    versions = st.sampled_from(["1", "2"])
    wishes = st.lists(
        st.tuples(st.sampled_from(ALL), versions, versions).map(
            lambda drawn: replace(drawn[0], revision=drawn[1], turn=drawn[2] if drawn[0].turn else "")
        ),
        unique_by=lambda child: child.name,
    )
    world = World(data.draw(wishes), ready=False)
    for _ in range(data.draw(st.integers(0, 12))):
        kind = data.draw(st.sampled_from(["want", "exit", "answer", "time"]))
        if kind == "want":
            world.want(data.draw(wishes), data.draw(st.frozensets(st.sampled_from([child.name for child in ALL]))))
        elif kind == "time":
            world.pass_time(data.draw(st.integers(0, 40_000_000)))
        elif world.running:
            name = data.draw(st.sampled_from(sorted(world.running)))
            world.exits(name) if kind == "exit" else world.answer(name)
    wanted = data.draw(wishes)
    world.want(wanted)
    for _ in range(100):
        processes = world.supervision.processes
        ending = [name for name, process in processes.items() if process.phase in (ProcessPhase.STOPPING, ProcessPhase.KILLED)]
        for name in ending:
            world.exits(name)
        world.pass_time(BACKOFF_LAST_US)
        world.answer(*[name for name in world.running if world.supervision.processes[name].phase is ProcessPhase.RUNNING])
    assert world.running == {child.name: child for child in wanted}
    assert not world.supervision.unready()


def test_a_process_that_goes_to_another_version_by_itself_is_not_restarted_for_it():
    supervision = Supervision()
    before, after = (
        Child("egress.q.a", "egress", "q", ("run",), revision=revision, turn=revision, version=version)
        for revision, version in (("one", 1), ("two", 2))
    )
    supervision.handle(ProcessTargets((before,)), 0)
    supervision.handle(ReadinessReport("egress.q.a", True), 1)
    assert supervision.handle(ProcessTargets((after,)), 2) == []
    assert supervision.processes["egress.q.a"].child == after and not supervision.unready()


def test_the_end_of_a_process_that_is_not_known_is_no_matter() -> None:
    """A supervisor that takes over may hear how roles end that the one before it had started."""
    world = World()
    assert world.tell(ProcessExit("egress.gone.a")) == []
    assert {child.name for child in ALL} == set(world.running)
