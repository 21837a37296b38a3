"""Dead letters on a real broker: shown, and put back once, whatever else happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition

from deployment.change_preview import refuse_other_structure
from deployment.query_record import QueryRecord
from formats.dead_letter import (
    BEYOND_LIMIT,
    NO_RECORD,
    NO_ROW,
    PUT_BACK_BEFORE,
    DeadLetterRecord,
    LetterChoice,
    ReplayOutcome,
)
from intake.intake import BOUNDARY_HEADER, POSTED_HEADER, REPLAYED_HEADER
from services.kafka import letter_topic
from services.kafka.letter_topic import LetterTopic, OvertakenError
from services.kafka.queries import QueryRegistry
from services.kafka.topics import dead_letter_topic
from services.stack.servers import KafkaServer
from tests.stack.lives import records_of
from tests.stack.test_source import Bench

ALL = LetterChoice()


@pytest.fixture
def bench(kafka: KafkaServer, fresh_name: str, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(kafka.bootstrap, fresh_name, tmp_path, {"ahead": "5s"}, "kafka-python")
    yield made
    made.close()


@pytest.fixture
def refuse(bench: Bench) -> Callable[..., None]:
    """Write a record to partition 0 of the user's topic, and its letter."""

    def write(value: bytes, reason: str = "late", **more: Any) -> None:
        headers = more.pop("headers", ())
        sent = bench.producer.send(bench.topic, value, key=b"k", partition=0, headers=list(headers)).get(timeout=10)
        fields = {"source": "s", "topic": bench.topic, "offset": sent.offset, **more}
        letter = DeadLetterRecord(partition=0, reason=reason, record=value.decode(), **fields)
        bench.producer.send(dead_letter_topic(bench.name), letter.to_json(), key=b"s", partition=0).get(timeout=10)

    return write


def replay(bench: Bench, choice: LetterChoice = ALL, limit: int = 1_000) -> ReplayOutcome:
    return LetterTopic(bench.home, bench.name).replay(choice, {"s": bench.topic}, limit, "ops")


def put_back(bench: Bench) -> list[tuple[bytes, dict[str, bytes]]]:
    """Value and headers of the records that were put back, with their letters, as a committed reader sees them."""
    found = records_of(bench.home, bench.topic, read_committed=True)
    return [(record.value, dict(record.headers)) for record in found if REPLAYED_HEADER in dict(record.headers)]


def test_a_row_that_was_ahead_counts_once_after_its_letter_was_put_back_twice(bench: Bench) -> None:
    bench.start()
    bench.send(0, 10)
    bench.wait_rows(10)
    ahead = '{"at": 4102444800000, "user": "ahead", "n": 77}'  # in 2100
    broken = '{"at": 1000011, "user": "u", "n": "many"}'
    for text in (ahead, broken):
        bench.send_text(text.encode())
    bench.wait(lambda: bench.status().get("dlq") == 2, "dead letters")
    assert bench.status()["dlq_per_minute"] == 2 and "'many' is not an int" in bench.status()["last_refusal"]
    first, second = LetterTopic(bench.home, bench.name).newest(ALL, 9).letters
    assert (first.letter.record, second.letter.record) == (broken, ahead) and not (first.replayed or second.replayed)
    assert first.at_ms >= second.at_ms > 1.6e12 and first.id == "a:1"

    assert replay(bench) == ReplayOutcome(2, {})
    bench.wait(lambda: bench.status().get("dlq") == 4, "both are refused again")
    again = replay(bench, LetterChoice(since_ms=second.at_ms), limit=0)
    assert again == ReplayOutcome(0, {PUT_BACK_BEFORE: 2, BEYOND_LIMIT: 2})
    listed = LetterTopic(bench.home, bench.name).newest(ALL, 9).letters
    assert [each.replayed for each in listed] == [False, False, True, True]


def test_a_late_row_counts_once_the_stream_clamps_and_its_letter_is_put_back(bench: Bench) -> None:
    first = bench.start()
    bench.send(0, 10)
    bench.send_text(b'{"at": 1, "user": "late", "n": 77}')
    bench.wait(lambda: bench.status().get("dlq") == 1, "the dead letter")
    streams = bench.query.dump()["streams"]
    clamps = bench.query.changed(streams={"s": {**streams["s"], "late": "clamp"}})
    refuse_other_structure(QueryRecord(bench.name, bench.query.dump(), 1), clamps)
    QueryRegistry(bench.home).put(QueryRecord(bench.name, clamps.dump(), 2))
    first.terminate()
    first.wait(60)
    bench.start()
    for outcome in (ReplayOutcome(1, {}), ReplayOutcome(0, {PUT_BACK_BEFORE: 1})):
        assert replay(bench, LetterChoice("s", "late")) == outcome
    bench.wait_rows(11)
    bench.wait(lambda: bench.status().get("clamped") == 1, "status")
    assert sorted(bench.rows()) == [*range(10), 77] and len(bench.letters()) == 2, "a letter, and the note"


