"""What writes results for clients: kafka-python's producer, or librdkafka's, which takes a fraction of its time for a record.

Both are idempotent, keep the order, try again for ever, and send nothing after a record that Kafka refuses. All records of a
topic go to its only partition.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
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

_WAIT_S = 0.5
"""How long one call of librdkafka's may wait before it is repeated."""
_UNTIL_COMMIT_MS = 5_000
"""How long librdkafka may wait for more records of a transaction. A commit sends all at once; before it, librdkafka would not
sleep while there is something that it might send."""
_BACK_OFF_S = 0.05
_JOIN_S = 2.0

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
    """A `RowProducer` by librdkafka's, with a thread that serves its callbacks."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: of librdkafka."""
        self._errors = _Errors()
        # Where a record cannot be written for good, those after it must not be: rows in between would be missing for ever. So
        # each of them is refused, too, and what becomes of the last one says it for all.
        manner = {"enable.gapless.guarantee": True, "message.timeout.ms": 0}
        self._producer = _make({**options, **manner}, self._errors)
        self._is_silent = self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="rows", daemon=True)
        self._thread.start()

    def send_all(self, topic: str, records: Iterable[RowRecord], on_stored: OnStored, on_refused: OnRefused) -> None:
        def settle(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is not None:
                on_refused(self._errors.translated(error))
                return
            offset = message.offset()
            on_stored(-1 if offset is None else max(offset, -1))

        *others, last = records
        try:
            for value, key, headers in others:
                self._produce(topic, value, key, headers)
            self._produce(topic, *last, on_delivery=settle)
        except KafkaError as error:
            on_refused(error)

    def silence(self) -> None:
        """Send nothing more; returns at once."""
        self._is_silent = True
        self._producer.purge(in_queue=True, in_flight=False, blocking=False)

    def close(self, within_s: float) -> None:
        """Close it after its records are sent; those that Kafka does not take within so many seconds are lost."""
        self._producer.flush(within_s)
        self._is_closed = True
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        self._producer.purge(blocking=False)

    def _produce(self, topic: str, value: bytes | None, key: bytes | None, headers: Headers, **more: Any) -> None:
        if self._is_silent:
            raise KafkaError("a record before it was refused")
        _produce(self._producer, self._errors, topic, value, key=key, partition=0, headers=headers, **more)

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                self._producer.poll(_WAIT_S)
            except Exception:  # of who is called back: each ends what it must end itself
                _logger.exception("what Kafka says of a record cannot be processed")


class LibrdkafkaTransactions:
    """A `TransactionProducer` by librdkafka's. A commit serves its callbacks."""

    def __init__(self, options: Mapping[str, Any], transactional_id: str, within_s: float) -> None:
        """options: of librdkafka. Returns when the writers before it are fenced. KafkaError if Kafka refuses that, or does not
        answer within so many seconds."""
        self._errors = _Errors()
        manner = {"transactional.id": transactional_id, "linger.ms": _UNTIL_COMMIT_MS}
        self._producer = _make({**options, **manner}, self._errors)
        self._is_closed = False
        self._records: list[tuple[str, bytes | None, dict[str, Any]]] = []
        self._complete(self._producer.init_transactions, within_s)

    def begin_transaction(self) -> None:
        self._records.clear()
        self._begin()

    def send(
        self, topic: str, value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes]], partition: int
    ) -> None:
        facts: dict[str, Any] = {"key": key, "headers": headers, "partition": partition}
        self._records.append((topic, value, facts))
        _produce(self._producer, self._errors, topic, value, **facts)

    def commit_transaction(self) -> None:
        """Returns when the transaction is committed, for which it may be aborted and repeated."""
        while not self._complete(self._producer.commit_transaction):
            while not self._complete(self._producer.abort_transaction):
                pass
            self._begin()
            for topic, value, facts in self._records:
                _produce(self._producer, self._errors, topic, value, **facts)

    def close(self) -> None:
        """Close it; a transaction that is not committed is lost."""
        self._is_closed = True
        self._producer.purge(blocking=False)

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


def _produce(producer: confluent_kafka.Producer, errors: _Errors, topic: str, value: bytes | None, **facts: Any) -> None:
    """Send a record, as soon as there is room. KafkaError if the client, or the transaction, cannot go on."""
    while True:
        try:
            producer.produce(topic, value, **facts)
            return
        except BufferError:
            producer.poll(_BACK_OFF_S)
        except errors.kafka.KafkaException as failure:
            raise errors.translated(failure.args[0]) from failure
