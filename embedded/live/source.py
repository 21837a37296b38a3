"""One stream of a live query: takes the records of its topic, and logs rows and boundaries.

The rules are those of a source of the services (`intake`), and so is the order: a batch is announced in the stream's logs
before its rows, and after a restart the batch that was announced last is completed from the topic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from boreal.model.frames import INFINITY, Frame, LogId, Origin, Start
from boreal.query.plan import Plan
from boreal.query.spec import Stream
from embedded.live.topic import Topic
from formats.dead_letter import DeadLetterRecord
from formats.json_text import moment
from intake.intake import Intake, SourceStream, rows_not_held
from intake.letter_rate import LetterRate
from intake.place import PartitionPlace
from intake.user_records import PartitionRecords
from logs.log import LogStore
from logs.source_restart import SourceRestart, source_restart
from sunion.tape import BEGINNING

BATCH_RECORDS = 8_192
"""The largest number of records in a batch."""
TICKS_PER_BOUNDARY = 5
"""How often a source looks for records within a boundary interval."""
TRIM_EVERY_US = 10_000_000

_PARTITION = 0


@dataclass(frozen=True, slots=True)
class LiveSink:
    """Where a source writes."""

    logs: LogStore
    """The logs of its stream."""
    append: Callable[[LogId, Frame], None]
    """Appends a frame to one of them."""
    refuse: Callable[[DeadLetterRecord, int], None]
    """Takes a dead letter, and when it was made (us)."""


class LiveSource:
    """A new incarnation of a source. Call `tick` at `next_tick`, and earlier when records have come."""

    def __init__(
        self,
        name: str,
        stream: Stream,
        plan: Plan,
        topic: Topic,
        sink: LiveSink,
        now: int,
        since: int | None = None,
    ) -> None:
        """since: a source that never took a record begins with those that arrived at this clock value or later; None: with
        all."""
        logs, append = sink.logs, sink.append
        taken = SourceStream.of(plan, name, stream, name)
        ids = [LogId(edge.name, "", partition) for edge in taken.edges for partition in range(edge.partitions)]
        former = source_restart([logs.open(log) for log in ids], name)
        origin = Origin("", former.incarnation + 1)
        self.name = name
        self.topic = topic
        self.rows = self.letters = self.clamped = self.ahead = self.coerced = 0
        self.last_ingest_us: int | None = None
        self.last_refusal: str | None = None
        self._rate = LetterRate()
        self._caught_up_at = now
        self.interval_us = plan.boundary_interval_us
        self.sign_of_life_us = plan.sign_of_life_us
        self.next_tick = now
        self._append, self._refuse = append, sink.refuse
        self._logs = [logs.open(log) for log in ids]
        self._boundary_at = now
        self._trim_at = now + TRIM_EVERY_US
        self.intake = Intake(taken, origin, former.place)
        for log in ids:
            append(log, Start(origin, 0, former.written[log.key]))
        if former.until:
            self._complete(former, now)
        place = self.intake.place
        if not place.partitions and (begin := topic.begin_at(since)):
            self.intake.skip(_PARTITION, begin)
        place.promise = max(place.promise, former.promise)
        self.intake.expect(_PARTITION, 0)
        self.intake.progress.watch([_PARTITION], now)
        self.intake.progress.begin(place.newest, place.promise, now)
        self._batch_from = self.next_offset

    def set_threshold(self, plan: Plan) -> None:
        """Take X, and the intervals that follow from it, from this plan."""
        self.interval_us, self.sign_of_life_us = plan.boundary_interval_us, plan.sign_of_life_us
        self.intake.progress.set_threshold(plan.delay_threshold_us, plan.boundary_interval_us)

    @property
    def next_offset(self) -> int:
        """The offset of the next record of the topic."""
        return self.intake.place.partitions.get(_PARTITION, PartitionPlace()).next_offset

    def tick(self, now: int) -> None:
        """Log a batch of the records that have come, and a boundary if one is due."""
        self.next_tick = now + max(self.interval_us // TICKS_PER_BOUNDARY, 1)
        end = self.topic.end(now)
        has_rows = self.next_offset < end
        if has_rows:
            self._log_batch(end, now)
        if self.next_offset >= end:
            # The topic is at hand: all that was written to it by now has been taken.
            self._caught_up_at = now
            self.intake.answer(_PARTITION, self.intake.ask(now), now)
        else:
            self.next_tick = now
        moves = self.intake.boundary > self.intake.place.promise
        if has_rows or now >= self._boundary_at + (self.interval_us if moves else self.sign_of_life_us):
            self._boundary_at = now
            self._log(self.intake.heartbeat(now))
        if now >= self._trim_at:
            self._trim_at = now + TRIM_EVERY_US
            self._trim()

    def status(self, now: int) -> dict[str, Any]:
        """The fields of `deployment.status_fields.INPUT`."""
        boundary = self.intake.place.promise
        age_us = None if self.last_ingest_us is None else max(now - self.last_ingest_us, 0)
        return {
            "name": self.name,
            "state": "live" if self.intake.progress.brings(now) else "idle",
            "last_boundary": "end" if boundary >= INFINITY else moment(boundary) if boundary > BEGINNING else None,
            "last_ingest_age_ms": None if age_us is None else age_us / 1_000,
            "rows": self.rows,
            "dlq": self.letters,
            "dlq_per_minute": self._rate.per_minute(now),
            "last_refusal": self.last_refusal,
            "waits_for": None,
            "waits_since_ms": None,
            "lag_records": (lag := max(self.topic.end(now) - self.next_offset, 0)),
            "lag_ms": max(now - self._caught_up_at, 0) / 1_000 if lag else 0,
            "clamped": self.clamped,
            "ahead": self.ahead,
            "coerced": self.coerced,
            "idle_partitions": self.intake.progress.idle_partitions,
            "spooled_bytes": 0,
        }

    def _complete(self, former: SourceRestart, now: int) -> None:
        """Complete the batch that was announced last: each log gets the rows that it lacks."""
        place, end = self.intake.place, former.until[_PARTITION]
        parts = []
        offset = place.partitions[_PARTITION].next_offset
        while offset < end and len(found := self.topic.read(offset, end)):
            parts.append(found)
            offset = found.end
        batch = self.intake.take_again({_PARTITION: PartitionRecords.joined(parts)}, now)
        self.intake.skip(_PARTITION, end)
        missing = rows_not_held(batch.frames, former.written)
        place.next_ids.update({key: max(place.next_ids[key], next_id) for key, next_id in former.written.items()})
        self._log(missing)

    def _log_batch(self, end: int, now: int) -> None:
        self._batch_from = self.next_offset
        records = self.topic.read(self._batch_from, min(end, self._batch_from + BATCH_RECORDS))
        batch = self.intake.take({_PARTITION: records}, now)
        for letter in batch.letters:
            self._refuse(letter, now)
            self.last_refusal = letter.reason
        self._rate.note(len(batch.letters), now)
        self._log(batch.frames)
        self.letters += len(batch.letters)
        self.clamped += batch.clamped
        self.ahead += batch.ahead
        self.coerced += batch.coerced
        if batch.rows:
            self.rows += batch.rows
            self.last_ingest_us = now

    def _log(self, frames: list[tuple[LogId, Frame]]) -> None:
        for log, frame in frames:
            self._append(log, frame)

    def _trim(self) -> None:
        """Let the topic forget what a restart cannot need: all before the last batch, once the logs hold it for good."""
        for log in self._logs:
            log.sync()
        self.topic.trim(self._batch_from)
