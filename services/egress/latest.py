"""q.latest: for every key its newest row, final or not; compacted by Kafka, for tables and dashboards.

A key whose tentative rows are undone gets its last stable row again, or a tombstone if it never had one. The topic itself
tells a new life all that it has to know: headers of a tentative row hold the stable one behind it.

    next_id   the stable rows before it have had their effect    all
    stable    the key's last stable row, if it ever had one       tentative rows
    tentative 1                                                   tentative rows
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from services.clusters import RECORD_BYTES, Cluster, end_producer
from services.egress.headers import Headers, number
from services.egress.tail import read_range, stable_rows
from services.records import Control, Rows

NEXT_ID = "next_id"
STABLE = "stable"
TENTATIVE = "tentative"

ON_THE_WAY_BYTES = 256 << 20
"""What may be on its way to Kafka. Beyond that `begin` waits, and `take`, which must not, ends the process. More than q.out's:
an undo sends every key that was tentative at once."""

_logger = logging.getLogger("boreal.egress")


class LatestTopic:
    """The one writer of q.latest. `exit` ends the process. Holds the last stable row of every key in memory, and what Kafka has
    not taken yet, up to a bound: the rest is in q.out, from where the next life takes it."""

    def __init__(self, cluster: Cluster, topic: str, out_topic: str, exit: Callable[[int], None]) -> None:
        self._cluster = cluster
        self._topic = topic
        self._out_topic = out_topic
        self._exit = exit
        self._stable: dict[bytes, bytes] = {}
        self._tentative: dict[bytes, None] = {}
        self.next_id = 0
        self._on_the_way = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._read()
        self._producer = cluster.producer()

    def begin(self, lacking_from: int, end: int) -> None:
        """Undo what an earlier life left tentative, and go on with what q.out holds between these offsets. Returns when all but
        a bounded part is written."""
        self._revoke()
        for row in stable_rows(self._cluster, self._out_topic, lacking_from, end):
            if row.id >= self.next_id:
                with self._changed:
                    self._changed.wait_for(lambda: self._on_the_way < ON_THE_WAY_BYTES or self._is_closed)
                if self._is_closed:
                    return
                self._put_stable({row.key or b"": row.value}, row.id + 1)

    def take(self, given: Rows | Control) -> None:
        """What the client has been given. Returns at once."""
        if self._is_closed:
            return
        if self._on_the_way >= ON_THE_WAY_BYTES:
            self._stop(f"does not take what q.out does: {self._on_the_way >> 20} MB wait; see that its partition has a leader")
            return
        if isinstance(given, Control):
            if given.kind == "undo":
                self._revoke()
            return
        assert given.keys is not None, "q.latest is for queries whose output has a key"
        newest: dict[bytes, bytes] = dict(
            zip(given.keys.view("binary").to_pylist(), given.data.view("binary").to_pylist(), strict=True)
        )
        if given.frame.tentative:
            self._put_tentative(newest)
        else:
            self._put_stable(newest, given.frame.first_id + given.frame.batch.num_rows)

    def close(self) -> None:
        with suppress(KafkaTimeoutError):
            self._producer.flush(timeout=2)
        self._is_closed = True
        end_producer(self._producer, 0)

    def _read(self) -> None:
        partition = TopicPartition(self._topic, 0)
        with closing(self._cluster.consumer()) as consumer:
            consumer.assign([partition])
            first, end = consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
            for record in read_range(consumer, partition, first, end):
                headers = dict(record.headers)
                self.next_id = max(self.next_id, int(headers[NEXT_ID]))
                self._tentative.pop(record.key, None)
                self._stable.pop(record.key, None)
                if TENTATIVE in headers:
                    self._tentative[record.key] = None
                stable = headers.get(STABLE) if TENTATIVE in headers else record.value
                if stable is not None:
                    self._stable[record.key] = stable

    def _put_stable(self, rows: dict[bytes, bytes], next_id: int) -> None:
        """The rows before `next_id`, as the last of them says: where we die between them, the next life puts all again."""
        self._stable |= rows
        *others, last = rows.items()
        for key, value in others:
            self._send(key, value)
        self.next_id = next_id
        self._send(*last)

    def _put_tentative(self, rows: dict[bytes, bytes]) -> None:
        for key, value in rows.items():
            self._tentative[key] = None
            stable = self._stable.get(key)
            self._send(key, value, [(TENTATIVE, b"1"), *([(STABLE, stable)] if stable is not None else [])])

    def _revoke(self) -> None:
        """Every key as it was before its tentative rows."""
        for key in self._tentative:
            self._send(key, self._stable.get(key))
        self._tentative.clear()

    def _send(self, key: bytes, value: bytes | None, headers: Headers | None = None) -> None:
        facts: Headers = [(NEXT_ID, number(self.next_id)), *(headers or [])]
        nbytes = len(key) + len(value or b"") + sum(len(fact) for _, fact in facts) + RECORD_BYTES
        with self._changed:
            self._on_the_way += nbytes
        future = self._producer.send(self._topic, value, key=key, headers=facts, partition=0)
        future.add_errback(self._fail)
        future.add_callback(lambda metadata: self._note_written(nbytes))

    def _note_written(self, nbytes: int) -> None:
        with self._changed:
            self._on_the_way -= nbytes
            self._changed.notify()

    def _fail(self, error: BaseException) -> None:
        self._stop(f"cannot be written: {error!r}")

    def _stop(self, why: str) -> None:
        """Nothing is written any more, and the process ends."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify()
        _logger.error("%s %s", self._topic, why)
        self._exit(1)
