"""Seeded bugs in the roles, each of which some seed must show: in what the pure simulator does not run, from the threads to the
clients' calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from boreal.model.frames import Boundary
from deployment.claims import LogClaims
from logs import source_restart
from logs.log import Log
from services.egress import egress, stable
from services.egress.out import OutTopic
from services.egress.stable import StableTopic
from services.source.incarnation import SourceIncarnation
from services.source.user_topic import UserTopic
from services.storage.kafka_log import KafkaLog
from services.storage.log_partition import Fence
from services.storage.log_reader import LogReader, _LogFollower
from simulation.mutants.registry import MUTANTS_BY_MODULE, Mutant, Patch, mutant
from sunion.tape import BEGINNING


@mutant
def source_does_not_wait(patch: Patch) -> None:
    """A source announces the next batch before Kafka has the rows of the one before."""

    def settle(self: SourceIncarnation) -> None:
        for id_, frames in self._appended.items():
            self.logs[id_].append_later(*frames)
        self._appended.clear()

    patch(SourceIncarnation, "_settle", lambda _: settle)


@mutant
def source_repeats_a_record(patch: Patch) -> None:
    """A source that restarts reads the last record of before once more."""

    def begin(self: UserTopic, partitions: list[int], place: Any) -> dict[int, int]:
        for partition in place.partitions.values():
            partition.next_offset = max(partition.next_offset - 1, 0)
        return original(self, partitions, place)

    original: Callable[..., dict[int, int]] = UserTopic.begin
    patch(UserTopic, "begin", lambda _: begin)


@mutant
def source_skips_a_record(patch: Patch) -> None:
    """A source that restarts begins one record too late."""

    def begin(self: UserTopic, partitions: list[int], place: Any) -> dict[int, int]:
        for partition in place.partitions.values():
            partition.next_offset += 1
        return original(self, partitions, place)

    original: Callable[..., dict[int, int]] = UserTopic.begin
    patch(UserTopic, "begin", lambda _: begin)


@mutant
def source_does_not_repeat_the_batch(patch: Patch) -> None:
    """A source that restarts does not complete the batch that was announced last."""
    patch(SourceIncarnation, "_do_again", lambda _: lambda self, former: _skip(self, former.until))


def _skip(source: SourceIncarnation, until: Mapping[int, int]) -> None:
    for partition, offset in until.items():
        source.intake.skip(partition, offset)


@mutant
def dead_source_promises(patch: Patch) -> None:
    """A source that restarts keeps to a boundary that a dead incarnation wrote after the START of the next one."""

    def promise(log: Log) -> int:
        frames = log.read(max(log.start, log.end - 64), 64)
        return max((frame.time for _, frame in frames if isinstance(frame, Boundary)), default=BEGINNING)

    patch(source_restart, "_promise", lambda _: promise)


@mutant
def zombie_is_read(patch: Patch) -> None:
    """Readers take frames that a dead incarnation wrote after the START of the next one."""
    patch(Fence, "admits", lambda _: lambda self, frame, incarnation: True)


@mutant
def second_writer_is_not_noticed(patch: Patch) -> None:
    """Who writes a log does not compare the offsets that Kafka gives its frames."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        return lambda self, expected, size, record: original(self, record.offset, size, record)

    patch(KafkaLog, "_acknowledge", make)


@mutant
def egress_is_not_sure_to_be_alone(patch: Patch) -> None:
    """An egress sends more before Kafka has its first record."""
    patch(OutTopic, "_may_send", lambda _: property(lambda self: True))


@mutant
def follower_begins_too_late(patch: Patch) -> None:
    """A log is followed from the row after the one that is needed."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        return lambda self, log, after_id: original(self, log, after_id + (after_id >= 0))

    patch(LogReader, "follow", make)


@mutant
def shared_reader_is_trusted_blindly(patch: Patch) -> None:
    """A follower that joins the shared reader takes what it had read alone once more."""

    def add(self: _LogFollower, record: Any, frame: Any, admitted: Callable[..., bool]) -> None:
        if admitted(record, frame):
            self._wait_for_delivery(record, frame)
        self._position = record.offset + 1

    patch(_LogFollower, "_add", lambda _: add)


@mutant
def trimmed_by_the_fastest(patch: Patch) -> None:
    """The monitor allows a log to be trimmed up to what its fastest reader needs."""

    def needed_of(self: LogClaims, key: str) -> int:
        readers = [self._readers[who] for who in self._readers_of[key]]
        return max((reader.needs.get(key, 0) for reader in readers if reader.has_claim), default=0)

    patch(LogClaims, "needed_of", lambda _: needed_of)


@mutant
def out_place_is_ignored(patch: Patch) -> None:
    """An egress that restarts numbers its records from the beginning."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(*arguments: Any) -> Any:
            tail = original(*arguments)
            return tail if tail.place is None else replace(tail, place=replace(tail.place, seq=0))

        return read

    patch(egress, "read_out_tail", make)


@mutant
def stable_begins_at_the_end_of_out(patch: Patch) -> None:
    """An egress that restarts does not copy to q.stable what only q.out has."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def begin(self: StableTopic, incarnation: int, lacking_from: int, end: int) -> None:
            original(self, incarnation, end, end)

        return begin

    patch(StableTopic, "begin", make)


@mutant
def stable_end_is_not_read(patch: Patch) -> None:
    """An egress that restarts takes q.stable for empty."""
    patch(stable, "read_stable_tail", lambda _: lambda *_: 0)


@mutant
def stable_before_out(patch: Patch) -> None:
    """Rows go to q.stable before Kafka has them in q.out."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def send(self: OutTopic, records: Any, keys: Any, headers: Any, emitted_us: int, given: Any, rows: Any) -> None:
            if rows and self._stable is not None:
                self._stable.put(rows, self._end)
            original(self, records, keys, headers, emitted_us, given, rows)

        return send

    patch(OutTopic, "_send", make)


MUTANTS: dict[str, Mutant] = {each.name: each for each in MUTANTS_BY_MODULE[__name__]}