def test_a_copy_for_another_query_is_no_row_of_this_one(bench: Bench) -> None:
    for query in ("other", bench.name):
        text = json.dumps({"at": 1_000_000, "user": "u", "n": len(query)})
        bench.send_text(text.encode(), headers=((REPLAYED_HEADER, f"{query}/s/0".encode()),))
    bench.start()
    bench.wait_rows(1)
    assert bench.rows() == [len(bench.name)] and not bench.letters()


def test_records_go_back_as_they_were_and_what_cannot_is_counted(bench: Bench, refuse: Callable[..., None]) -> None:
    refuse(b'{"n": 1}', headers=[("mine", b"1"), (POSTED_HEADER, b"12")])
    refuse(b'{"n": 2}', reason=f"header {BOUNDARY_HEADER}: 'soon' is neither a time nor 'end'")
    refuse(b'{"n": 3}', topic="another")
    refuse(b'{"n": 4}', offset=-1)
    refuse(b"", offset=-1)
    refuse(b'{"n": 6}', offset=0)  # where another record is: the topic was made anew
    refuse(b'{"n": 7}', source="t")
    assert replay(bench, limit=2) == ReplayOutcome(2, {NO_ROW: 3, BEYOND_LIMIT: 2})
    assert replay(bench) == ReplayOutcome(1, {NO_ROW: 3, PUT_BACK_BEFORE: 2, NO_RECORD: 1})
    [(one, headers), (four, _), (six, _)] = put_back(bench)
    assert (one, four, six) == (b'{"n": 1}', b'{"n": 4}', b'{"n": 6}')
    stamps = [record.timestamp for record in records_of(bench.home, bench.topic) if record.value == one]
    assert len(stamps) == 2 and len(set(stamps)) == 1
    assert headers == {"mine": b"1", REPLAYED_HEADER: f"{bench.name}/s/0".encode()}


def test_what_the_topic_has_deleted_is_put_back_from_the_letter(bench: Bench, refuse: Callable[..., None]) -> None:
    refuse(b'{"n": 1}')
    with closing(bench.home.make_admin()) as admin:
        admin.delete_records({TopicPartition(bench.topic, 0): 1})
    assert replay(bench) == ReplayOutcome(1, {})
    assert [value for value, _ in put_back(bench)] == [b'{"n": 1}']


def test_a_replay_that_is_overtaken_goes_on_and_puts_nothing_back_twice(
    bench: Bench, refuse: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another begins after this one has read which letters are left, and before it commits."""
    for n in range(4):
        refuse(b'{"n": %d}' % n)
    monkeypatch.setattr(letter_topic, "BATCH", 2)
    put = LetterTopic._put_back
    outcomes: list[ReplayOutcome] = []
    has_begun: list[bool] = []

    def overtake(topic: LetterTopic, *arguments: Any) -> int:
        done = put(topic, *arguments)
        if not has_begun:
            has_begun.append(True)
            outcomes.append(replay(bench))
        return done

    monkeypatch.setattr(LetterTopic, "_put_back", overtake)
    assert replay(bench) == ReplayOutcome(2, {PUT_BACK_BEFORE: 2}), "two of its own, and the two of the other"
    assert outcomes == [ReplayOutcome(2, {PUT_BACK_BEFORE: 2})]
    assert [value for value, _ in put_back(bench)] == [b'{"n": %d}' % n for n in range(4)]


def test_a_replay_that_is_always_overtaken_says_what_it_has_put_back(
    bench: Bench, refuse: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def overtaken(topic: LetterTopic, choice: LetterChoice, topics: Any, limit: int, by: str) -> ReplayOutcome:
        attempts.append(limit)
        raise OvertakenError("NAME", bench.name, "was overtaken", "ask again", replayed=1)

    monkeypatch.setattr(LetterTopic, "_replay", overtaken)
    monkeypatch.setattr(letter_topic, "WAIT_S", 0)
    with pytest.raises(OvertakenError) as refused:
        LetterTopic(bench.home, bench.name).replay(ALL, {}, 9, "test")
    assert refused.value.replayed == letter_topic.ATTEMPTS and attempts == [9, 8, 7, 6, 5]


def test_what_was_not_committed_is_put_back_later(
    bench: Bench, refuse: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(b'{"n": 1}')

    class Killed(Exception):
        pass

    def die(*_: Any) -> bytes:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(letter_topic.ReplayNote, "to_json", die)  # the record is sent, and its note is not
        replay(bench)
    assert not put_back(bench)
    assert replay(bench) == ReplayOutcome(1, {}) and len(put_back(bench)) == 1


def test_the_newest_are_found_however_many_there_are(
    bench: Bench, refuse: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(7):
        refuse(b'{"n": %d}' % n, reason="odd" if n % 2 else "even")
    topic = LetterTopic(bench.home, bench.name)
    monkeypatch.setattr(letter_topic, "PIECE", 2)
    for limit in (1, 3, 9):
        found = [json.loads(each.letter.record)["n"] for each in topic.newest(LetterChoice(reason="odd"), limit).letters]
        assert found == [5, 3, 1][:limit]
    monkeypatch.setattr(letter_topic, "MOST_LOOKED_AT", 4)
    page = topic.newest(LetterChoice(reason="even"), 9)
    assert len(page.letters) == 2 and page.looked_back_to_ms is not None
    assert LetterTopic(bench.home, "no-such-query").newest(ALL, 9).letters == ()
