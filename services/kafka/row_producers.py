"""What writes results for clients: kafka-python's producer, or librdkafka's, which takes a fraction of its time for a record.

Both are idempotent, keep the order, try again for ever, and send nothing after a record that Kafka refuses. All records of a
topic go to its only partition.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from math import inf
from operator import length_hint
from typing import TYPE_CHECKING, Any, Protocol

from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError, ProducerFencedError, for_code

if TYPE_CHECKING:
    import confluent_kafka

Headers = Sequence[tuple[str, bytes]]
RowRecord = tuple[bytes | None, bytes | None, Headers]
"""The value of a record, its key, and its headers."""
OnStored = Callable[[int], None]
OnRefused = Callable[[Exception], None]
_OnDelivery = Callable[["confluent_kafka.KafkaError | None", "confluent_kafka.Message"], None]

_WAIT_S = 0.5
"""How long one call of librdkafka's may wait before it is repeated."""
_UNTIL_COMMIT_MS = 5_000
"""How long librdkafka may wait for more records of a transaction. A commit sends all at once; before it, librdkafka would not
sleep while there is something that it might send."""
_BACK_OFF_S = 0.05
_AT_ONCE = 1_000
"""So many records are given to librdkafka at once, while no other thread has the interpreter: for some two milliseconds."""
_JOIN_S = 2.0
_COORDINATOR_TOPIC = "__transaction_state"
"""The topic in which Kafka keeps transactions: any topic would do that is there."""

_logger = logging.getLogger("boreal.kafka")


class RowProducer(Protocol):
    """Writes records for clients. Callbacks come in a thread of the client."""

    def send_all(self, topic: str, records: Iterable[RowRecord], on_stored: OnStored, on_refused: OnRefused) -> None:
        """Send at least one record; returns at once. on_stored: called once Kafka has all of them, with the offset of the last,
        or -1 if it is not known, since the record came twice. on_refused: called if Kafka refuses one of them for good, perhaps
        several times."""
        ...


