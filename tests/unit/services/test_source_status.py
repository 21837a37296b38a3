"""What a source says of itself before it reads, while it cannot, and where its spool cannot be opened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.errors import KafkaConnectionError

from boreal.query.spec import load_query
from deployment.status_fields import PROCESS, SOURCE
from intake.place import SourcePlace
from logs.source_restart import SourceRestart
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.source import source as source_module
from services.source.options import SourceOptions
from services.source.post import PostBox
from services.source.source import Source
from services.source.topic import UserTopic
from sunion.tape import BEGINNING
from tests.described import assert_described

QUERY = load_query(
    {
        "name": "q",
        "streams": {"s": {"topic": "in", "time": "at", "schema": {"n": "int"}}},
        "operators": {"all": {"filter": "s", "where": "n > 0"}},
        "output": "all",
        "delay_threshold": "3s",
        "replicas": 1,
        "engine": "native",
    }
)
Make = Callable[..., Source]


class Topic:
    """A user's topic that answers each look with the next of these, the last one again and again."""

    lost_records = 0

    def __init__(self, *answers: Exception | list[int]) -> None:
        self._answers = list(answers)
        self.assigned: list[int] = []

    def partitions(self) -> list[int]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def begin(self, partitions: list[int], place: SourcePlace) -> dict[int, int]:
        self.assigned = partitions
        return {}


@pytest.fixture
def make_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A source without connections, with options, about to begin. It says how it is each time that it waits."""
    registry = SimpleNamespace(find=lambda name: SimpleNamespace(query=QUERY))
    monkeypatch.setattr(source_module, "make_clusters", lambda settings, name: {"a": None})
    monkeypatch.setattr(source_module, "QueryRegistry", lambda cluster: registry)

    def make(topic: Topic, said: list[tuple[bool, str]], **options: Any) -> Source:
        settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")}, data=tmp_path)
        source = Source(settings, SourceOptions(**options), "source.q.s", "q", "s")
        source.logs = {}
        source.topic = cast(UserTopic, topic)
        source.box = None
        source.status = cast(Any, SimpleNamespace(now=lambda: said.append(how(source))))
        source.intake = source._make_intake(FIRST)
        monkeypatch.setattr(source, "_wait", lambda seconds: said.append(how(source)))
        return source

    return make


FIRST = SourceRestart(0, SourcePlace({"s/0": 0}), {}, {"s/0": 0}, BEGINNING)


def how(source: Source) -> tuple[bool, str]:
    status = source._status()
    assert_described(status, {**SOURCE, "ready": PROCESS["ready"]})
    return status["ready"], status["state"]


def test_it_is_ready_once_it_has_begun_and_while_its_topic_is_there(make_source: Make) -> None:
    said: list[tuple[bool, str]] = []
    source = make_source(Topic(KafkaConnectionError("away"), [], [0], [], KafkaConnectionError("away"), [0]), said)
    assert how(source) == (False, "failed")
    source._begin(FIRST)
    assert said == [(False, "failed")] * 2 + [(True, "idle")]
    source._look_for_partitions()
    assert how(source) == (False, "failed")
    source._look_for_partitions()
    assert said[3:] == [(False, "failed")] and how(source) == (True, "idle")


def test_it_is_not_ready_while_what_was_posted_cannot_be_read(make_source: Make) -> None:
    source = make_source(Topic([0]), [])
    source._begin(FIRST)
    source.box = cast(PostBox, SimpleNamespace(failure="damaged", is_empty=False, is_full=False, refused=0, spooled_bytes=7))
    assert how(source) == (False, "failed")
    source.box.failure = None
    assert how(source) == (True, "spooling")


def test_a_spool_is_opened_where_rows_may_be_posted_or_are_left(make_source: Make, tmp_path: Path) -> None:
    silent = make_source(Topic([0]), [])
    assert silent._make_box() is None and not silent.spool_directory.exists()
    box = make_source(Topic([0]), [], http_port=1)._make_box()
    assert box is not None
    box.close()
    left = silent._make_box()
    assert left is not None
    left.close()


def test_a_spool_that_cannot_be_opened_is_told_of_and_the_source_goes_on(
    make_source: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "boreal.source")
    said: list[tuple[bool, str]] = []
    source = make_source(Topic([0]), said, http_port=1)
    source.spool_directory.mkdir(parents=True)
    (source.spool_directory / f"{0:020d}.log").write_bytes(b"no segment" * 100)
    source.box = source._make_box()
    assert source.box is None
    [told] = [record.getMessage() for record in caplog.records if record.name == "boreal.source"]
    assert str(source.spool_directory) in told and "mend the disk, or move the directory away" in told
    source._begin(FIRST)
    assert said == [(True, "idle")] and source._status()["spooled_bytes"] == 0
