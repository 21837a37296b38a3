"""The process of a source: the user's topic in, the logs of one stream out, each record once whatever crashes.

One thread reads and writes, in this order; a batch is what one look at the topic brings:

    1. dead letters are sent, and acknowledged     a batch that was announced is not judged again
    2. the batch is announced in every log         an anchor: which records, from which place (intake.place)
    3. its rows are logged
    4. all of that is acknowledged                 only now the next batch may be announced

So after a crash one batch may be incomplete, the one announced last; it is done again from the user's topic, and each log
is given what it lacks (logs.source_restart). While Kafka is out of reach nothing is read: the records wait in the
topic, and what is posted waits in a spool (services.source.post).

A boundary follows each batch; one goes to every log each boundary interval where evidence of what could be read moves it on
(intake.stream_progress), and otherwise as a sign of life.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, TypeVar

from kafka.errors import KafkaError, KafkaTimeoutError, OffsetOutOfRangeError

from boreal.model.errors import CorruptError, UserError
from boreal.model.frames import INFINITY, Boundary, Frame, LogId, Origin, Start
from deployment.layout import make_layout
from formats.control_messages import ControlItem
from formats.dead_letter import DeadLetterRecord
from formats.json_text import moment
from formats.record_parsing import RecordShape
from intake.evidence import Evidence
from intake.intake import Intake, rows_not_held, text_of
from logs.source_restart import SourceRestart, source_restart
from services.hosting.failpoints import failpoint
from services.hosting.process import EXIT_FENCED, EXIT_STOPPED, THREAD_SWITCH_S, StatusPublisher, now_us
from services.hosting.trimmer import Trimmer
from services.kafka.clusters import close_producer, make_clusters
from services.kafka.control import NO_HURRY_MS, ControlPlane
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.topics import control_topic, dead_letter_topic
from services.source.options import SourceOptions
from services.source.post import STALLED_S, PostBox
from services.source.spool import Spool
from services.source.topic import UserTopic
from services.source.web import WebServer, create_app
from services.storage.kafka_log import KafkaLog, KafkaLogStore
from sunion.tape import BEGINNING

FRAME_ROWS = 8_192
LOOK_FOR_PARTITIONS_US = 10_000_000
RETRY_S = 0.2
_WAIT_MS = 200
Answer = TypeVar("Answer")

_logger = logging.getLogger("boreal.source")


class Stopped(Exception):
    """The process is to end: it was told to, or another life of it has begun."""


class Source:
    """`serve` runs until it is stopped or fenced, and returns the process's exit code."""

    def __init__(self, settings: ServiceSettings, options: SourceOptions, name: str, query: str, stream: str) -> None:
        self.name = name
        self.stream = stream
        self.clusters = make_clusters(settings, name)
        self.home = self.clusters[settings.home]
        record = QueryRegistry(self.home).find(query)
        if stream not in record.query.streams:
            raise UserError("stream", stream, f"{query} has no such stream", f"name one of {list(record.query.streams)}")
        self.spec = record.query.streams[stream]
        if self.spec.topic is None:
            raise UserError(f"streams.{stream}.topic", None, "is not given", "name the topic that holds the stream's records")
        self.topic_name = self.spec.topic
        self.layout = make_layout(record.query, settings.site_names)
        self.history_us = record.query.tuning.history
        self.site = self.layout.site_of_stream(stream)
        self.own = self.clusters[self.site]
        self.options = options
        self._shape = RecordShape(self.spec.time, self.spec.time_unit, self.spec.attributes)
        self.spool_directory = settings.data / "spool" / query / stream
        self._stopping = threading.Event()
        self._is_fenced = False
        self._has_begun = self._is_absent = self._is_unanswered = self._is_stalled = False
        self._rows = self._letters = self._clamped = self._ahead = 0
        self._last_ingest_us = self._last_boundary_us = self._next_evidence_us = self._next_partitions_us = 0
        self._appended: defaultdict[LogId, list[Frame]] = defaultdict(list)

    def serve(self, stopping: threading.Event) -> int:
        sys.setswitchinterval(THREAD_SWITCH_S)
        self._stopping = stopping
        topic = self.topic_name
        with ExitStack() as stack:
            store = stack.enter_context(closing(KafkaLogStore(self.clusters, self.layout, history_us=self.history_us)))
            self.logs = {log: store.open(log) for _, log in self.layout.source_logs(self.stream)}
            for log in self.logs.values():
                log.on_fenced = self._fenced
            former = source_restart(list(self.logs.values()), topic)
            self.intake = self._make_intake(former)
            # At once: an earlier life that still writes makes us begin again, the more likely the longer we wait.
            start = Start(Origin("", former.incarnation + 1), 0)
            for id_, log in self.logs.items():
                log.append_later(replace(start, next_id=former.written[id_.key]))
            self.letters = self.own.make_producer()
            stack.callback(close_producer, self.letters, 1)
            self.topic = stack.enter_context(closing(UserTopic(self.own, topic, self._look_ms)))
            self.evidence = Evidence(self.topic, now_us, self.intake.answer)
            self.box = self._make_box()
            if self.box is not None:
                stack.enter_context(closing(self.box))
            self.status = stack.enter_context(closing(StatusPublisher(self.home, self.name, self._status)))
            if self.box is not None and self.options.http_port is not None:
                app = create_app(self.box, self._shape, self.layout.plan.query, self.stream)
                stack.enter_context(closing(WebServer(app, self.options.http_host, self.options.http_port)))
            trimmer = stack.enter_context(closing(Trimmer(self.logs.values())))
            control = ControlPlane(self.clusters, control_topic(self.layout.plan.query), self.name, self.site)
            stack.enter_context(closing(control))
            try:
                self._begin(former)
                control.listen(lambda _, items: _take_trims(items, trimmer), NO_HURRY_MS)
                while True:
                    self._turn()
            except Stopped:
                return EXIT_FENCED if self._is_fenced else EXIT_STOPPED

    # A new life

    def _make_intake(self, former: SourceRestart) -> Intake:
        edges = [edge for edge in self.layout.plan.sources if edge.operator == self.stream]
        origin = Origin("", former.incarnation + 1)
        plan = self.layout.plan
        return Intake(
            *(self.stream, self.spec, self.topic_name, edges, plan.bucket_us, origin, former.place),
            delay_threshold_us=plan.delay_threshold_us,
            boundary_interval_us=plan.boundary_interval_us,
        )

    def _make_box(self) -> PostBox | None:
        """None where nothing is posted and nothing posted is left, or where the disk does not let us."""
        directory = self.spool_directory
        try:
            if self.options.http_port is None and not (directory.is_dir() and any(directory.iterdir())):
                return None
            spool = Spool(directory, self.options.spool_bytes)
        except (OSError, CorruptError) as error:
            _logger.error(
                "the spool in %s cannot be opened, and nothing can be posted here: %s; mend the disk, or move the directory "
                "away with the rows that it holds, and start this source again",
                *(directory, error),
            )
            return None
        return PostBox(self.own, self.topic_name, spool, self._refuse)

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
        self.status.now()
        _logger.info("life %d begins, of records from %s on", former.incarnation + 1, self._positions())

    def _do_again(self, former: SourceRestart) -> None:
        """Give each log what it lacks of the batch that was announced last."""
        place, until = self.intake.place, former.until
        self._ask(lambda: self.topic.begin(list(until), place))
        if self._ask(lambda: self.topic.is_gone(place, until)):
            _logger.error("records of the batch that the former life left are deleted: rows of it may be missing")
            for partition, offset in until.items():
                self.intake.skip(partition, offset)
            place.next_ids.update(former.written)
            return
        found: dict[int, list[Any]] = {partition: [] for partition in until}
        while (more := self.topic.poll_until(until, _WAIT_MS, FRAME_ROWS)) is not None:
            for partition, records in more.items():
                found[partition] += records
            self._wait(0)
        batch = self.intake.take_again(found, now_us())
        for partition, offset in until.items():
            self.intake.skip(partition, offset)
        missing = rows_not_held(batch.frames, former.written)
        for key, next_id in former.written.items():
            if next_id > place.next_ids[key]:
                _logger.error("%s holds %d rows of records that the topic has no more", key, next_id - place.next_ids[key])
                place.next_ids[key] = next_id
        self._append(missing)
        self._settle()

    # Life

    def _turn(self) -> None:
        """One look at the topic, and what follows from it."""
        self._wait(0)
        found = self._poll()
        has_rows = any(found.values())
        if has_rows:
            self._log_batch(found)
        self._look_for_evidence(has_rows)
        now = now_us()
        if has_rows or now >= self._next_boundary_us:
            self._last_boundary_us = now
            self._append(self.intake.heartbeat(now))
        self._settle()
        if now >= self._next_partitions_us:
            self._next_partitions_us = now + LOOK_FOR_PARTITIONS_US
            self._look_for_partitions()

    @property
    def _next_boundary_us(self) -> int:
        """Without records, only evidence moves a boundary on."""
        plan = self.layout.plan
        moves = self.intake.boundary > self.intake.place.promise
        return self._last_boundary_us + (plan.boundary_interval_us if moves else plan.sign_of_life_us)

    @property
    def _look_ms(self) -> int:
        """Shorter than the boundary interval: where rows come steadily, logging them takes the other half of it."""
        return max(self.layout.plan.boundary_interval_us // 2_000, 1)

    def _poll(self) -> dict[int, list[Any]]:
        wait_ms = max(min(self._next_boundary_us, self._next_evidence_us) - now_us(), 0) // 1_000
        try:
            return self.topic.poll(wait_ms, FRAME_ROWS)
        except OffsetOutOfRangeError:
            for partition, offset in self._ask(self.topic.find_again).items():
                self.intake.skip(partition, offset)
            self.evidence.forget()
            return {}

    def _log_batch(self, found: dict[int, list[Any]]) -> None:
        batch = self.intake.take(found, now_us())
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

    def _look_for_evidence(self, has_rows: bool) -> None:
        """Of what could be read: see what is answered by now, and ask again where it is time. What is in the spool is not
        in the topic yet, though it was written."""
        self.evidence.look()
        now = now_us()
        interval_us = self.intake.progress.evidence_interval_us(self.intake.place.partitions)
        # Rows whose boundary waits for evidence need not wait for the next interval as well.
        is_waited_for = has_rows and interval_us <= self.layout.plan.boundary_interval_us
        if now >= self._next_evidence_us or is_waited_for:
            self._next_evidence_us = now + interval_us
            if self.box is None or self.box.is_empty:
                self.evidence.ask(self.topic.assigned, self.intake.ask(now))

    def _look_for_partitions(self) -> None:
        partitions = self._partitions()
        if len(partitions) > len(self.topic.assigned):
            _logger.info("%s has %d partitions now", self.topic_name, len(partitions))
            self._read(partitions)

    def _partitions(self) -> list[int]:
        """Those of the user's topic; none while it is absent."""
        partitions = self._ask(self.topic.partitions)
        self._is_absent = not partitions
        if self._is_absent:
            _logger.warning("topic %s does not exist", self.topic_name)
        return partitions

    def _read(self, partitions: list[int]) -> None:
        """Read all of these partitions from where we are."""
        for partition, offset in self._ask(lambda: self.topic.begin(partitions, self.intake.place)).items():
            self.intake.expect(partition, offset)
        self.intake.progress.watch(partitions, now_us())

    def _send(self, letters: list[DeadLetterRecord]) -> None:
        """Returns when Kafka has the letters, and all that was logged before: on that rests what is late."""
        self._settle()
        for future in [self._send_letter(letter) for letter in letters]:
            while not _is_sent(future):
                self._wait(0)
        self._letters += len(letters)

    def _send_letter(self, letter: DeadLetterRecord) -> Any:
        """Returns its future."""
        topic = dead_letter_topic(self.layout.plan.query)
        return self.letters.send(topic, letter.to_json(), key=self.stream.encode(), partition=0)

    def _refuse(self, record: bytes, reason: str) -> Any:
        """A dead letter of a record that never came into the user's topic; called in the post box's thread."""
        return self._send_letter(DeadLetterRecord(self.stream, self.topic_name, 0, -1, reason, text_of(record)))

    def _append(self, frames: Iterable[tuple[LogId, Frame]]) -> None:
        """They go with the next `_settle`, those of one log together: one request then costs as much as one of them alone."""
        for log, frame in frames:
            self._appended[log].append(frame)

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """The user's topic's answer, however long it takes."""
        while True:
            try:
                answer = question()
                self._is_unanswered = False
                return answer
            except KafkaError as error:
                if not error.retriable:
                    raise
                self._is_unanswered = True
                _logger.warning("%s does not answer: %r", self.topic_name, error)
                self._wait(RETRY_S)

    def _settle(self) -> None:
        """Returns when every log holds all that was appended to it."""
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
                _logger.warning("%s does not take what is written to it: nothing is read until it does", log.id)
            self.status.now()

    def _wait(self, seconds: float) -> None:
        """Stopped, if it is time to stop."""
        if self._stopping.wait(seconds) or self._is_fenced:
            raise Stopped

    def _fenced(self) -> None:
        _logger.error("the logs have another writer: a later life of this source has begun")
        self._is_fenced = True

    def _pass(self, name: str) -> None:
        if os.environ.get("BOREAL_FAILPOINT", "").startswith(name):
            # What is said to be logged here is in the log, and not on its way.
            self._settle()
            failpoint(name)

    # What it says of itself

    def _positions(self) -> dict[int, int]:
        return {number: partition.next_offset for number, partition in sorted(self.intake.place.partitions.items())}

    def _status(self) -> dict[str, Any]:
        box, boundary = self.box, self.intake.place.promise
        return {
            "ready": self._can_read and not self._is_stalled,
            "stream": self.stream,
            "state": self._state(),
            "last_boundary": "end" if boundary >= INFINITY else moment(boundary) if boundary > BEGINNING else None,
            "last_ingest_ms": self._last_ingest_us / 1_000 if self._last_ingest_us else None,
            "rows": self._rows,
            "dlq": self._letters + (box.refused if box is not None else 0),
            "clamped": self._clamped,
            "ahead": self._ahead,
            "idle_partitions": self.intake.progress.idle_partitions,
            "spooled_bytes": box.spooled_bytes if box is not None else 0,
            "spool_full": box is not None and box.is_full,
            "lost_records": self.topic.lost_records,
            "positions": self._positions(),
        }

    @property
    def _can_read(self) -> bool:
        """Whether all that there is of the stream can come to us. Where it cannot, silence does not say that it is idle."""
        is_cut_off = self._is_absent or self._is_unanswered or (self.box is not None and self.box.failure is not None)
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
    """Whether Kafka has a record, or has it soon. KafkaError if it refuses the record."""
    try:
        future.get(timeout=STALLED_S)
    except KafkaTimeoutError:
        return False
    return True


def _take_trims(items: list[ControlItem], trimmer: Trimmer) -> None:
    for item in items:
        if "trim" in item:
            trimmer.take(item)
