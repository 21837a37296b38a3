"""q.latest: for every key its newest row, final or not; compacted by Kafka, for tables and dashboards.

A key whose tentative rows are undone gets its last stable row again, or a tombstone if it never had one. The topic itself
tells a new life all that it has to know: headers of a tentative row hold the stable one behind it.

    next_id   the stable rows before it have had their effect    all
    id        of the key's last stable row                        all, once the key has one
    stable    that row                                            tentative rows, once the key has one
    tentative 1                                                   tentative rows

Nothing keeps an earlier life, frozen with records on their way, from writing them after its successor's, and for a table the
last one counts. So it is put right again: a life that finds an offset taken which it has not written ends, and the next one
puts every key right whose last record is not its stable row of the highest id, whoever wrote that: stable rows of one id are
the same in all lives (I1). Two lives do not end each other for ever, since q.stable fences the older one (R28).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from kafka import TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from formats.changelog import ControlRecord, RowRecords
from formats.client_headers import ID, number
from formats.frame_records import Headers
from services.egress.tail import read_range, stable_rows
from services.hosting.process import EXIT_FENCED
from services.kafka.clusters import FORGET_AFTER_MS, RECORD_BYTES, Cluster, close_producer, silence_producer

NEXT_ID = "next_id"
STABLE = "stable"
TENTATIVE = "tentative"

ON_THE_WAY_BYTES = 256 << 20
"""What may be on its way to Kafka. Beyond that `begin` waits, and `take`, which must not, ends the process. More than q.out's:
an undo sends every key that was tentative at once."""

Row = tuple[int, bytes]
"""A stable row: its id, and what it holds."""

_logger = logging.getLogger("boreal.egress")


class LatestTopic:
    """The one writer of q.latest. `exit` ends the process. Holds the last stable row of every key in memory, and what Kafka has
    not taken yet, up to a bound: the rest is in q.out, from where the next life takes it."""

    def __init__(self, cluster: Cluster, topic: str, out_topic: str, exit: Callable[[int], None]) -> None:
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
        self._consumer = cluster.make_consumer()
        self._end = self._read()
        self._producer = cluster.make_producer()

    def begin(self, lacking_from: int, end: int) -> None:
        """Undo what earlier lives left tentative or wrong, and go on with what q.out holds between these offsets. Returns when
        all but a bounded part is written."""
        self._revoke()
        for row in stable_rows(self._cluster, self._out_topic, lacking_from, end):
            if row.id >= self.next_id:
                with self._changed:
                    self._changed.wait_for(lambda: self._on_the_way < ON_THE_WAY_BYTES or self._is_closed)
                if self._is_closed:
                    return
                self._put_stable({row.key or b"": (row.id, row.value)}, row.id + 1)

    def take(self, given: RowRecords | ControlRecord) -> None:
        """What the client has been given. Returns at once."""
        if self._is_closed:
            return
        if self._on_the_way >= ON_THE_WAY_BYTES:
            waiting = f"{self._on_the_way >> 20} MB wait"
            self._stop(1, f"does not take what q.out does: {waiting}; see that its partition has a leader")
            return
        if isinstance(given, ControlRecord):
            if given.kind == "undo":
                self._revoke()
            return
        assert given.keys is not None, "q.latest is for queries whose output has a key"
        keys: list[bytes] = given.keys.view("binary").to_pylist()
        data: list[bytes] = given.data.view("binary").to_pylist()
        if given.frame.tentative:
            self._put_tentative(dict(zip(keys, data, strict=True)))
        else:
            ids = range(given.frame.first_id, given.frame.first_id + len(data))
            self._put_stable(dict(zip(keys, zip(ids, data, strict=True), strict=True)), ids.stop)

    def look_for_others(self) -> None:
        """To be called now and then, from any thread: where nothing is written, only this finds what another life wrote.
        Waits half a second at most, and an outage is no news."""
        if not self._is_closed:
            with suppress(KafkaError):
                # Counted before they are sent, ours are never more than `_end`.
                if self._consumer.end_offsets([self._partition], FORGET_AFTER_MS)[self._partition] > self._end:
                    self._fence()

    def close(self) -> None:
        with suppress(KafkaTimeoutError):
            self._producer.flush(timeout=2)
        self._is_closed = True
        close_producer(self._producer, 0)
        self._consumer.close()

    def _read(self) -> int:
        """The offset that the next record must get."""
        consumer, partition = self._consumer, self._partition
        consumer.assign([partition])
        first = int(consumer.beginning_offsets([partition])[partition])
        end = int(consumer.end_offsets([partition])[partition])
        for record in read_range(consumer, partition, first, end):
            headers = dict(record.headers)
            next_id = int(headers[NEXT_ID])
            self.next_id = max(self.next_id, next_id)
            stable = headers.get(STABLE) if TENTATIVE in headers else record.value
            # Records had no id once: of two of one key, their next_id then tells the older.
            id_ = int(headers.get(ID, next_id - 1)) if stable is not None else -1
            highest, _ = self._stable.get(record.key, (-1, b""))
            self._unstable.pop(record.key, None)
            if TENTATIVE in headers or id_ < highest:
                self._unstable[record.key] = None
            if stable is not None and id_ >= highest:
                self._stable[record.key] = (id_, stable)
        return end

    def _put_stable(self, rows: dict[bytes, Row], next_id: int) -> None:
        """The rows before `next_id`, as the last of them says: where we die between them, the next life puts all again."""
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
        """Every key as its last stable row has it."""
        for key in self._unstable:
            self._send(key)
        self._unstable.clear()

    def _send(self, key: bytes, tentative: bytes | None = None) -> None:
        """The key's last stable row, or a tentative one in front of it."""
        facts: Headers = [(NEXT_ID, number(self.next_id))]
        id_, stable = self._stable.get(key, (-1, None))
        if stable is not None:
            facts.append((ID, number(id_)))
        if tentative is not None:
            facts += [(TENTATIVE, b"1"), *([(STABLE, stable)] if stable is not None else [])]
        value = stable if tentative is None else tentative
        nbytes = len(key) + len(value or b"") + sum(len(fact) for _, fact in facts) + RECORD_BYTES
        offset = self._end
        self._end += 1
        with self._changed:
            self._on_the_way += nbytes
        future = self._producer.send(self._topic, value, key=key, headers=facts, partition=0)
        future.add_errback(self._fail)
        future.add_callback(lambda metadata: self._note_written(nbytes, offset, metadata.offset))

    def _note_written(self, nbytes: int, offset: int, got: int) -> None:
        with self._changed:
            self._on_the_way -= nbytes
            self._changed.notify()
        # A record that Kafka had already, when it was sent again, may come without its offset.
        if got not in (offset, -1):
            self._fence()

    def _fail(self, error: BaseException) -> None:
        self._stop(1, f"cannot be written: {error!r}")

    def _fence(self) -> None:
        self._stop(EXIT_FENCED, "has another writer: the next life puts right what is wrong")

    def _stop(self, code: int, why: str) -> None:
        """Nothing is written any more, and the process ends."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify()
        silence_producer(self._producer)
        _logger.error("%s %s", self._topic, why)
        self._exit(code)
