"""Sources of one process, as in a worker, on a real broker: while their topics are calm they share a client, and when that ends
they lose and repeat nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from deployment.query_record import QueryRecord
from services.hosting.connections import Connections
from services.hosting.process import StopSignal
from services.kafka.topics import TopicSpec, delete, ensure
from services.source import source as source_module
from services.source.options import SourceOptions
from services.source.source import SourceProcess
from services.source.user_topic import UserTopic
from services.stack.servers import KafkaServer
from tests.stack.test_source import Bench
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("servers")

WITHIN_S = 60.0


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> list[UserTopic]:
    """The topics of all sources that have begun here."""
    begun: list[UserTopic] = []

    def begin(*arguments: object, **options: object) -> UserTopic:
        begun.append(UserTopic(*arguments, **options))  # type: ignore[arg-type]
        return begun[-1]

    monkeypatch.setattr(source_module, "UserTopic", begin)
    return begun


@pytest.fixture
def benches(kafka: KafkaServer, fresh_name: str, tmp_path: Path) -> Iterator[list[Bench]]:
    """Two queries on one topic, and one on another."""
    first = Bench(kafka.bootstrap, fresh_name, tmp_path, {}, "auto")
    second = Bench(kafka.bootstrap, f"{fresh_name}_too", tmp_path, {"topic": first.topic}, "auto")
    other = Bench(kafka.bootstrap, f"{fresh_name}_other", tmp_path, {}, "auto")
    yield [first, second, other]
    for bench in (first, second, other):
        bench.close()


@contextmanager
def running(benches: list[Bench]) -> Iterator[Connections]:
    """The sources of all these queries, in threads of this process."""
    stopping = StopSignal()
    connections = Connections(benches[0].settings, "test")
    connections.topics_of("a").calm.calm_s = 0.3
    threads = [threading.Thread(target=serve, args=(connections, bench, stopping)) for bench in benches]
    with ExitStack() as stack:
        stack.enter_context(closing(connections))
        for thread in threads:
            stack.callback(thread.join)
            thread.start()
        stack.callback(stopping.set)
        yield connections


def serve(connections: Connections, bench: Bench, stopping: StopSignal) -> None:
    record = QueryRecord(bench.name, bench.query.dump(), 1)
    SourceProcess(connections, SourceOptions(), f"source.{bench.name}.s", record, "s").serve(stopping)


def wait_rows(bench: Bench, count: int) -> None:
    wait_until(lambda: len(bench.rows()) >= count, f"{count} rows", WITHIN_S)


def wait_shared(topics: list[UserTopic]) -> None:
    wait_until(lambda: len(topics) == 3 and all(topic._reader.is_shared for topic in topics), "all topics are shared", WITHIN_S)


def test_sources_share_a_client_while_rows_are_few_and_each_row_comes_once(
    topics: list[UserTopic], benches: list[Bench]
) -> None:
    first, second, other = benches
    with running(benches) as connections:
        first.send(0, 5)
        other.send(0, 3)
        wait_shared(topics)
        assert len(connections.topics_of("a").calm._members) == 4, "each partition of both topics is read once"
        first.send(5, 1)
        first.send(6, 1, partition=1)
        for bench in (first, second):
            wait_rows(bench, 7)
        assert all(topic._reader.is_shared for topic in topics)
        for partition in (0, 1):
            first.send(100 + 2_000 * partition, 2_000, partition)
        other.send(3, 1)
        for bench in (first, second):
            wait_rows(bench, 4_007)
            assert sorted(bench.rows()) == [*range(7), *range(100, 4_100)]
        wait_rows(other, 4)
        wait_shared(topics)
        first.send(5_000, 3)
        for bench in (first, second):
            wait_rows(bench, 4_010)
            assert sorted(bench.rows())[-3:] == [5_000, 5_001, 5_002] and len(bench.rows()) == 4_010
        assert other.rows() == [0, 1, 2, 3]


def test_a_topic_that_is_deleted_disturbs_no_other_and_is_read_again_when_it_is_back(
    topics: list[UserTopic], benches: list[Bench]
) -> None:
    first, second, other = benches
    with running(benches):
        first.send(0, 50)
        other.send(0, 3)
        wait_shared(topics)
        delete(first.home, [first.topic])
        for n in range(3, 13):
            other.send(n, 1)
            began = time.monotonic()
            wait_rows(other, n + 1)
            assert time.monotonic() - began < 5, "rows wait for a topic that is not there"
        ensure(first.home, [TopicSpec(first.topic, 2)])
        first.send(100, 3)
        for bench in (first, second):
            wait_rows(bench, 53)
            assert bench.rows() == [*range(50), 100, 101, 102]
        assert other.rows() == [*range(13)]
