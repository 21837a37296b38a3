"""Seeded bugs in the roles, each of which some seed must show: in what the pure simulator does not run, from the threads to the
clients' calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from deployment import placer
from deployment.claims import LogClaims
from deployment.placement import Places
from services.egress import egress, stable
from services.egress.out import OutTopic
from services.egress.stable import StableTopic
from services.kafka.clusters import close_producer
from services.source.incarnation import SourceIncarnation
from services.source.user_topic import UserTopic
from services.storage.kafka_log import KafkaLog
from services.storage.local_logs import LocalLogs
from services.storage.log_ends import LogEnd, LogEnds
from services.storage.log_reader import LogReader, LogReaders
from simulation.mutants.registry import MUTANTS_BY_MODULE, Mutant, Patch, mutant


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
def second_writer_is_not_noticed(patch: Patch) -> None:
    """Who writes a log does not compare the offsets that Kafka gives its frames."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        return lambda self, expected, size, record: original(self, record.offset, size, record)

    patch(KafkaLog, "_acknowledge", make)


@mutant
def follower_begins_too_late(patch: Patch) -> None:
    """A log is followed from the row after the one that is needed."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        return lambda self, log, after_id: original(self, log, after_id + (after_id >= 0))

    patch(LogReader, "follow", make)


@mutant
def readers_are_left(patch: Patch) -> None:
    """An instance that ends does not end its readers."""
    patch(LogReaders, "close", lambda _: lambda self: None)


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
def stable_outside_its_transaction(patch: Patch) -> None:
    """Rows go to q.stable by a producer that nobody fences."""

    class Unfenced:
        """A producer whose transactions are none."""

        def __init__(self, producer: Any) -> None:
            self.send = producer.send
            self.commit_transaction = producer.flush
            self.close, self._sender = producer.close, producer._sender

        def begin_transaction(self) -> None: ...

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def commit(self: StableTopic, rows: Any, values: Any) -> None:
            if not isinstance(self._producer, Unfenced):
                unfenced = Unfenced(self._cluster.make_producer())
                close_producer(self._producer, 0)
                self._producer = unfenced
            original(self, rows, values)

        return commit

    patch(StableTopic, "_commit_values", make)


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


@mutant
def old_end_is_good_enough(patch: Patch) -> None:
    """Where a log ended once is taken for where it ends."""

    def make(original: Callable[..., LogEnd]) -> Callable[..., LogEnd]:
        return lambda self, log, topic, age_s=0.0: original(self, log, topic, 3_600.0)

    patch(LogEnds, "of", make)


# Which only seeds show whose workers have joined their sites: roles move there


@mutant
def local_readers_outlive_their_writer(patch: Patch) -> None:
    """A follower waits for what its process writes, though the writer has ended."""
    patch(LocalLogs, "end", lambda _: lambda self, writer, place: None)


@mutant
def placement_keeps_the_dead(patch: Patch) -> None:
    """No worker is ever lost, however long it says nothing."""
    patch(placer._Worker, "patience_us", lambda _: property(lambda self: 1 << 60))


@mutant
def replicas_share_a_worker(patch: Patch) -> None:
    """A replica goes to the worker with the least load, whatever runs there."""
    patch(Places, "allows", lambda _: lambda self, child, worker: True)
    patch(Places, "shares_machine", lambda _: lambda self, child, worker: False)


MUTANTS: dict[str, Mutant] = {each.name: each for each in MUTANTS_BY_MODULE[__name__]}
