"""What a source says of itself before it reads, while it cannot, and where its spool cannot be opened."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.errors import KafkaConnectionError
from pydantic import ValidationError

from boreal.model.frames import Frame, LogId
from boreal.query.plan import tick_after
from boreal.query.spec import load_query
from deployment.query_record import QueryRecord
from deployment.status_fields import PROCESS, SOURCE
from intake.place import SourcePlace
from logs.source_restart import SourceRestart
from services.hosting.connections import Connections
from services.hosting.process import StopSignal, now_us
from services.kafka.gathering import GatherPace
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.source.incarnation import FRAME_ROWS, SourceIncarnation, SourceInputs
from services.source.letters import Letters
from services.source.options import SourceOptions
from services.source.post_box import PostBox
from services.source.source import SourceProcess
from services.source.user_topic import UserTopic
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
Make = Callable[..., SourceIncarnation]
LETTERS = cast(Letters, SimpleNamespace(refuse=None, per_minute=lambda: 0))


class Topic:
    """A user's topic that answers each look with the next of these, the last one again and again."""

    name = "in"
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
def process(tmp_path: Path) -> Callable[..., SourceProcess]:
    """A source's process without connections, with options."""

    def make(version: int = 1, **options: Any) -> SourceProcess:
        settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")}, data=tmp_path)
        connections = SimpleNamespace(settings=settings, clusters={"a": None})
        record = QueryRecord(QUERY.name, QUERY.dump(), 1, version=version).run(version)
        return SourceProcess(cast(Connections, connections), SourceOptions(**options), "source.q.s", record, "s")

    return make


def gathering(degree: int) -> GatherPace:
    """Of a process that is loaded to a degree, and has many sources with rows."""
    return GatherPace((-1, -1), lambda: degree)


@pytest.fixture
def make_source(process: Callable[..., SourceProcess], monkeypatch: pytest.MonkeyPatch) -> Make:
    """An incarnation without connections, about to begin. It says how it is each time that it waits."""

    def make(topic: Topic, said: list[tuple[bool, str]]) -> SourceIncarnation:
        of = process()
        intake, letters = of.make_intake(FIRST), LETTERS
        events = StopSignal(), threading.Event()
        inputs = SourceInputs(cast(UserTopic, topic))
        source = SourceIncarnation(of.layout.plan, intake, inputs, {}, letters, *events)
        source.on_change = lambda: said.append(how(source))
        monkeypatch.setattr(source, "_wait", lambda seconds: said.append(how(source)))
        return source

    return make


FIRST = SourceRestart(0, SourcePlace({"s/0": 0}), {}, {"s/0": 0}, BEGINNING)


def how(source: SourceIncarnation) -> tuple[bool, str]:
    status = {**source.status(), "readers": [], "holds": []}
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


def test_a_spool_is_opened_where_rows_may_be_posted_or_are_left(process: Callable[..., SourceProcess]) -> None:
    silent = process()
    assert silent.open_box(LETTERS) is None and not silent.spool_directory.exists()
    box = process(http_port=1).open_box(LETTERS)
    assert box is not None
    box.close()
    left = silent.open_box(LETTERS)
    assert left is not None
    left.close()


def test_the_sources_of_two_versions_of_a_query_do_not_write_the_same_spool(process: Callable[..., SourceProcess]) -> None:
    directories = [process(version).spool_directory for version in (1, 2)]
    assert [directory.parent.name for directory in directories] == ["q", "q-2"]


def test_without_a_token_nothing_can_be_posted_and_the_log_says_so(
    process: Callable[..., SourceProcess], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "boreal.source")
    box = cast(PostBox, SimpleNamespace())
    assert process().make_web_app(box) is None and not caplog.records
    assert process(http_port=1, http_token="0123456789abcdef").make_web_app(box) is not None and not caplog.records
    assert process(http_port=1).make_web_app(box) is None
    assert ["BOREAL_HTTP_TOKEN is not set" in record.getMessage() for record in caplog.records] == [True]
    with pytest.raises(ValidationError, match="at least 16"):
        process(http_port=1, http_token="short")


def test_rows_are_posted_under_the_name_of_the_query_whatever_version_takes_them(process: Callable[..., SourceProcess]) -> None:
    for version in (1, 2):
        app = process(version, http_port=1, http_token="0123456789abcdef").make_web_app(cast(PostBox, SimpleNamespace()))
        assert app is not None and "/{query}/s/tuples" in {cast(Any, route).path for route in app.routes}
        assert list(process(version).readers.names) == ["q"]


