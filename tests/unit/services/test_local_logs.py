"""What a process writes to a log is handed to its own readers once Kafka has it: from where each has read, and in order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from kafka import TopicPartition

from boreal.model.frames import Boundary, Origin
from formats.frame_records import encode_record
from services.storage.local_logs import LocalLogs, Written
from services.storage.log_partition import WrittenRecord

PLACE = TopicPartition("log", 0)
WRITER, OTHER = object(), object()


def records(first: int, end: int) -> list[WrittenRecord]:
    frames = [(offset, Boundary(Origin("r0", 1), 0, offset, False, 0, 0)) for offset in range(first, end)]
    return [WrittenRecord(*encode_record(frame, 7, 3), offset) for offset, frame in frames]


@dataclass(eq=False)
class Reader:
    """A follower that has read up to a position, and is expected."""

    position: int
    taken: list[int] = field(default_factory=list)
    """The offsets that it was handed."""
    times_alone: int = 0
    """How often it was told to read alone."""
    takes: bool = True
    """What it answers."""

    def take_written(self, written: Written) -> bool:
        if not self.takes:
            return False
        self.taken += [record.offset for record, _ in written.frames]
        self.position = written.end
        return True

    def read_alone(self) -> None:
        self.times_alone += 1


@pytest.fixture
def local() -> LocalLogs:
    """Of a process that has written a log up to offset 5, all of which Kafka has."""
    local = LocalLogs()
    local.confirm(WRITER, PLACE, (), 5)
    return local


def joined(local: LocalLogs, reader: Reader) -> Reader:
    local.expect(PLACE)
    assert local.join(reader, PLACE)
    return reader


def test_only_who_has_read_all_that_is_confirmed_is_handed_what_follows(local: LocalLogs) -> None:
    late, early = Reader(4), Reader(6)
    assert not local.join(late, PLACE) and not local.join(early, PLACE)
    assert not local.join(Reader(0), TopicPartition("log", 1)), "nobody here writes it"
    reader = joined(local, Reader(5))
    local.confirm(WRITER, PLACE, records(5, 7), 7)
    local.confirm(WRITER, PLACE, records(7, 8), 8)
    assert reader.taken == [5, 6, 7] and not reader.times_alone
    assert not late.taken and not early.taken


def test_what_is_handed_on_is_what_a_fetch_would_bring() -> None:
    [(record, frame)] = Written(records(5, 6), 6).frames
    assert (record.offset, record.next_id, record.incarnation) == (5, 7, 3)
    assert frame == Boundary(Origin("r0", 1), 0, 5, False, 0, 0)


def test_records_are_kept_for_those_who_follow_a_log_whether_they_have_joined_or_not(local: LocalLogs) -> None:
    assert not local.is_followed(PLACE)
    reader = Reader(2)
    local.expect(PLACE)
    assert local.is_followed(PLACE)
    local.leave(reader, PLACE)
    assert not local.is_followed(PLACE)


def test_one_reads_alone_again_if_what_was_confirmed_was_not_kept_or_is_too_much(local: LocalLogs) -> None:
    reader, slow = joined(local, Reader(5)), joined(local, Reader(5, takes=False))
    local.confirm(WRITER, PLACE, records(5, 6), 6)
    assert (reader.times_alone, slow.times_alone) == (0, 1)
    local.confirm(WRITER, PLACE, (), 9)
    local.confirm(WRITER, PLACE, records(9, 10), 10)
    assert (reader.taken, reader.times_alone, slow.times_alone) == ([5], 1, 1)


def test_one_whose_follower_fails_reads_alone_and_the_writer_goes_on(
    local: LocalLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(written: Written) -> bool:
        raise RuntimeError("nobody sees this")

    reader, failing = joined(local, Reader(5)), joined(local, Reader(5))
    monkeypatch.setattr(failing, "take_written", fail)
    local.confirm(WRITER, PLACE, records(5, 6), 6)
    assert (reader.taken, failing.times_alone) == ([5], 1)


def test_who_asks_is_told_when_a_role_begins_to_write_a_log_and_when_it_ends() -> None:
    local, told = LocalLogs(), list[bool]()

    def tell() -> None:
        told.append(local.is_written(PLACE))

    local.tell_of_writer(PLACE, tell)
    assert not local.is_written(PLACE)
    local.confirm(WRITER, PLACE, (), 5)
    local.confirm(WRITER, PLACE, (), 6)
    local.end(WRITER, PLACE)
    assert told == [True, False]
    local.forget(PLACE, tell)
    local.confirm(WRITER, PLACE, (), 7)
    assert told == [True, False]


@pytest.mark.parametrize("ends", [True, False])
def test_all_read_alone_when_the_writer_ends_or_another_one_begins(local: LocalLogs, ends: bool) -> None:
    reader = joined(local, Reader(5))
    if ends:
        local.end(WRITER, PLACE)
        assert not local.join(Reader(5), PLACE)
    else:
        local.confirm(OTHER, PLACE, records(5, 6), 6)
        local.end(WRITER, PLACE)
        assert local.join(Reader(6), PLACE), "the writer before ends nothing of the other's"
    assert (reader.taken, reader.times_alone) == ([], 1)
