"""A stack behind the API, without its servers. Reads with thousands of queries: what does not change is neither sorted nor
planned again. Replays of dead letters are kept until they are recorded. Faults are
ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api import said_replays, stack
from api.installation import ConflictError, ForbiddenError, NotFoundError, UnavailableError
from api.models import EXAMPLE_SPEC
from boreal.model.errors import UserError
from deployment import watched_query
from deployment.layout import Layout, layout_of
from deployment.query_record import QueryRecord
from formats.dead_letter import LetterChoice, ReplayOutcome
from services.kafka.letter_topic import OvertakenError
from services.kafka.settings import KafkaSettings, ServiceSettings


class Followed:
    """What a follower of a topic knows."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self.is_current = threading.Event()
        self.is_current.set()

    def newest(self) -> dict[str, dict[str, Any]]:
        return dict(self.known)

    def close(self) -> None: ...


class Registry:
    """A topic of queries. take: what the installation does with each record."""

    take: Callable[[str, QueryRecord | None], None]

    def __init__(self, home: object) -> None: ...

    def watch(self, take: Callable[[str, QueryRecord | None], None]) -> Followed:
        Registry.take = staticmethod(take)
        return Followed()


class NoOperations:
    home, clusters = None, {}  # type: ignore[var-annotated]

    def __init__(self, settings: ServiceSettings) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def statuses() -> Followed:
    return Followed()


def settings(data: Path) -> ServiceSettings:
    return ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")}, data=data)


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch, statuses: Followed, tmp_path: Path) -> stack.StackInstallation:
    monkeypatch.setattr(stack, "QueryRegistry", Registry)
    monkeypatch.setattr(stack, "Operations", NoOperations)
    monkeypatch.setattr(NoOperations, "follow_statuses", lambda self: statuses, raising=False)
    monkeypatch.setattr(stack, "TopicFollower", lambda *what, **how: Followed())
    monkeypatch.setattr(stack, "QueryReports", lambda home: Followed())
    made = stack.StackInstallation(settings(tmp_path))
    for name in ("b", "c", "a"):
        Registry.take(name, record(name))
    return made


def record(name: str) -> QueryRecord:
    return QueryRecord(name, {**EXAMPLE_SPEC, "name": name}, 1)


def test_queries_are_sorted_again_only_after_a_change(installation: stack.StackInstallation) -> None:
    first = installation.queries()
    assert list(first) == ["a", "b", "c"] and installation.queries() is first
    Registry.take("b", None)
    assert list(installation.queries()) == ["a", "c"] and list(first) == ["a", "b", "c"], "what was read stays as it was"


def test_a_query_that_the_monitor_does_not_know_yet_is_planned_once(
    installation: stack.StackInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[str] = []
    make = layout_of

    def counted(record: QueryRecord, sites: tuple[str, ...]) -> Layout:
        planned.append(record.name)
        return make(record, sites)

    monkeypatch.setattr(watched_query, "layout_of", counted)
    for _ in range(3):
        found = installation.statuses("abcd")
        assert {name: status["state"] for name, status in found.items()} == dict.fromkeys("abc", "STARTING")
    assert planned == ["a", "b", "c"]
    Registry.take("b", replace(record("b"), revision=2, paused=True))
    assert installation.status("b")["state"] == "PAUSED" and planned == ["a", "b", "c", "b"]


def test_the_instances_of_a_query_are_those_of_its_replicas(installation: stack.StackInstallation, statuses: Followed) -> None:
    said = {"fragment": "main", "shard": 0, "state": "STABLE", "inputs": []}
    now_ms = time.time() * 1_000
    for name, at_ms in {"a.r0": now_ms, "a.r1": now_ms - 60_000, "a.r2": now_ms, "b.r0": now_ms}.items():
        entry = {**said, "replica": name.partition(".")[2]}
        statuses.known[f"node.{name}"] = {"at_ms": at_ms, "instances": [entry]}
    assert [entry["replica"] for entry in installation.instances("a")] == ["r0"], "r1 is silent, and r2 of an earlier revision"


def test_a_replay_is_kept_before_it_is_answered_and_told_after_a_restart(
    installation: stack.StackInstallation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    overtaken = OvertakenError("NAME", "a", "was overtaken", "ask again", 2)
    outcomes: Iterator[ReplayOutcome | OvertakenError] = iter([ReplayOutcome(3, {}), ReplayOutcome(0, {}), overtaken])

    def replay(self: NoOperations, *asked: object) -> ReplayOutcome:
        if isinstance(outcome := next(outcomes), OvertakenError):
            raise outcome
        return outcome

    monkeypatch.setattr(NoOperations, "replay_letters", replay, raising=False)
    for _ in range(2):
        installation.replay_letters("a", LetterChoice("jfk"), 9, "ours")
    with pytest.raises(UnavailableError, match="was overtaken"):
        installation.replay_letters("a", LetterChoice(), 9, "ours")
    restarted = stack.StackInstallation(settings(tmp_path))
    assert [(told["query"], told["facts"]["replayed"], told["by"]) for told in restarted.replays()] == [
        ("a", 3, "ours"), ("a", 2, "ours"),
    ]  # fmt: skip
    monkeypatch.setattr(said_replays, "SAID_FOR_MS", 0)
    assert restarted.replays() == []


def test_heal_ends_what_was_done_to_a_stream_or_a_replica(
    installation: stack.StackInstallation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[tuple[str, str]]] = []
    monkeypatch.setattr(stack, "request_heal", lambda data, healed: asked.append(healed))
    with pytest.raises(ForbiddenError):
        installation.fault("heal a.jfk")
    monkeypatch.setattr(installation, "_faults", tmp_path)
    stream, replica = installation.fault("heal a.jfk"), installation.fault("heal  a.main.r1")
    assert (stream.fault, stream.targets, stream.ends_at_ms) == ("heal a.jfk", ("source.a.jfk",), None)
    assert replica.targets == ("node.a.r1",)
    assert asked == [[("source.a.jfk", ""), ("node.a.r0", "jfk"), ("node.a.r1", "jfk")], [("node.a.r1", "")]]
    with pytest.raises(NotFoundError, match="neither a stream nor a replica"):
        installation.fault("heal a.sfo")
    with pytest.raises(ConflictError, match=r"heal a\.jfk; heal b\.jfk; heal c\.jfk"):
        installation.fault("heal jfk")
    with pytest.raises(UserError, match="begins with one of"):
        installation.fault("heal a.jfk for 5s")
    assert len(asked) == 2
