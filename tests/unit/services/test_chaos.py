"""Faults that are asked for by files, and undone in time."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, cast

import pytest

from embedded.faults import parse_fault_at_once
from services.stack import chaos
from services.stack.chaos import FaultDesk, FaultRefused, request_fault, request_heal
from services.stack.links import ProxyLink


class Link:
    """What a fault does to a link."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def cut(self) -> None:
        self.said.append("cut")

    def slow(self, delay_s: float) -> None:
        self.said.append(delay_s)

    def heal(self) -> None:
        self.said.append("heal")


class Machine:
    """A supervisor's desk, with its clock."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link, self.signals, self.now = Link(), list[tuple[str, signal.Signals]](), 100.0
        monkeypatch.setattr(chaos.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(chaos.time, "sleep", lambda seconds: self.turn(0.1))
        self.streams: list[str] = []
        self.desk = FaultDesk(data, self._links, lambda *sent: self.signals.append(sent))

    def _links(self, process: str, stream: str) -> list[Any]:
        self.streams.append(stream)
        return [self.link]

    def turn(self, seconds: float) -> None:
        self.now += seconds
        self.desk.turn()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_cut_is_healed_in_time(machine: Machine, tmp_path: Path) -> None:
    assert request_fault(tmp_path, parse_fault_at_once("cut jfk for 5s"), ["source.q.jfk"])
    assert machine.link.said == ["cut"]
    machine.turn(4.8)
    assert machine.link.said == ["cut"]
    machine.turn(0.3)
    assert machine.link.said == ["cut", "heal"]


def test_a_replica_may_be_cut_from_one_stream(machine: Machine, tmp_path: Path) -> None:
    request_fault(tmp_path, parse_fault_at_once("cut jfk to r1 for 5s"), ["node.q.r1"])
    request_fault(tmp_path, parse_fault_at_once("cut main.r1 for 1s"), ["node.q.r1"])
    assert machine.streams == ["jfk", ""]
    machine.turn(2)
    assert (machine.streams[2:], machine.link.said) == (["", "jfk"], ["cut", "cut", "heal", "cut"])
    machine.turn(4)
    assert (machine.streams[4:], machine.link.said[4:]) == (["jfk"], ["heal"])


def test_what_overlaps_stays_until_its_own_end(machine: Machine, tmp_path: Path) -> None:
    request_fault(tmp_path, parse_fault_at_once("cut jfk for 5s"), ["source.q.jfk"])
    request_fault(tmp_path, parse_fault_at_once("slow jfk by 500ms for 1s"), ["source.q.jfk"])
    machine.turn(2)
    assert machine.link.said == ["cut", 0.5, "heal", "cut"]
    machine.turn(5)
    assert machine.link.said[-1] == "heal"


def test_processes_are_frozen_and_killed_and_come_back(machine: Machine, tmp_path: Path) -> None:
    request_fault(tmp_path, parse_fault_at_once("freeze main.r0 for 1s"), ["node.q.r0"])
    request_fault(tmp_path, parse_fault_at_once("crash main.r1 for 1s"), ["node.q.r1"])
    assert machine.desk.held == {"node.q.r1"}
    machine.turn(2)
    assert not machine.desk.held
    assert machine.signals == [
        ("node.q.r0", signal.SIGSTOP), ("node.q.r1", signal.SIGKILL), ("node.q.r0", signal.SIGCONT),
    ]  # fmt: skip


def test_faults_are_ended_before_their_time_and_others_stay(machine: Machine, tmp_path: Path) -> None:
    id_ = request_fault(tmp_path, parse_fault_at_once("cut jfk for 60s"), ["source.q.jfk"], text="cut q.jfk for 60s")
    request_fault(tmp_path, parse_fault_at_once("cut jfk to r1 for 60s"), ["node.q.r1"])
    request_fault(tmp_path, parse_fault_at_once("freeze main.r1 for 60s"), ["node.q.r1"])
    request_fault(tmp_path, parse_fault_at_once("crash main.r0 for 60s"), ["node.q.r0"])
    request_heal(tmp_path, [("source.q.jfk", ""), ("node.q.r0", "jfk")])
    assert machine.link.said == ["cut", "cut", "heal"] and machine.desk.held == {"node.q.r0"}
    ended = {fault["id"]: fault["ended_ms"] for fault in machine.desk.report()}
    assert ended.pop(id_) is not None and set(ended.values()) == {None}
    request_heal(tmp_path, [("node.q.r1", "jfk")])
    assert machine.streams[-1] == "jfk" and (machine.link.said[3:], len(machine.signals)) == (["heal"], 2)
    request_heal(tmp_path, [("node.q.r0", ""), ("node.q.r1", "")])
    assert not machine.desk.held and machine.signals[2:] == [("node.q.r1", signal.SIGCONT)]
    request_heal(tmp_path, [("node.q.r0", "")])  # there is none any more


def test_a_fault_that_nobody_takes_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "TAKEN_WITHIN_S", 0.0)
    with pytest.raises(FaultRefused):
        request_fault(tmp_path, parse_fault_at_once("cut jfk for 5s"), ["source.q.jfk"])
    assert not list((tmp_path / "run" / "faults").iterdir())


def test_what_was_asked_of_an_earlier_supervisor_is_forgotten(tmp_path: Path) -> None:
    stale = tmp_path / "run" / "faults" / "old.json"
    stale.parent.mkdir(parents=True)
    stale.write_text(json.dumps({"kind": "cut", "processes": ["source.q.jfk"], "by_s": 0, "for_s": 5}))
    link = Link()
    FaultDesk(tmp_path, lambda process, stream: [cast(ProxyLink, link)], lambda *sent: None).turn()
    assert link.said == []
