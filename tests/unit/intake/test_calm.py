"""When a topic is calm, and what its source gets of it from a reader that reads it for others too."""

from __future__ import annotations

from dataclasses import dataclass

from intake.calm import (
    CALM_S,
    FEW_RECORDS,
    MANY_RECORDS,
    MOST_WAITING,
    MOST_WAITING_BYTES,
    Calmness,
    CalmPace,
    CalmPartitions,
)

CALM_US = round(CALM_S * 1_000_000)
PAUSE_US = 400_000
PATIENCE_US = 500_000


@dataclass(frozen=True)
class Record:
    offset: int
    value: bytes = b"x"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    key: bytes | None = None
    timestamp: int = 0


def records(first: int, stop: int) -> list[Record]:
    return [Record(offset) for offset in range(first, stop)]


def offsets(taken: dict[int, list[Record]]) -> dict[int, list[int]]:
    return {number: [record.offset for record in found] for number, found in taken.items()}


def test_a_topic_is_calm_after_a_while_with_few_records_and_busy_at_many() -> None:
    calmness = Calmness(0, CALM_US)
    calmness.note(FEW_RECORDS + 1, 10)
    calmness.note(0, CALM_US)
    assert not calmness.is_calm and not calmness.is_busy
    calmness.note(FEW_RECORDS, CALM_US + 1)
    assert not calmness.is_calm
    calmness.note(0, 2 * CALM_US)
    assert calmness.is_calm
    calmness.note(FEW_RECORDS + 1, 2 * CALM_US + 1)
    assert not calmness.is_calm and not calmness.is_busy, "it would not begin to be shared, but may stay so"
    calmness.note(MANY_RECORDS - FEW_RECORDS, 2 * CALM_US + 2)
    assert calmness.is_busy
    calmness.note(0, 3 * CALM_US)
    assert not calmness.is_busy


def test_each_record_comes_once_also_if_another_reader_needs_it_again() -> None:
    partitions: CalmPartitions[Record] = CalmPartitions({0: 5, 1: 0})
    assert partitions.put(0, 3, records(3, 8), 8, 8), "another reader of the topic is behind"
    assert offsets(partitions.take()) == {0: [5, 6, 7]}
    assert partitions.put(0, 4, records(4, 10), 10, 10), "another has joined"
    assert partitions.put(0, 0, records(0, 4), 4, 10)
    assert partitions.needed(0) == 10
    assert offsets(partitions.take()) == {0: [8, 9]} and not partitions.take()


def test_what_did_not_come_is_told() -> None:
    partitions: CalmPartitions[Record] = CalmPartitions({0: 5})
    assert not partitions.put(0, 6, records(6, 8), 8, 8)
    assert not partitions.has_waiting and partitions.needed(0) == 5


def test_the_position_is_that_of_what_was_taken_and_passes_what_is_no_record() -> None:
    partitions: CalmPartitions[Record] = CalmPartitions({0: 5, 1: 2})
    partitions.put(0, 5, records(6, 8), 9, 9)
    assert (partitions.position(0), partitions.needed(0), partitions.position(1)) == (6, 9, 2)
    partitions.take()
    assert partitions.position(0) == 9, "past the mark of a transaction"
    partitions.put(0, 9, [], 11, 12)
    assert (partitions.position(0), partitions.end(0), partitions.end(1)) == (11, 12, None)


def test_it_takes_over_once_all_was_read_as_far_as_elsewhere_and_to_the_end() -> None:
    partitions: CalmPartitions[Record] = CalmPartitions({0: 5, 1: 0})
    partitions.put(0, 5, records(5, 9), 9, 9)
    assert not partitions.has_caught_up({0: 7, 1: 0}), "1 was not fetched yet"
    partitions.put(1, 0, [], 0, 2)
    assert not partitions.has_caught_up({0: 7, 1: 0}), "1 is known to have records that did not come"
    partitions.put(1, 0, records(0, 2), 2, 2)
    assert not partitions.has_caught_up({0: 10, 1: 0}), "0 was read further elsewhere"
    assert partitions.has_caught_up({0: 7, 1: 2})
    partitions.drop_before({0: 7, 1: 2})
    assert offsets(partitions.take()) == {0: [7, 8]}


def test_a_source_that_takes_nothing_is_full_by_records_or_bytes() -> None:
    many: CalmPartitions[Record] = CalmPartitions({0: 0, 1: 0})
    many.put(0, 0, records(0, MOST_WAITING), MOST_WAITING, MOST_WAITING)
    assert not many.is_full
    many.put(1, 0, records(0, 1), 1, 1)
    assert many.is_full
    many.take()
    assert not many.is_full
    large: CalmPartitions[Record] = CalmPartitions({0: 0})
    large.put(0, 0, [Record(0, bytes(MOST_WAITING_BYTES + 1))], 1, 1)
    assert large.is_full
    large.drop_before({0: 1})
    assert not large.is_full


def test_a_source_is_calm_after_three_pauses_and_says_so_before_it_pauses():
    pace = CalmPace(0)
    assert pace.say(2 * PAUSE_US, PAUSE_US, PATIENCE_US) == 0
    assert pace.pause_us == 0, "nobody has been told yet, so the next boundary comes as usual"
    assert pace.say(3 * PAUSE_US, PAUSE_US, PATIENCE_US) == PAUSE_US + PATIENCE_US
    assert pace.pause_us == PAUSE_US, "it writes before readers would take it for silent"
    pace.note_busy(4 * PAUSE_US)
    assert pace.pause_us == 0, "who waits for its boundary does not wait for the pause"
    assert pace.say(5 * PAUSE_US, PAUSE_US, PATIENCE_US) == 0
    assert pace.say(8 * PAUSE_US, 0, PATIENCE_US) == 0, "X leaves no time for a pause"