class TransactionProducer(Protocol):
    """Writes records in transactions, as kafka-python's KafkaProducer does. KafkaError if Kafka refuses it for good;
    ProducerFencedError if a later writer has begun."""

    def begin_transaction(self) -> None: ...
    def send(
        self, topic: str, value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes]], partition: int
    ) -> Any: ...
    def commit_transaction(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Answers:
    """Who is told what becomes of the records of one call of `send_all`."""

    on_stored: OnStored
    on_refused: OnRefused


_WaitingRecords = tuple[list[RowRecord], _Answers]
"""The records of one call, or the last ones of them, and who is told of them."""


class KafkaPythonRows:
    """A `RowProducer` by kafka-python's producer."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer

    def send_all(self, topic: str, records: Iterable[RowRecord], on_stored: OnStored, on_refused: OnRefused) -> None:
        try:
            for value, key, headers in records:
                future = self.producer.send(topic, value, key=key, headers=headers, partition=0)
                future.add_errback(on_refused)
        except MessageSizeTooLargeError as error:
            on_refused(error)
            return
        future.add_callback(lambda metadata: on_stored(metadata.offset))


class LibrdkafkaRows:
    """A `RowProducer` by librdkafka's, with a thread that serves its callbacks.

    While an idempotent producer of librdkafka's has more than five records of a partition on their way, it sends no others of
    it. If it has others, it does not sleep until Kafka answers: where a broker has too little processor time, that takes half a
    core from it. So records of a topic wait here while others of it are on their way.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: of librdkafka."""
        self._errors = _Errors()
        # Where a record cannot be written for good, those after it must not be: rows in between would be missing for ever. So
        # each of them is refused, too, and what becomes of the last one says it for all.
        manner = {"enable.gapless.guarantee": True, "message.timeout.ms": 0}
        self._producer = _make({**options, **manner}, self._errors)
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_WaitingRecords]] = {}
        """What waits, for each topic with records on their way."""
        self._is_silent = self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="rows", daemon=True)
        self._thread.start()

    def send_all(self, topic: str, records: Iterable[RowRecord], on_stored: OnStored, on_refused: OnRefused) -> None:
        given = list(records), _Answers(on_stored, on_refused)
        with self._lock:
            is_first = topic not in self._waiting
            self._waiting.setdefault(topic, deque()).append(given)
        if is_first:
            self._send_next(topic)

    def silence(self) -> None:
        """Send nothing more; returns at once."""
        self._is_silent = True
        self._producer.purge(in_queue=True, in_flight=False, blocking=False)

    def close(self, within_s: float) -> None:
        """Close it after its records are sent; those that Kafka does not take within so many seconds are lost."""
        until = time.monotonic() + within_s
        while self._waiting and (left_s := until - time.monotonic()) > 0:
            self._producer.flush(min(left_s, _WAIT_S))
        self._is_closed = True
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        self._producer.purge(blocking=False)

    def _send_next(self, topic: str) -> None:
        """Nothing of a topic is on its way: send some of what waits."""
        with self._lock:
            if not (waiting := self._waiting[topic]):
                del self._waiting[topic]
                return
            records, answers = _next_of(waiting)
        callbacks: list[_OnDelivery | None] = [None] * len(records)
        for place, own in answers.items():
            callbacks[place] = partial(self._settle, own)
        callbacks[-1] = partial(self._settle_last, topic, answers.get(len(records) - 1))
        try:
            if self._is_silent:
                raise KafkaError("a record before it was refused")
            _produce(self._producer, self._errors, topic, records, callbacks)
        except KafkaError as error:
            self._refuse(topic, answers.values(), error)

    def _settle_last(
        self,
        topic: str,
        answers: _Answers | None,
        error: confluent_kafka.KafkaError | None,
        message: confluent_kafka.Message,
    ) -> None:
        """Kafka has taken all that was on its way of a topic, or has refused some of it."""
        if error is not None:
            self._refuse(topic, [] if answers is None else [answers], self._errors.translated(error))
            return
        self._send_next(topic)
        if answers is not None:
            self._settle(answers, None, message)

    def _settle(
        self, answers: _Answers, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        """Kafka has taken the last record of a call, and so all, or has refused one of them."""
        if error is not None:
            answers.on_refused(self._errors.translated(error))
            return
        offset = message.offset()
        answers.on_stored(-1 if offset is None else max(offset, -1))

    def _refuse(self, topic: str, several: Iterable[_Answers], error: KafkaError) -> None:
        """Records cannot be written, nor can those that wait for them."""
        with self._lock:
            waiting = self._waiting.pop(topic, ())
        for answers in (*several, *(own for _, own in waiting)):
            answers.on_refused(error)

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                self._producer.poll(_WAIT_S)
            except Exception:  # of who is called back: each ends what it must end itself
                _logger.exception("what Kafka says of a record cannot be processed")


def _next_of(waiting: deque[_WaitingRecords]) -> tuple[list[RowRecord], dict[int, _Answers]]:
    """Take the next records out of what waits, at most _AT_ONCE; and who is told of them, by the place of the last record of
    each call."""
    records, last = waiting.popleft()
    if len(records) > _AT_ONCE:
        waiting.appendleft((records[_AT_ONCE:], last))
        return records[:_AT_ONCE], {}
    answers = {len(records) - 1: last}
    while waiting and len(records) + len(waiting[0][0]) <= _AT_ONCE:
        more, last = waiting.popleft()
        records += more
        answers[len(records) - 1] = last
    return records, answers


class LibrdkafkaTransactions:
    """A `TransactionProducer` by librdkafka's. A commit serves its callbacks."""

    def __init__(self, options: Mapping[str, Any], transactional_id: str, within_s: float) -> None:
        """options: of librdkafka. Returns when the writers before it are fenced. KafkaError if Kafka refuses that, or does not
        answer within so many seconds."""
        self._errors = _Errors()
        manner = {"transactional.id": transactional_id, "linger.ms": _UNTIL_COMMIT_MS}
        self._producer = _make({**options, **manner}, self._errors)
        self._is_closed = False
        self._records: dict[str, list[RowRecord]] = {}
        self._connect()
        self._complete(self._producer.init_transactions, within_s)

    def begin_transaction(self) -> None:
        self._records.clear()
        self._begin()

    def send(
        self, topic: str, value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes]], partition: int
    ) -> None:
        """Send a record with the next commit, to the topic's only partition."""
        self._records.setdefault(topic, []).append((value, key, headers))

    def commit_transaction(self) -> None:
        """Returns when the transaction is committed, for which it may be aborted and repeated."""
        self._produce_all()
        while not self._complete(self._producer.commit_transaction):
            while not self._complete(self._producer.abort_transaction):
                pass
            self._begin()
            self._produce_all()

    def close(self) -> None:
        """Close it; a transaction that is not committed is lost."""
        self._is_closed = True
        self._producer.purge(blocking=False)

    def _connect(self) -> None:
        """Wait for a connection to a broker: librdkafka looks for the coordinator at once, and if there is none by then, again
        only half a second later. Clients wait for the first commit of an egress that begins."""
        with suppress(self._errors.kafka.KafkaException):
            for _ in range(2):  # the first answer may come by the bootstrap address, whose connection is given up after it
                self._producer.list_topics(_COORDINATOR_TOPIC, _WAIT_S)

    def _produce_all(self) -> None:
        for topic, records in self._records.items():
            _produce(self._producer, self._errors, topic, records, [None] * len(records))

    def _begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except self._errors.kafka.KafkaException as failure:
            raise self._errors.translated(failure.args[0]) from failure

    def _complete(self, call: Callable[[float], None], within_s: float = inf) -> bool:
        """Call this until it succeeds. False: the transaction has to be aborted. KafkaError if it can never succeed, or does
        not within so many seconds."""
        until = time.monotonic() + within_s
        while True:
            try:
                call(_WAIT_S)
                return True
            except self._errors.kafka.KafkaException as failure:
                error = failure.args[0]
                if error.txn_requires_abort():
                    return False
                if not error.retriable() or self._is_closed or time.monotonic() >= until:
                    raise self._errors.translated(error) from failure
                time.sleep(_BACK_OFF_S)


