"""q.out: the whole corrected stream, one JSON record for each row and each control frame (contract: changes.jsonl).

This is the outlet of the egress's instance: each frame becomes records of one changelog, is sent at once, and counts as
delivered when Kafka has it. Only then do its stable rows go to q.stable, and its effect to q.latest.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from boreal.model.frames import Boundary, Data, Frame, LogId
from boreal.model.schema import TRACEPARENT
from formats.changelog import Changelog, ControlRecord, RowRecords
from formats.client_headers import ANCHOR, ID, INCARNATION, PLACE, STABLE_ID, VERSION, encode_anchor, encode_place, number
from formats.frame_records import Headers
from formats.json_text import encoded
from logs.egress_restart import OutTail
from services.egress.delays import RecentDelays
from services.egress.latest import LatestTopic
from services.egress.stable import StableTopic
from services.egress.tail import StableRow
from services.hosting.failpoints import failpoint
from services.hosting.process import EXIT_FENCED, now_us
from services.kafka.clusters import RECORD_BYTES
from services.storage.log_clients import AppendRefusedError, SiteClients

_logger = logging.getLogger("boreal.egress")

ON_THE_WAY_BYTES = 64 << 20
"""The most that may be on its way to Kafka before `append` waits."""
CLOSE_WITHIN_S = 2.0
"""How long `close` waits for Kafka."""


@dataclass(slots=True)
class _FrameRecords:
    """The records of one frame."""

    frame: int  # the frame's number, from 1
    offset: int  # that the first record must get
    count: int
    nbytes: int
    emitted_us: int  # when the frame was appended
    given: RowRecords | ControlRecord | None  # what the records say; None once they are delivered
    stable: list[StableRow]  # its stable rows; empty once they are delivered
    last_id: int | None  # of the last stable row; None if there is none
    is_given: bool = False  # whether Kafka has all records

    @property
    def end(self) -> int:
        return self.offset + self.count


@dataclass(frozen=True, slots=True)
class RowTopics:
    """The topics that an egress makes of its q.out."""

    stable: StableTopic | None = None
    """q.stable; None if another egress writes it."""
    latest: LatestTopic | None = None
    """q.latest; None if the query has none, or another egress writes it."""
    debezium: LatestTopic | None = None
    """The same of q.debezium."""
    records: StableTopic | None = None
    """The same of q.records."""

    @property
    def finals(self) -> list[StableTopic]:
        """Those of them that hold the stable rows."""
        return [topic for topic in (self.stable, self.records) if topic is not None]

    @property
    def tables(self) -> list[LatestTopic]:
        """Those of them that show the newest row of each key."""
        return [topic for topic in (self.latest, self.debezium) if topic is not None]

    @property
    def next_id(self) -> int | None:
        """The first stable row that one of them lacks; None if there are none."""
        finals = [topic.next_id for topic in self.finals]
        return min((*finals, *(topic.next_id for topic in self.tables)), default=None)

    def begin(self, incarnation: int, tail: OutTail) -> None:
        """Write what an earlier incarnation has left out, before anything is sent to q.out."""
        for final in self.finals:
            final.begin(incarnation, tail.lacking_from, tail.end)
        for table in self.tables:
            table.begin(tail.lacking_from, tail.end)

    def close(self) -> None:
        for final in self.finals:
            final.close()
        for table in self.tables:
            table.close()


@dataclass(frozen=True, slots=True)
class OutWriter:
    """An incarnation of an egress, as the writer of its q.out."""

    incarnation: int
    """Its number."""
    end: int
    """The offset that its first record must get, for there is no other writer."""
    version: int | None = None
    """The version of the query, for the headers; None: the query has not evolved."""


class OutTopic:
    """One egress's q.out. `replica()`: the replica whose stream is read now; `exit(code)` ends the process.

    `on_change()` is called when clients begin to have tentative rows, and when they have none any more.

    `tentative_since_us`, `cause`: since when, in microseconds, the client has tentative rows, and why; None and "" if it has
    none. `latency`: how long Kafka takes to confirm a frame.
    """

    def __init__(
        self,
        clients: SiteClients,
        topic: str,
        changelog: Changelog,
        writer: OutWriter,
        rows: RowTopics,
        delays: RecentDelays,
        replica: Callable[[], str],
        exit: Callable[[int], None],
    ) -> None:
        self.changelog = changelog
        self.appended = 0
        self.tentative_since_us: int | None = None
        self.cause = ""
        self.latency = RecentDelays(0)
        self._topic = topic
        self._incarnation = (INCARNATION, number(writer.incarnation))
        self._version = number(writer.version) if writer.version is not None else None
        self._end = writer.end
        self._replica = replica
        self._stable, self._records, self._tables = rows.stable, rows.records, rows.tables
        self._delays = delays
        self._exit = exit
        self._sent: deque[_FrameRecords] = deque()
        self._on_the_way = 0
        self._changed = threading.Condition()
        self._has_begun = self._is_closed = False
        self.on_change: Callable[[], None] = lambda: None
        self._clients = clients

    def append(self, log: LogId, frame: Frame) -> None:
        """Send a frame's records. Returns at once, unless ON_THE_WAY_BYTES wait for Kafka, or the first frame does."""
        self._notice_refusal()
        emitted_us = now_us()
        self.appended += 1
        given = self.changelog.take(frame, emitted_us, self._replica())
        failpoint("egress.before_out")
        if isinstance(given, RowRecords):
            self._send_rows(given, emitted_us)
        elif given is not None:
            self._send_control(given, frame, emitted_us)
        self._note_tentative(frame, emitted_us)

    @property
    def may_wait(self) -> bool:
        """Whether the next append may wait for Kafka: the second frame does until Kafka has the first."""
        return self._on_the_way >= ON_THE_WAY_BYTES // 2 or not self._may_send

    def end_version(self, log: LogId, frame: Boundary, next_version: int) -> None:
        """Send the last frame of a version. Its anchor belongs to the next one, and its records say so; nothing may follow."""
        self._version = number(next_version)
        self.append(log, frame)

    @property
    def confirmed(self) -> int:
        """How many frames, counted from the first, Kafka has in q.out and, if this egress writes it, in q.stable."""
        self._notice_refusal()
        with self._changed:
            while self._sent and self._is_safe(self._sent[0]):
                self._sent.popleft()
            return self._sent[0].frame - 1 if self._sent else self.appended

    def close(self) -> None:
        """Stop when Kafka has all records, or after CLOSE_WITHIN_S."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or all(sent.is_given for sent in self._sent), CLOSE_WITHIN_S)
        self._is_closed = True

    # Sending

    @property
    def _common(self) -> Headers:
        """The headers of every record."""
        return [self._incarnation] if self._version is None else [self._incarnation, (VERSION, self._version)]

    def _send_rows(self, rows: RowRecords, emitted_us: int) -> None:
        frame = rows.frame
        records = encoded(rows.records)
        keys: Sequence[bytes | None] = [None] * len(records) if rows.keys is None else encoded(rows.keys)
        stable: list[StableRow] = []
        traces = rows.traces or [None] * len(records)
        if frame.tentative:
            headers: list[Headers] = [self._common] * len(records)
        else:
            ids = range(frame.first_id, frame.first_id + len(records))
            common = self._common
            headers = [[*common, (ID, number(id_))] for id_ in ids]
            if self._stable is not None:
                rest = zip(ids, keys, encoded(rows.data), traces, strict=True)
                stable = [StableRow(id_, key, value, frame.epoch, trace, self._version) for id_, key, value, trace in rest]
        if any(traces):
            traced = zip(headers, traces, strict=True)
            headers = [own if trace is None else [*own, (TRACEPARENT, trace)] for own, trace in traced]
        self._send(records, keys, headers, emitted_us, rows, stable)

    def _send_control(self, control: ControlRecord, frame: Frame, emitted_us: int) -> None:
        headers = self._common
        if isinstance(frame, Boundary) and frame.anchor is not None:
            headers += [(ANCHOR, encode_anchor(frame.anchor)), (PLACE, encode_place(self.changelog.place))]
            if self._stable is not None:
                headers.append((STABLE_ID, number(self._stable.next_id)))
        self._send([control.record.encode()], [None], [headers], emitted_us, control, [])

    def _send(
        self,
        records: list[bytes],
        keys: Sequence[bytes | None],
        headers: list[Headers],
        emitted_us: int,
        given: RowRecords | ControlRecord,
        stable: list[StableRow],
    ) -> None:
        last_id = stable[-1].id if stable else None
        nbytes = sum(map(len, records)) + len(records) * RECORD_BYTES
        sent = _FrameRecords(self.appended, self._end, len(records), nbytes, emitted_us, given, stable, last_id)
        self._end = sent.end
        with self._changed:
            while not self._changed.wait_for(lambda: self._may_send or self._is_closed, 1):
                self._notice_refusal()
            self._on_the_way += sent.nbytes
            self._sent.append(sent)
        if self._is_closed:
            return  # rows would follow those that clients were not given
        rows = zip(records, keys, headers, strict=True)
        self._clients.row_producer.send_all(self._topic, rows, lambda offset: self._hear(sent, offset), self._refuse)

    @property
    def _may_send(self) -> bool:
        """Whether there is room. Nothing follows the first frame before Kafka has it, at the offset that it must get: of two
        egresses that begin at the same moment, with the same incarnation, readers take no more than that of the one that is too
        late."""
        return self._on_the_way < ON_THE_WAY_BYTES and (self._has_begun or not self._sent)

    # Acknowledgements, in the producer's thread

    def _hear(self, sent: _FrameRecords, offset: int) -> None:
        """As `_give`; Kafka's client would hide an exception, so it is logged here, and ends the process."""
        try:
            self._give(sent, offset)
        except Exception as error:
            _logger.exception("rows that %s has cannot be passed to the other topics", self._topic)
            self._stop(1, f"cannot be passed on: {error!r}")

    def _give(self, sent: _FrameRecords, offset: int) -> None:
        """Kafka has a frame's last record, and so all before it: deliver its rows to the other topics."""
        if self._is_closed:
            return
        # If a retry finds that Kafka had the record already, the acknowledgement may lack its offset.
        if offset not in (sent.end - 1, -1):
            self._stop(EXIT_FENCED, "has another writer: a later incarnation of this egress has begun")
            return
        given_us = now_us()
        took_us = given_us - sent.emitted_us
        self.latency.add(given_us, np.array([took_us]))
        # A frame stays queued until q.stable has its rows, which may take long: so its rows are released here.
        given, stable, sent.given, sent.stable = sent.given, sent.stable, None, []
        if isinstance(given, RowRecords):
            self._delays.add(given_us, given.delays_us + took_us)
        if stable and self._stable is not None:
            self._stable.put(stable, sent.offset)
        if stable and self._records is not None:
            self._records.put(stable, sent.offset)
        if self._tables and given is not None:
            failpoint("egress.between_out_and_latest")
            for table in self._tables:
                table.take(given)
        with self._changed:
            sent.is_given = self._has_begun = True
            self._on_the_way -= sent.nbytes
            self._changed.notify()

    def _refuse(self, error: Exception) -> None:
        self._clients.refuse_rows(AppendRefusedError(self._topic, self._topic, error))
        self._stop(1, f"cannot be written: {error!r}")

    def _notice_refusal(self) -> None:
        """What another role of the process had refused takes the clients with it."""
        if self._clients.row_refusal is not None:
            self._stop(1, f"cannot be written any more: {self._clients.row_refusal}")

    def _stop(self, code: int, why: str) -> None:
        """Stop delivery, and end the process."""
        if not self._is_closed:
            self._is_closed = True
            _logger.error("%s %s", self._topic, why)
            self._exit(code)

    def _is_safe(self, sent: _FrameRecords) -> bool:
        if not sent.is_given or sent.last_id is None or self._stable is None:
            return sent.is_given
        return sent.last_id < self._stable.next_id

    def _note_tentative(self, frame: Frame, emitted_us: int) -> None:
        was_tentative = self.tentative_since_us is not None
        if not self.changelog.place.outstanding:
            self.tentative_since_us, self.cause = None, ""
        elif isinstance(frame, Data):
            self.tentative_since_us, self.cause = self.tentative_since_us or emitted_us, frame.cause
        if was_tentative != (self.tentative_since_us is not None):
            self.on_change()
