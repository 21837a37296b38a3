"""q.latest: the newest row of every key, stable or tentative; compacted by Kafka, for tables and dashboards.

q.debezium is the same, with each record as an envelope of Debezium (formats.debezium). There a deletion has a record of its own
before its tombstone, with the same headers.

A key whose tentative rows are undone gets its last stable row again, or a tombstone if it never had one. A restart reads all
that it needs from the topic: the headers of a tentative row hold the key's last stable row.

    header     meaning                                            records that have it
    next_id    the stable rows before it have had their effect    all
    id         of the key's last stable row                       all, once the key has one
    stable     that row                                           tentative rows, once the key has one
    tentative  1                                                  tentative rows

An earlier incarnation that was frozen with records on their way may write them after those of its successor, and a table shows
the last record. This is repaired: an incarnation that finds a record of another writer ends, and the next one corrects every
key whose last record is not its stable row of the highest id. It does not matter who wrote that row: stable rows of one id are
the same in all incarnations (I1). Two incarnations do not end each other for ever, since q.stable fences the older one (R28).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress

from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError

from formats.changelog import ControlRecord, RowRecords
from formats.client_headers import ID, number
from formats.debezium import DebeziumForm
from formats.frame_records import Headers
from formats.json_text import encoded
from services.egress.tail import stable_rows
from services.hosting.process import EXIT_FENCED, now_us
from services.kafka.clusters import FORGET_AFTER_MS, RECORD_BYTES, Cluster, close_producer, silence_producer
from services.kafka.reading import read_range

NEXT_ID = "next_id"
STABLE = "stable"
TENTATIVE = "tentative"

ON_THE_WAY_BYTES = 256 << 20
"""The most that may be on its way to Kafka. Above it `begin` waits, and `take`, which must not wait, ends the process. It is
more than for q.out, because an undo sends all tentative keys at once."""

CLOSE_WITHIN_S = 2.0
"""How long `close` waits for Kafka."""

Row = tuple[int, bytes]
"""A stable row: its id, and its JSON text."""

_logger = logging.getLogger("boreal.egress")


class LatestTopic:
    """The only writer of q.latest, or of q.debezium. `exit(code)` ends the process. Holds the last stable row of every key in
    memory (of q.debezium also the row that is shown), and records that Kafka has not confirmed, up to a bound: above it the
    process ends, and the next incarnation reads q.out."""

    def __init__(
        self, cluster: Cluster, topic: str, out_topic: str, exit: Callable[[int], None], form: DebeziumForm | None = None
    ) -> None:
        """form: of the records; None: a row as it is."""
        self._form = form
        self._shown: dict[bytes, bytes] = {}  # the row that a reader of envelopes has, by key
        self._cluster = cluster
        self._topic = topic
        self._partition = TopicPartition(topic, 0)
        self._out_topic = out_topic
        self._exit = exit
        self._stable: dict[bytes, Row] = {}
        self._unstable: dict[bytes, None] = {}
        self.next_id = 0
        self._on_the_way = 0
        self._changed = threading.Condition()
        self._is_closed = False
        with ExitStack() as made:
            self._consumer = cluster.make_consumer()
            made.callback(self._consumer.close)
            self._end = self._read()
            self._producer = cluster.make_row_producer()
            made.pop_all()

    def begin(self, lacking_from: int, end: int) -> None:
        """Correct the keys that earlier incarnations left tentative or wrong, then write the stable rows that q.out holds
        between these offsets. Returns when all but a bounded part is written."""
        self._revoke()
        for row in stable_rows(self._cluster, self._out_topic, lacking_from, end):
            if row.id >= self.next_id:
                with self._changed:
                    self._changed.wait_for(lambda: self._on_the_way < ON_THE_WAY_BYTES or self._is_closed)
                if self._is_closed:
                    return
                value = row.value if self._form is None else self._form.of_version(row.version_number, row.value)
                self._put_stable({row.key or b"": (row.id, value)}, row.id + 1)

    def take(self, given: RowRecords | ControlRecord) -> None:
        """Write the effect of rows or a control record that q.out has. Returns at once."""
        if self._is_closed:
            return
        if self._on_the_way >= ON_THE_WAY_BYTES:
            waiting = f"{self._on_the_way >> 20} MB wait"
            self._stop(1, f"is too slow for q.out: {waiting}; check that its partition has a leader")
            return
        if isinstance(given, ControlRecord):
            if given.kind == "undo":
                self._revoke()
            return
        assert given.keys is not None, "q.latest is for queries whose output has a key"
        keys, data = encoded(given.keys), encoded(given.data)
        if given.frame.tentative:
            self._put_tentative(dict(zip(keys, data, strict=True)))
        else:
            ids = range(given.frame.first_id, given.frame.first_id + len(data))
            self._put_stable(dict(zip(keys, zip(ids, data, strict=True), strict=True)), ids.stop)

    def look_for_others(self) -> None:
        """Check for records of another writer. To be called regularly, from any thread: while this incarnation writes nothing,
        no other check finds them. Waits at most half a second; an outage is ignored."""
        if not self._is_closed:
            with suppress(KafkaError):
                # Our own records never exceed `_end`, because they are counted before they are sent.
                if self._consumer.end_offsets([self._partition], FORGET_AFTER_MS)[self._partition] > self._end:
                    self._fence()

    def close(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._on_the_way, CLOSE_WITHIN_S)
        self._is_closed = True  # before the producer drops what is left: that is no failure
        close_producer(self._producer, 0)
        self._consumer.close()

    def _read(self) -> int:
        """Read the whole topic; returns the offset that the next record must get."""
        consumer, partition = self._consumer, self._partition
        consumer.assign([partition])
        first = int(consumer.beginning_offsets([partition])[partition])
        end = int(consumer.end_offsets([partition])[partition])
        for record in read_range(consumer, partition, first, end):
            headers = dict(record.headers)
            if NEXT_ID not in headers:
                self._note_foreign(record)
                continue
            next_id = int(headers[NEXT_ID])
            self.next_id = max(self.next_id, next_id)
            key, value, stable = record.key, record.value, headers.get(STABLE)
            if self._form is not None:
                key, value = self._form.plain_key(key), self._form.row(record.value)
                self._show(key, value)
                stable = self._form.as_in(record.value, stable) if stable is not None else None
            if TENTATIVE not in headers:
                stable = value
            # Old records have no id: for two of one key, next_id tells which is older.
            id_ = int(headers.get(ID, next_id - 1)) if stable is not None else -1
            highest, _ = self._stable.get(key, (-1, b""))
            self._unstable.pop(key, None)
            if TENTATIVE in headers or id_ < highest:
                self._unstable[key] = None
            if stable is not None and id_ >= highest:
                self._stable[key] = (id_, stable)
        return end

    def _note_foreign(self, record: ConsumerRecord) -> None:
        """A record that no egress has written, such as a key that was deleted by hand. What it did to its key is corrected; in
        q.debezium with the key's next row."""
        _logger.warning("%s: record %d is of no egress, and counts as none", self._topic, record.offset)
        if self._form is None and record.key is not None:
            self._unstable[record.key] = None

    def _put_stable(self, rows: dict[bytes, Row], next_id: int) -> None:
        """Write the rows before `next_id`. Only the last record carries the new next_id: if we die before it, the next
        incarnation writes all of them again."""
        self._stable |= rows
        *others, last = rows
        for key in others:
            self._send(key)
        self.next_id = next_id
        self._send(last)

    def _put_tentative(self, rows: dict[bytes, bytes]) -> None:
        for key, value in rows.items():
            self._unstable[key] = None
            self._send(key, value)

    def _revoke(self) -> None:
        """Write the last stable row of every key that is tentative or wrong."""
        for key in self._unstable:
            self._send(key)
        self._unstable.clear()

    def _send(self, key: bytes, tentative: bytes | None = None) -> None:
        """Write the key's last stable row, or a tentative row with the stable one in its headers."""
        facts: Headers = [(NEXT_ID, number(self.next_id))]
        id_, stable = self._stable.get(key, (-1, None))
        if stable is not None:
            facts.append((ID, number(id_)))
        if tentative is not None:
            facts += [(TENTATIVE, b"1"), *([(STABLE, stable)] if stable is not None else [])]
        value = stable if tentative is None else tentative
        for record_key, record_value in self._records(key, value, id_, tentative is not None):
            nbytes = len(record_key) + len(record_value or b"") + sum(len(fact) for _, fact in facts) + RECORD_BYTES
            self._send_record(record_key, record_value, facts, nbytes)

    def _records(self, key: bytes, row: bytes | None, id_: int, is_tentative: bool) -> list[tuple[bytes, bytes | None]]:
        """The records by which a key gets a row, or has none any more."""
        if self._form is None:
            return [(key, row)]
        before = self._shown.get(key)
        self._show(key, row)
        record_key = self._form.key(key)
        found: list[tuple[bytes, bytes | None]] = []
        if before is not None or row is not None:
            value = self._form.value(before, row, id_ if id_ >= 0 else None, is_tentative, now_us() // 1_000)
            found.append((record_key, value))
        return found if row is not None else [*found, (record_key, None)]

    def _show(self, key: bytes, row: bytes | None) -> None:
        if row is not None:
            self._shown[key] = row
        else:
            self._shown.pop(key, None)

    def _send_record(self, key: bytes, value: bytes | None, facts: Headers, nbytes: int) -> None:
        offset = self._end
        self._end += 1
        with self._changed:
            self._on_the_way += nbytes
        self._producer.send_all(
            self._topic, [(value, key, facts)], lambda got: self._note_written(nbytes, offset, got), self._fail
        )

    def _note_written(self, nbytes: int, offset: int, got: int) -> None:
        with self._changed:
            self._on_the_way -= nbytes
            self._changed.notify()
        # If a retry finds that Kafka had the record already, the acknowledgement may lack its offset.
        if got not in (offset, -1):
            self._fence()

    def _fail(self, error: BaseException) -> None:
        self._stop(1, f"cannot be written: {error!r}")

    def _fence(self) -> None:
        self._stop(EXIT_FENCED, "has another writer: the next incarnation corrects it")

    def _stop(self, code: int, why: str) -> None:
        """Stop writing, and end the process."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify()
        silence_producer(self._producer)
        _logger.error("%s %s", self._topic, why)
        self._exit(code)
