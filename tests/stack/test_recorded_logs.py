"""Logs in Kafka read from a time back, piece by piece: nothing but the frames of living incarnations, each once."""

from __future__ import annotations

from contextlib import closing
from itertools import accumulate, chain

import pytest
from kafka import TopicPartition

from boreal.model.frames import Boundary, Frame, Start
from services.stack.servers import KafkaServer
from services.storage import recorded_logs
from services.storage.recorded_logs import RecordedLogs
from tests.stack.logs import LOG, Topic, boundary, cluster_of, data, in_memory, start, troubled_history

pytestmark = pytest.mark.usefixtures("servers")

FAR = 1 << 60


@pytest.fixture
def topic(kafka: KafkaServer, fresh_name: str) -> Topic:
    return Topic(cluster_of(kafka), fresh_name)


def pieces(topic: Topic, until: int) -> list[list[Frame]]:
    with RecordedLogs({"a": topic.cluster}, topic) as logs:
        return list(logs.newest_first(until, LOG))


def living(frames: list[Frame]) -> list[Frame]:
    """Those of which no later incarnation had begun when they were written; each START once."""
    found: list[Frame] = []
    newest = 0
    for frame in frames:
        life = frame.origin.incarnation
        if life > newest or (life == newest and not isinstance(frame, Start)):
            found.append(frame)
        newest = max(newest, life)
    return found


def in_order(found: list[list[Frame]]) -> list[Frame]:
    return list(chain.from_iterable(reversed(found)))


@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_all_pieces_together_are_the_log_without_dead_frames(
    topic: Topic, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_logs, "_FIRST_PIECE_FRAMES", size)
    monkeypatch.setattr(recorded_logs, "PIECE_FRAMES", size)
    frames: list[Frame] = []
    for part in troubled_history():
        topic.put_frames(part, in_memory(frames).next_stable_id)
        frames += part
    found = pieces(topic, FAR)
    assert all(len(piece) <= size for piece in found)
    assert in_order(found) == living(frames) != frames


def test_what_came_long_after_the_time_is_not_read(topic: Topic) -> None:
    second = 1_000_000
    frames: list[Frame] = [start(1)]
    for n in range(200):
        frames += [data(5 * n, 5, at=n * second), boundary(5 * n + 5, sent=n * second)]
    topic.put_frames(frames)
    found = in_order(pieces(topic, 50 * second))
    assert found[0] == start(1) and found == frames[: len(found)]
    last = [frame.sent for frame in found if isinstance(frame, Boundary)][-1]
    assert 50 * second <= last <= 60 * second
    assert in_order(pieces(topic, FAR)) == frames


def test_a_log_that_is_trimmed_meanwhile_gives_what_is_left(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_logs, "_FIRST_PIECE_FRAMES", 4)
    monkeypatch.setattr(recorded_logs, "PIECE_FRAMES", 4)
    frames: list[Frame] = [start(1), *(data(n, 1) for n in range(19))]
    topic.put_frames(frames)
    with RecordedLogs({"a": topic.cluster}, topic) as logs:
        reading = logs.newest_first(FAR, LOG)
        assert next(reading) == frames[16:]
        with closing(topic.cluster.make_admin()) as admin:
            admin.delete_records({TopicPartition(topic.name, 0): 10})
        assert list(accumulate(len(piece) for piece in reading)) == [4, 6]