class _Errors:
    """The errors that kafka-python has for those of librdkafka."""

    def __init__(self) -> None:
        import confluent_kafka

        self.kafka = confluent_kafka
        self._fatal: KafkaError | None = None

    def note(self, error: confluent_kafka.KafkaError) -> None:
        """Take what librdkafka says beside its answers: all that follows a fatal error fails for it."""
        if error.fatal() and self._fatal is None:
            self._fatal = self.translated(error)

    def translated(self, error: confluent_kafka.KafkaError) -> KafkaError:
        kinds, code = self.kafka.KafkaError, error.code()
        if code in (kinds._FENCED, kinds.PRODUCER_FENCED, kinds.INVALID_PRODUCER_EPOCH):
            return ProducerFencedError(error.str())
        if self._fatal is not None:
            return self._fatal
        found: KafkaError = for_code(code)(error.str()) if code > 0 else KafkaError(error.str())
        return found


def _make(options: Mapping[str, Any], errors: _Errors) -> confluent_kafka.Producer:
    return errors.kafka.Producer(
        {
            **options,
            "enable.idempotence": True,
            "acks": "all",
            "allow.auto.create.topics": False,
            "queue.buffering.max.messages": 0,  # those who send bound what is on its way, in bytes
            "error_cb": errors.note,
        }
    )


def _produce(
    producer: confluent_kafka.Producer,
    errors: _Errors,
    topic: str,
    records: Sequence[RowRecord],
    on_delivery: Sequence[_OnDelivery | None],
) -> None:
    """Send records, as soon as there is room. KafkaError if the client, or the transaction, cannot go on.

    No Python runs between two calls of librdkafka's: if another thread took the interpreter there, the first records would go
    alone.
    """
    n_given = 0
    while n_given < len(records):
        these = slice(n_given, n_given + _AT_ONCE)
        values, keys, headers = zip(*records[these], strict=True)
        rest = iter(values)
        calls = map(
            producer.produce, repeat(topic), rest, keys, repeat(0), on_delivery[these], repeat(None), repeat(0), headers
        )
        try:
            deque(calls, maxlen=0)
            n_given += len(values)
        except BufferError:
            n_given += len(values) - length_hint(rest) - 1
            producer.poll(_BACK_OFF_S)
        except errors.kafka.KafkaException as failure:
            raise errors.translated(failure.args[0]) from failure
