"""One incarnation of a source: from the user's topic it writes the logs of one stream, each record once in spite of crashes.

One thread reads and writes, in this order; a batch is the records of one poll of the topic:

    1. dead letters are sent, and acknowledged     an announced batch is not checked again
    2. the batch is announced in every log         an anchor: which records, from which place (intake.place)
    3. its rows are logged
    4. Kafka acknowledges all of that              only then the next batch may be announced

So after a crash at most one batch is incomplete, the last that was announced. It is read again from the user's topic, and
each log gets the rows that it lacks (logs.source_restart). While Kafka is out of reach nothing is read: records wait in the
topic, and posted rows wait in a spool (services.source.post_box).

A boundary follows each batch. Without rows, every log gets a boundary once per boundary interval if evidence of the topic's
ends moves it on (intake.stream_progress), else as a sign of life, less often. Once the topic is calm, each comes a pause later
and says so (R24), until there are records again, or a reader asks for boundaries (`wake`).
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from kafka.errors import KafkaError, KafkaTimeoutError, OffsetOutOfRangeError

from boreal.model.frames import INFINITY, Boundary, Frame, LogId
from boreal.query.plan import Plan, tick_after
from formats.dead_letter import DeadLetterRecord
from formats.json_text import moment
from intake.calm import CalmPace
from intake.evidence import Evidence
from intake.intake import Intake, rows_not_held
from intake.user_records import PartitionRecords, Records
from logs.source_restart import SourceRestart
from services.hosting.failpoints import failpoint, wanted
from services.hosting.process import EXIT_FENCED, EXIT_STOPPED, StopSignal, now_us
from services.hosting.registry import Registry, RegistryError
from services.hosting.turns import Turns
from services.kafka.gathering import FEW_SOURCES, GatherPace
from services.source.letters import Letters
from services.source.post_box import STALLED_S, PostBox
from services.source.user_topic import UserTopic
from services.storage.kafka_log import KafkaLog
from sunion.tape import BEGINNING

FRAME_ROWS = 8_192
LOOK_FOR_PARTITIONS_US = 10_000_000
RETRY_S = 0.2
_WAIT_MS = 200
Answer = TypeVar("Answer")

_logger = logging.getLogger("boreal.source")


class StopRequest(Exception):
    """Ends `run`: the process was stopped, or another incarnation of it has begun."""


@dataclass(frozen=True, slots=True)
class SourceInputs:
    """Where the records of a stream come from."""

    topic: UserTopic
    """The user's topic."""
    box: PostBox | None = None
    """Where rows are posted; None if they are not."""
    registry: Registry | None = None
    """The registry of the schemas that the intake needs; None if it needs none."""