def test_a_spool_that_cannot_be_opened_is_told_of_and_the_source_goes_on(
    process: Callable[..., SourceProcess], make_source: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "boreal.source")
    of = process(http_port=1)
    of.spool_directory.mkdir(parents=True)
    (of.spool_directory / f"{0:020d}.log").write_bytes(b"no segment" * 100)
    assert of.open_box(LETTERS) is None
    [told] = [record.getMessage() for record in caplog.records if record.name == "boreal.source"]
    assert str(of.spool_directory) in told and "repair the disk, or move the directory away" in told
    said: list[tuple[bool, str]] = []
    source = make_source(Topic([0]), said)
    source._begin(FIRST)
    assert said == [(True, "idle")] and source.status()["spooled_bytes"] == 0


@pytest.mark.parametrize(
    ("records", "is_calm", "degree", "intervals"),
    [
        (9, False, 1, 2),
        (9, False, 2, 3),
        (9, False, 0, 0),
        (9, True, 1, 2),
        (0, False, 1, 2),
        (0, True, 2, 3),
        (FRAME_ROWS, False, 1, 0),
    ],
)
def test_after_a_batch_records_gather_as_long_as_the_process_is_loaded(
    make_source: Make, monkeypatch: pytest.MonkeyPatch, records: int, is_calm: bool, degree: int, intervals: int
) -> None:
    """Also if none came, so that it does not write more boundaries then. Not where more than a batch waits."""
    topic = Topic([0])
    monkeypatch.setattr(topic, "is_calm", is_calm, raising=False)
    source = make_source(topic, [])
    monkeypatch.setattr(source, "_gathering", gathering(degree))
    assert source._rest_after(records) == intervals * source.plan.boundary_interval_us
    source.plan = replace(source.plan, boundary_interval_us=source.plan.delay_threshold_us)
    assert source._rest_after(records) == intervals * source.plan.delay_threshold_us // 10, "X leaves no time for more"


def make_loaded(
    make_source: Make, monkeypatch: pytest.MonkeyPatch, said: list[int], found: dict[int, range], is_calm: bool
) -> SourceIncarnation:
    """A source of a process that is loaded to degree 2. said: what its boundaries say. found: by each poll of its topic, which
    is calm or not."""
    topic = Topic([0])
    monkeypatch.setattr(topic, "is_calm", is_calm, raising=False)
    monkeypatch.setattr(topic, "lag", lambda: 0, raising=False)
    source = make_source(topic, [])
    monkeypatch.setattr(source, "_gathering", gathering(2))
    monkeypatch.setattr(source, "_poll", lambda: found)
    for unused in ("_log_batch", "_look_for_evidence", "_look_for_partitions"):
        monkeypatch.setattr(source, unused, lambda *_: None)

    def heartbeat(now: int, pause_us: int) -> list[tuple[LogId, Frame]]:
        said.append(pause_us)
        return []

    monkeypatch.setattr(source.intake, "heartbeat", heartbeat)
    return source


def test_a_loaded_source_tells_its_readers_how_long_it_gathers_and_rests_until_the_next_tick_of_that(
    make_source: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []
    source = make_loaded(make_source, monkeypatch, said, {0: range(9)}, is_calm=False)
    before = now_us()
    source._turn()
    gathers_us = 3 * source.plan.boundary_interval_us
    assert said == [gathers_us]
    assert source._rest_until_us % gathers_us == 0 and before < source._rest_until_us <= now_us() + gathers_us
    source._turn()
    assert 0 < source._rested_us <= gathers_us, "X counts the time that records have gathered"


def test_a_loaded_source_without_records_writes_boundaries_as_seldom_as_one_with_rows(
    make_source: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []
    source = make_loaded(make_source, monkeypatch, said, {}, is_calm=True)
    source.plan = replace(source.plan, calm_pause_us=0)
    source._turn()
    gathers_us = 3 * source.plan.boundary_interval_us
    assert said == [gathers_us]
    assert source._next_boundary_us == tick_after(source._last_boundary_us, gathers_us)
    assert source._rest_until_us == 0, "its topic's reader waits for records"
    source._turn()
    assert said == [gathers_us], "the next boundary is not due yet"