class SourceIncarnation:
    """`run` goes on until it is stopped or fenced, and returns the process's exit code.

    intake: a new one, for the topic. logs: all logs of the stream. fenced: set when another incarnation writes the logs.
    on_change: called whenever the status may have changed. gathering, turns: of the process; None: it runs nothing else.
    """

    def __init__(
        self,
        plan: Plan,
        intake: Intake,
        inputs: SourceInputs,
        logs: Mapping[LogId, KafkaLog],
        letters: Letters,
        stopping: StopSignal,
        fenced: threading.Event,
        gathering: GatherPace | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.plan = plan
        self.intake = intake
        self.topic = inputs.topic
        self.logs = logs
        self.letters = letters
        self.box = inputs.box
        self.registry = inputs.registry
        self.on_change: Callable[[], None] = lambda: None
        self.may_gather = True
        """Whether all who read the stream may get its rows later while the process is loaded."""
        self.evidence = Evidence(inputs.topic, now_us, intake.answer)
        self._stopping = stopping
        self._fenced = fenced
        self._gathering = gathering or GatherPace(FEW_SOURCES)
        self._turns = turns or Turns()
        self._rest_until_us = self._rested_us = self._said_rest_us = 0
        self._has_begun = self._is_absent = self._is_unanswered = self._is_stalled = False
        self._waits_for: str | None = None
        self._waits_since_us = 0
        self._rows = self._letters = self._clamped = self._ahead = self._coerced = 0
        self._last_refusal: str | None = None
        self._lag_records: int | None = None
        self._caught_up_us = now_us()
        self._last_ingest_us = self._last_boundary_us = self._next_evidence_us = self._next_partitions_us = 0
        self._pace = CalmPace(now_us())
        self._is_woken = False
        self._changed_us = now_us()
        """Since when nothing has happened that a question about the topic's ends depends on."""
        self._appended: defaultdict[LogId, list[Frame]] = defaultdict(list)

    def run(self, former: SourceRestart) -> int:
        """former: what the incarnations before have left."""
        try:
            self._begin(former)
            while True:
                self._turn()
        except StopRequest:
            if not self._fenced.is_set():
                return EXIT_STOPPED
            _logger.error("the logs have another writer: a later incarnation of this source has begun")
            return EXIT_FENCED
        finally:
            self._gathering.leave(self)

    def set_threshold(self, plan: Plan) -> None:
        """Take X, and the intervals that follow from it, from this plan. May be called from any thread."""
        self.plan = plan
        self.intake.progress.set_threshold(plan.delay_threshold_us, plan.boundary_interval_us)
        self.wake()  # the pause that was said may be too long by this plan

    def wake(self) -> None:
        """Rows of other streams wait for our boundaries. May be called from any thread."""
        self._is_woken = True
        self.topic.wake()

    # A new incarnation

    def _begin(self, former: SourceRestart) -> None:
        self._settle()
        self._pass("source.started")
        while not (partitions := self._partitions()):
            self._wait(1.0)
        if former.until:
            self._do_again(former)
        place = self.intake.place
        place.promise = max(place.promise, former.promise)
        self._read(partitions)
        self.intake.progress.begin(place.newest, place.promise, now_us())
        self._has_begun = True
        self.on_change()
        _logger.info("incarnation %d begins with the records from %s on", former.incarnation + 1, self._positions())

    def _do_again(self, former: SourceRestart) -> None:
        """Complete the batch that was announced last: each log gets the rows that it lacks."""
        place, until = self.intake.place, former.until
        self._ask(lambda: self.topic.begin(list(until), place))
        if self._ask(lambda: self.topic.is_gone(place, until)):
            _logger.error("records of an incomplete batch are deleted: some of its rows may be missing")
            for partition, offset in until.items():
                self.intake.skip(partition, offset)
            place.next_ids.update(former.written)
            return
        parts: dict[int, list[PartitionRecords]] = {partition: [] for partition in until}
        while (more := self.topic.poll_until(until, _WAIT_MS, FRAME_ROWS)) is not None:
            for partition, records in more.items():
                parts[partition].append(records)
            self._wait(0)
        found = {partition: PartitionRecords.joined(records) for partition, records in parts.items()}
        self._learn_again(found)
        batch = self.intake.take_again(found, now_us())
        for partition, offset in until.items():
            self.intake.skip(partition, offset)
        missing = rows_not_held(batch.frames, former.written)
        for key, next_id in former.written.items():
            if next_id > place.next_ids[key]:
                _logger.error("%s holds %d rows of records that the topic no longer has", key, next_id - place.next_ids[key])
                place.next_ids[key] = next_id
        self._append(missing)
        self._settle()

    # The loop

    def _turn(self) -> None:
        """Poll the topic once, and log the result."""
        self._rested_us = max(self._rest_until_us - now_us(), 0)
        self._wait(self._rested_us / 1_000_000)
        found = self._poll()
        records = sum(map(len, found.values()))
        has_rows = records > 0
        if has_rows or self._is_woken:
            self._end_pause()
        if has_rows:
            self._log_batch(found)
        self._look_for_evidence(has_rows)
        now = now_us()
        if has_rows or now >= self._next_boundary_us:
            self._last_boundary_us, self._said_rest_us = now, self._rest_after(records)
            pause_us = self.plan.calm_pause_us if self.topic.is_calm else 0
            said_us = self._pace.say(now, pause_us, self.plan.calm_interval_us)
            self._append(self.intake.heartbeat(now, max(said_us, self._said_rest_us)))
        self._settle()
        # Where the topic is calm, records wait in its reader, which need not be looked for.
        rest_us = 0 if self.topic.is_calm else self._said_rest_us
        self._rest_until_us = tick_after(now_us(), rest_us) if rest_us else 0
        self._lag_records = self.topic.lag()
        if not self._lag_records:
            self._caught_up_us = now
        if now >= self._next_partitions_us:
            self._next_partitions_us = now + LOOK_FOR_PARTITIONS_US
            self._look_for_partitions()

    def _rest_after(self, records: int) -> int:
        """How long records gather after a batch of so many, or none, where the process is loaded, in microseconds: until the
        next tick of this interval, so that all sources write at one time. Readers are told, since a loaded source may be late
        as well. None gather if more than a batch waits already."""
        is_backlog = records >= (self.intake.most_records or FRAME_ROWS)
        degree = self._gathering.degree(self, has_rows=not self.topic.is_calm)
        may_gather = self.may_gather and not is_backlog
        return self.plan.rest_us(degree if may_gather else 0, self.plan.delay_threshold_us)

    @property
    def _next_boundary_us(self) -> int:
        """When a boundary is due even without records: sooner if evidence has moved it on."""
        plan = self.plan
        moves = self.intake.boundary > self.intake.place.promise
        interval_us = max(plan.boundary_interval_us if moves else plan.sign_of_life_us, self._said_rest_us)
        return tick_after(self._last_boundary_us, interval_us + self._pace.pause_us)

    def _end_pause(self) -> None:
        """Records have come, or readers wait for boundaries, and so for evidence as of now."""
        now, self._is_woken = now_us(), False
        if self._pace.pause_us:
            self._next_evidence_us = min(self._next_evidence_us, now)
        self._pace.note_busy(now)

    def _poll(self) -> dict[int, PartitionRecords]:
        # Rounded up: who wakes before the tick would only look again.
        wait_ms = -(-max(min(self._next_boundary_us, self._next_evidence_us) - now_us(), 0) // 1_000)
        try:
            return self.topic.poll(wait_ms, self.intake.most_records or FRAME_ROWS, self._gather_s)
        except OffsetOutOfRangeError:
            for partition, offset in self._ask(self.topic.find_again).items():
                self.intake.skip(partition, offset)
            self.evidence.forget()
            self._changed_us = now_us()
            return {}

    def _gather_s(self) -> float:
        """For how many seconds the records of a calm topic may wait: until the next tick, since a turn costs as much for one as
        for many, and their bucket is complete only with a boundary. Not if the boundary waits for them."""
        now, interval_us = now_us(), max(self.plan.boundary_interval_us, self._said_rest_us)
        return 0.0 if self.evidence.is_open else (tick_after(now, interval_us) - now) / 1_000_000

    def _log_batch(self, found: dict[int, PartitionRecords]) -> None:
        waited_us = self.topic.waited_us + self._rested_us  # X counts both
        unknown = self._learn(found)
        with self._turns.take():
            self._log_rows(found, unknown, waited_us)

    def _log_rows(self, found: dict[int, PartitionRecords], unknown: frozenset[int], waited_us: int) -> None:
        batch = self.intake.take(found, now_us(), unknown, waited_us)
        if batch.letters:
            self._send(batch.letters)
            self._pass("source.letters_sent")
        announcements = [(log, frame) for log, frame in batch.frames if isinstance(frame, Boundary)]
        self._append(announcements[:1])
        self._pass("source.between_announcements")
        self._append(announcements[1:])
        self._pass("source.announced")
        for log, frame in batch.frames[len(announcements) :]:
            self._append([(log, frame)])
            self._pass("source.between_logs")
        if batch.rows:
            self._rows += batch.rows
            self._clamped += batch.clamped
            self._last_ingest_us = now_us()
        self._ahead += batch.ahead
        self._coerced += batch.coerced

    # Schemas

    def _learn(self, found: Records) -> frozenset[int]:
        """Learn what the ids of these records stand for; returns those that the registry does not know. While the registry
        does not answer, this waits, and no boundary is written: for the readers the stream is cut off, and no record of it is
        lost or refused."""
        return frozenset(id_ for id_ in self._ids_to_learn(found) if not self._ask_registry(id_))

    def _learn_again(self, found: Records) -> None:
        """As `_learn`, of the records of a batch that was announced before: what the registry did not know then stays so, and
        what it knew, it must know."""
        for id_ in self._ids_to_learn(found):
            while id_ not in self.intake.place.unknown and not self._ask_registry(id_):
                self._wait_for(f"{self.registry}: it no longer has schema {id_}, by which records were taken")
        self._wait_for(None)

    def _ids_to_learn(self, found: Records) -> list[int]:
        schemas = self.intake.schemas
        return schemas.lacking(chain.from_iterable(part.values for part in found.values())) if schemas is not None else []

    def _ask_registry(self, id_: int) -> bool:
        """Whether the registry knows an id, which is then learnt; retries until it answers."""
        assert self.registry is not None and self.intake.schemas is not None, "a stream with ids of schemas has a registry"
        while True:
            try:
                schema = self.registry.find(id_)
            except RegistryError as error:
                self._wait_for(str(error))
                continue
            self._wait_for(None)
            if schema is not None:
                self.intake.schemas.learn(id_, schema)
            return schema is not None

    def _wait_for(self, what: str | None) -> None:
        """Show what is waited for, and wait a little; None: for nothing any more."""
        if (what is None) != (self._waits_for is None):
            self._waits_since_us = now_us()
            if what is not None:
                _logger.warning("records wait for %s", what)
            self._waits_for = what
            self.on_change()
        self._waits_for = what
        if what is not None:
            self._wait(RETRY_S)

    def _look_for_evidence(self, has_rows: bool) -> None:
        """Process answers about the topic's ends, and ask again if it is time. Not while the spool holds records: they are
        written, but not in the topic yet."""
        if self.evidence.look() or has_rows:
            self._changed_us = now_us()
        now = now_us()
        usual_us = self.intake.progress.evidence_interval_us(self.intake.place.partitions)
        interval_us = max(usual_us, self._said_rest_us) + self._pace.pause_us
        # Rows whose boundary waits for evidence should not wait for the next interval as well.
        is_waited_for = has_rows and usual_us <= self.plan.boundary_interval_us
        if now >= self._next_evidence_us or is_waited_for:
            # Nothing has changed since then, so the question could have been asked then; and the answers to others that look at
            # the same ticks serve this one too (services.kafka.end_desk).
            asked_at = max(min(self._next_evidence_us, now), self._changed_us) if self.box is None else now
            self._next_evidence_us = tick_after(now, interval_us)
            numbers = self.intake.progress.to_ask(self.topic.assigned, interval_us, now)
            is_in_topic = self.box is None or self.box.is_empty
            if numbers and is_in_topic and self.evidence.ask(numbers, self.intake.ask(asked_at)):
                self._changed_us = now_us()

    def _look_for_partitions(self) -> None:
        partitions = self._partitions()
        if len(partitions) > len(self.topic.assigned):
            _logger.info("%s has %d partitions now", self.topic.name, len(partitions))
            self._read(partitions)

    def _partitions(self) -> list[int]:
        """The partitions of the user's topic; none while it does not exist."""
        partitions = self._ask(self.topic.partitions)
        self._is_absent = not partitions
        if self._is_absent:
            _logger.warning("topic %s does not exist", self.topic.name)
        return partitions

    def _read(self, partitions: list[int]) -> None:
        """Read these partitions from our position on."""
        for partition, offset in self._ask(lambda: self.topic.begin(partitions, self.intake.place)).items():
            self.intake.expect(partition, offset)
        self._changed_us = now_us()
        self.intake.progress.watch(partitions, self._changed_us)

    def _send(self, letters: list[DeadLetterRecord]) -> None:
        """Return when Kafka has the letters, and all frames that were logged before: they decide which records are late."""
        self._settle()
        for future in [self.letters.send(letter) for letter in letters]:
            while not _is_sent(future):
                self._wait(0)
        self._letters += len(letters)
        self._last_refusal = letters[-1].reason

    def _append(self, frames: Iterable[tuple[LogId, Frame]]) -> None:
        """Collect frames for the next `_settle`, which sends those of one log in one request."""
        for log, frame in frames:
            self._appended[log].append(frame)

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """The answer to a question to the user's topic; retries until Kafka answers."""
        while True:
            try:
                answer = question()
                self._is_unanswered = False
                return answer
            except KafkaError as error:
                if not error.retriable:
                    raise
                self._is_unanswered = True
                _logger.warning("%s does not answer: %r", self.topic.name, error)
                self._wait(RETRY_S)

    def _settle(self) -> None:
        """Send all collected frames, and return when Kafka has them."""
        for id_, frames in self._appended.items():
            self.logs[id_].append_later(*frames)
        self._appended.clear()
        for log in self.logs.values():
            while not log.flush(STALLED_S):
                self._stall(True, log)
                self._wait(RETRY_S)
        self._stall(False, None)

    def _stall(self, is_stalled: bool, log: KafkaLog | None) -> None:
        if is_stalled != self._is_stalled:
            self._is_stalled = is_stalled
            if log is not None:
                _logger.warning("%s cannot be written: no records are read until it can", log.id)
            self.on_change()

    def _wait(self, seconds: float) -> None:
        """Wait. StopRequest if the process is to end."""
        if self._stopping.wait(seconds) or self._fenced.is_set():
            raise StopRequest

    def _pass(self, name: str) -> None:
        if wanted()[0] == name:
            # The failpoint promises that these frames are logged, so we wait until Kafka has them.
            self._settle()
            failpoint(name)

    # Status

    @property
    def rest_us(self) -> int:
        """For how long rows gather, as it has said in its last boundary; 0 if they do not."""
        return self._said_rest_us

    @property
    def is_calm(self) -> bool:
        """Whether it has said in its last boundary that it may be silent for longer (R24)."""
        return self._pace.pause_us > 0

    def _positions(self) -> dict[int, int]:
        return {number: partition.next_offset for number, partition in sorted(self.intake.place.partitions.items())}

    def status(self) -> dict[str, Any]:
        """What the process says of itself: `deployment.status_fields.SOURCE`."""
        box, boundary = self.box, self.intake.place.promise
        return {
            "ready": self._can_read and not self._is_stalled,
            "stream": self.intake.name,
            "state": self._state(),
            "last_boundary": "end" if boundary >= INFINITY else moment(boundary) if boundary > BEGINNING else None,
            "last_ingest_ms": self._last_ingest_us / 1_000 if self._last_ingest_us else None,
            "rows": self._rows,
            "dlq": self._letters + (box.refused if box is not None else 0),
            "dlq_per_minute": self.letters.per_minute(),
            "last_refusal": self._last_refusal,
            "waits_for": self._waits_for,
            "waits_since_ms": self._waits_since_us / 1_000 if self._waits_for is not None else None,
            "lag_records": self._lag_records,
            "lag_ms": max(now_us() - self._caught_up_us, 0) / 1_000 if self._lag_records else 0,
            "clamped": self._clamped,
            "ahead": self._ahead,
            "coerced": self._coerced,
            "idle_partitions": self.intake.progress.idle_partitions,
            "spooled_bytes": box.spooled_bytes if box is not None else 0,
            "spool_full": box is not None and box.is_full,
            "lost_records": self.topic.lost_records,
            "positions": self._positions(),
        }

    @property
    def _can_read(self) -> bool:
        """Whether all records of the stream can reach us. If not, a stream without records is not idle, but failed."""
        is_waiting = self._is_absent or self._is_unanswered or self._waits_for is not None
        is_cut_off = is_waiting or (self.box is not None and self.box.failure is not None)
        return self._has_begun and not is_cut_off

    def _state(self) -> str:
        if not self._can_read:
            return "failed"
        if self.box is not None and not self.box.is_empty:
            return "spooling"
        progress, now = self.intake.progress, now_us()
        if self._is_stalled or progress.unheard(now):
            return "failed"
        return "live" if progress.brings(now) else "idle"


def _is_sent(future: Any) -> bool:
    """Whether Kafka has a record within STALLED_S. KafkaError if it refuses the record."""
    try:
        future.get(timeout=STALLED_S)
    except KafkaTimeoutError:
        return False
    return True
