"""Clients of a simulated Kafka: kafka-python's, as far as `services` uses them, with the network in between.

A request takes time, and so does its answer. Either may be lost: then the client waits for its timeout, and repeats the
request. A request that is under way when its process dies still arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError
from kafka.structs import OffsetAndTimestamp

from role_simulation.broker import Broker, Headers, Sent
from role_simulation.scheduler import SimulatedProcess, scheduler
from role_simulation.threads import Condition, Thread, now_us
from services.kafka.clusters import BOOTSTRAP_TIMEOUT_MS, FOR_EVER_MS, FORGET_AFTER_MS, LINGER_MS, REQUEST_TIMEOUT_MS
from services.kafka.row_producers import KafkaPythonRows
from services.kafka.topics import CLOCK

RETRY_US = 50_000
"""How soon a request is repeated that could not be sent."""
BATCH_RECORDS = 500
"""The most records of a request."""
_ANSWERED_WITHIN_MS = 30_000

Answer = tuple[int, int] | Exception
"""What a broker says of a record: its offset, or -1, and its time stamp in milliseconds; or why it refuses it."""

_writers = count(1)


class BrokerLink:
    """The way from one process to one site's broker, and how it fails."""

    def __init__(self, broker: Broker, process: SimulatedProcess) -> None:
        self.broker = broker
        self.process = process
        self.usual_us = 2_000
        """How long a request, or an answer, is under way, at most."""
        self.late = 0.0
        """How many of them take much longer."""
        self.late_us = 500_000
        """How long these take, at most."""
        self.lost = 0.0
        """How many of them are lost."""
        self.cut: Collection[str] = ()
        """What cannot pass: 'read', 'write'."""

    def passes(self, kind: str) -> bool:
        """Whether anything of this kind passes now."""
        return self.broker.is_up and kind not in self.cut

    def loses(self) -> bool:
        return scheduler().rng.random() < self.lost

    def way_us(self) -> int:
        """How long the next request, or answer, is under way."""
        rng = scheduler().rng
        return rng.randrange(self.late_us if rng.random() < self.late else self.usual_us)

    def ask(self, kind: str, question: Callable[[], Any], within_ms: int) -> Any:
        """The broker's answer to a question. KafkaTimeoutError if there is none in time."""
        run = scheduler()
        deadline = run.now_us + within_ms * 1_000
        while run.now_us < deadline:
            if self.passes(kind) and not self.loses():
                run.sleep(self.way_us())
                answer = question()
                run.sleep(self.way_us())
                if self.passes(kind):
                    return answer
            run.sleep(RETRY_US)
        raise KafkaTimeoutError(f"{self.broker.site} does not answer {self.process.name}")


class _Assigned:
    """A partition that a consumer reads."""

    def __init__(self) -> None:
        self.position: SimpleNamespace | None = None
        self.highwater: int | None = None


class Consumer:
    """As `kafka.KafkaConsumer`, for partitions that are assigned."""

    def __init__(self, link: BrokerLink, options: Mapping[str, Any]) -> None:
        self.config = {"request_timeout_ms": REQUEST_TIMEOUT_MS, **options}
        self._link = link
        self._broker = link.broker
        self._committed = bool(options.get("read_committed", False))
        self._min_bytes = int(options.get("fetch_min_bytes", 1))
        self._max_wait_us = int(options.get("fetch_max_wait_ms", 500)) * 1_000
        self._fetch_since: int | None = None
        self._subscription = SimpleNamespace(assignment={})
        self._fetcher = SimpleNamespace(
            config={"max_partition_fetch_bytes": options.get("max_partition_fetch_bytes", 1 << 20)},
            _send_list_offsets_request=self._list_offsets,
        )
        self._client = SimpleNamespace(cluster=_Metadata(self._broker))
        self._manager = SimpleNamespace(
            call_soon=lambda send, leader, stamps: lambda: send(leader, stamps), wait_for=None, cluster=self._client.cluster
        )
        self._net = SimpleNamespace(run=self._run)

    @property
    def _assigned(self) -> dict[TopicPartition, _Assigned]:
        found: dict[TopicPartition, _Assigned] = self._subscription.assignment
        return found

    def assignment(self) -> set[TopicPartition]:
        return set(self._assigned)

    def assign(self, places: Iterable[TopicPartition]) -> None:
        known = self._assigned
        self._subscription.assignment = {place: known.get(place) or _Assigned() for place in places}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._assigned[place].position = SimpleNamespace(offset=offset)
        self._fetch_since = None

    def seek_to_end(self, *places: TopicPartition) -> None:
        for place, end in self.end_offsets(places or list(self._assigned)).items():
            self.seek(place, end)

    def seek_to_beginning(self, *places: TopicPartition) -> None:
        for place, start in self.beginning_offsets(places or list(self._assigned)).items():
            self.seek(place, start)

    def position(self, place: TopicPartition) -> int:
        position = self._assigned[place].position
        assert position is not None, f"no position in {place}"
        return int(position.offset)

    def highwater(self, place: TopicPartition) -> int | None:
        return self._assigned[place].highwater if place in self._assigned else None

    def beginning_offsets(self, places: Iterable[TopicPartition], timeout_ms: int = _ANSWERED_WITHIN_MS) -> dict[Any, int]:
        wanted = list(places)
        return dict(self._link.ask("read", lambda: {each: self._broker.at(each).start for each in wanted}, timeout_ms))

    def end_offsets(self, places: Iterable[TopicPartition], timeout_ms: int = _ANSWERED_WITHIN_MS) -> dict[Any, int]:
        wanted = list(places)
        return dict(self._link.ask("read", lambda: self._ends(wanted), timeout_ms))

    def offsets_for_times(self, times: Mapping[TopicPartition, int], timeout_ms: int = _ANSWERED_WITHIN_MS) -> dict[Any, Any]:
        def look() -> dict[TopicPartition, OffsetAndTimestamp | None]:
            found = {place: self._broker.offset_since(place, time_ms) for place, time_ms in times.items()}
            return {place: each and OffsetAndTimestamp(*each, None) for place, each in found.items()}

        return dict(self._link.ask("read", look, timeout_ms))

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._link.ask("read", lambda: self._broker.partitions_of(topic), _ANSWERED_WITHIN_MS) or None

    def poll(self, timeout_ms: int = 0, max_records: int = BATCH_RECORDS) -> dict[TopicPartition, list[ConsumerRecord]]:
        run = scheduler()
        deadline = run.now_us + int(timeout_ms * 1_000)
        while True:
            if self._fetch_since is None:
                self._fetch_since = run.now_us
            found = self._fetch(max_records) if self._link.passes("read") and not self._link.loses() else {}
            if found or run.now_us >= deadline:
                return found
            me = run.begin_wait()
            self._broker.await_change(me, self._assigned)
            run.wait(min(deadline, self._next_look()) - run.now_us)

    def close(self, autocommit: bool = True, timeout_ms: int | None = None) -> None:
        scheduler().check_alive()

    def _next_look(self) -> int:
        """When a fetch ends without a record, or is tried again."""
        run = scheduler()
        ends = (self._fetch_since or run.now_us) + self._max_wait_us
        return ends if self._link.passes("read") and ends > run.now_us else run.now_us + RETRY_US

    def _fetch(self, most: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """One request and its answer; empty if too little has come yet, or the answer is lost."""
        run = scheduler()
        is_due = run.now_us - (self._fetch_since or 0) >= self._max_wait_us
        if not is_due and self._size_of(self._read(most)) < self._min_bytes:
            return {}
        run.sleep(self._link.way_us())
        starts = {place: each.position.offset for place, each in self._assigned.items() if each.position is not None}
        found = self._read(most)
        highs = {place: self._broker.at(place).end for place in found}
        run.sleep(self._link.way_us())
        self._fetch_since = None
        if not self._link.passes("read"):
            return {}
        for place, (_, reached) in found.items():
            assigned = self._assigned.get(place)
            if assigned is not None and assigned.position is not None and assigned.position.offset == starts[place]:
                assigned.position, assigned.highwater = SimpleNamespace(offset=reached), highs[place]
        return {place: records for place, (records, _) in found.items() if records and place in self._assigned}

    def _read(self, most: int) -> dict[TopicPartition, tuple[list[ConsumerRecord], int]]:
        """What the broker has for this consumer now, from each partition, and up to where that reaches."""
        found: dict[TopicPartition, tuple[list[ConsumerRecord], int]] = {}
        most_bytes = int(self._fetcher.config["max_partition_fetch_bytes"])
        for place, assigned in self._assigned.items():
            if assigned.position is not None and most > 0:
                found[place] = self._broker.read(place, assigned.position.offset, most, most_bytes, self._committed)
                most -= len(found[place][0])
        return found

    @staticmethod
    def _size_of(found: Mapping[TopicPartition, tuple[list[ConsumerRecord], int]]) -> int:
        return sum(1 + len(record.value or b"") for records, _ in found.values() for record in records)

    def _ends(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self._broker.end(place, self._committed) for place in places}

    # What `services.kafka.end_desk` uses of the inner parts

    def _list_offsets(self, leader: int, stamps: Mapping[TopicPartition, Any]) -> tuple[dict[TopicPartition, Any], set[Any]]:
        return {place: SimpleNamespace(offset=end) for place, end in self._ends(list(stamps)).items()}, set()

    def _run(self, _wait_for: None, asked: Callable[[], Any], within_ms: float) -> Any:
        return self._link.ask("read", asked, int(within_ms))


class _Metadata:
    """What a client knows of the cluster: there is one broker, which leads everything."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def leader_for_partition(self, place: TopicPartition) -> int | None:
        return 0 if place in self._broker.partitions else None

    def request_update(self) -> None: ...

    def topic_id(self, topic: str) -> str:
        return topic


class Future:
    """As the future of `kafka.KafkaProducer.send`."""

    def __init__(self) -> None:
        self.is_done = False
        self.value: Any = None
        self.exception: Exception | None = None
        self._changed = Condition()
        self._callbacks: list[Callable[[], None]] = []

    def add_callback(self, act: Callable[..., Any], *args: Any) -> Future:
        return self._add(lambda: act(*args, self.value) if self.exception is None else None)

    def add_errback(self, act: Callable[..., Any], *args: Any) -> Future:
        return self._add(lambda: act(*args, self.exception) if self.exception is not None else None)

    def get(self, timeout: float | None = None) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_done, timeout):
                raise KafkaTimeoutError("no answer yet")
        if self.exception is not None:
            raise self.exception
        return self.value

    def finish(self, value: Any, exception: Exception | None) -> None:
        """Called in the producer's thread."""
        if self.is_done:
            return
        with self._changed:
            self.value, self.exception, self.is_done = value, exception, True
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            callback()

    def _add(self, callback: Callable[[], None]) -> Future:
        with self._changed:
            if not self.is_done:
                self._callbacks.append(callback)
                return self
        callback()
        return self


class _Waiting:
    """A record that waits to be sent, or for its answer."""

    def __init__(self, sent: Sent, at_us: int) -> None:
        self.sent = sent
        self.at_us = at_us
        self.future = Future()


class Producer:
    """As `kafka.KafkaProducer`."""

    def __init__(self, link: BrokerLink, transactional_id: str | None, patient: bool, options: Mapping[str, Any]) -> None:
        self._link = link
        self._broker = link.broker
        self._writer = next(_writers)
        self._name = transactional_id
        self._linger_us = int(options.get("linger_ms", LINGER_MS if patient else 0)) * 1_000
        self._block_ms = int(options.get("max_block_ms", FOR_EVER_MS if patient else FORGET_AFTER_MS))
        self._deliver_us = int(options.get("delivery_timeout_ms", FOR_EVER_MS if patient else FORGET_AFTER_MS)) * 1_000
        self._epoch = 0
        self._is_in_transaction = False
        self._numbers: dict[TopicPartition, int] = {}
        self._known: set[str] = set()
        self._changed = Condition()
        self._queue: deque[_Waiting] = deque()
        self._is_closed = self._is_forced = False
        self._sender = SimpleNamespace(force_close=self._force_close, join=self._join)
        self._metadata = SimpleNamespace(partitions_for_topic=lambda topic: {0} if topic in self._known else None)
        self._thread = Thread(self._run, name="producer", daemon=True)
        self._thread.start()

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int = 0,
        timestamp_ms: int | None = None,
    ) -> Future:
        scheduler().check_alive()
        place = TopicPartition(topic, partition)
        if topic not in self._known:
            self._link.ask("write", lambda: self._broker.at(place), self._block_ms)
            self._known.add(topic)
        stamp = None if topic == CLOCK else timestamp_ms or now_us() // 1_000
        with self._changed:
            number = self._numbers[place] = self._numbers.get(place, -1) + 1
            waiting = _Waiting(Sent(place, number, key, value, headers or (), stamp), scheduler().now_us)
            if self._is_forced:
                waiting.future.finish(None, KafkaError("the producer is closed"))
                return waiting.future
            self._queue.append(waiting)
            self._changed.notify_all()
        return waiting.future

    def flush(self, timeout: float | None = None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: not self._queue or self._is_forced, timeout):
                raise KafkaTimeoutError("records are left")

    def close(self, timeout: float | None = None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: not self._queue or self._is_forced, timeout):
                raise KafkaTimeoutError("records are left")
            self._is_closed = True
            self._changed.notify_all()

    # Transactions

    def init_transactions(self) -> None:
        assert self._name is not None
        name = self._name
        self._epoch = self._link.ask("write", lambda: self._broker.begin_writer(name), self._block_ms)

    def begin_transaction(self) -> None:
        assert self._name is not None
        self._broker.check_writer(self._name, self._epoch)
        self._is_in_transaction = True

    def commit_transaction(self) -> None:
        self._end(is_committed=True)

    def abort_transaction(self) -> None:
        self._end(is_committed=False)

    def _end(self, is_committed: bool) -> None:
        assert self._name is not None and self._is_in_transaction
        name = self._name
        self.flush()
        end = lambda: self._broker.end_transaction(name, self._epoch, is_committed)  # noqa: E731
        self._link.ask("write", end, self._block_ms)
        self._is_in_transaction = False

    # The thread

    def _run(self) -> None:
        run = scheduler()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closed or self._is_forced)
                if self._is_forced or not self._queue:
                    return
            if self._linger_us:
                run.sleep(self._linger_us)
            batch = [self._queue[at] for at in range(min(len(self._queue), BATCH_RECORDS))]
            self._deliver(batch)

    def _deliver(self, batch: list[_Waiting]) -> None:
        """Send records until they are answered, or are too old. Those of each partition are a request."""
        run = scheduler()
        left: dict[TopicPartition, list[_Waiting]] = {}
        for waiting in batch:
            left.setdefault(waiting.sent.place, []).append(waiting)
        while left and not self._is_forced:
            answers = self._request(left)
            for place, answered in answers.items():
                for waiting, answer in zip(left.pop(place), answered, strict=True):
                    self._finish(waiting, answer)
            for place, those in list(left.items()):
                if run.now_us - those[0].at_us > self._deliver_us:
                    for waiting in left.pop(place):
                        self._finish(waiting, KafkaTimeoutError("the record is too old"))
            if left:
                run.sleep(RETRY_US)

    def _request(self, batches: Mapping[TopicPartition, list[_Waiting]]) -> dict[TopicPartition, list[Answer]]:
        """The broker's answers that come in time, by partition: the offset and the time stamp of each record."""
        run, link = scheduler(), self._link
        me = run.begin_wait()
        turn = me.turn
        answers: dict[TopicPartition, list[Answer]] = {}

        def arrive(place: TopicPartition, batch: list[_Waiting]) -> None:
            if not link.passes("write") or link.loses():
                return
            stored = [self._store(waiting) for waiting in batch]
            if not link.loses():
                run.call(link.way_us(), lambda: answer(place, stored))

        def answer(place: TopicPartition, stored: list[Answer]) -> None:
            # One that comes later than the client waits finds it at something else.
            if link.passes("write") and me.turn == turn:
                answers[place] = stored
                if len(answers) == len(batches):
                    me.wake()

        for place, batch in batches.items():
            run.call(link.way_us(), lambda place=place, batch=list(batch): arrive(place, batch))  # type: ignore[misc]
        run.wait(min(REQUEST_TIMEOUT_MS * 1_000, self._deliver_us))
        return answers

    def _store(self, waiting: _Waiting) -> Answer:
        place: TopicPartition = waiting.sent.place
        before = self._broker.at(place).end
        try:
            offset = self._broker.append(waiting.sent, self._writer, self._name, self._epoch)
        except KafkaError as error:
            refusal: Exception = error
            return refusal
        stamp = self._broker.at(place).records[offset].timestamp_ms
        # A broker that had the record already may not know its offset any more.
        return (-1, stamp) if offset < before and scheduler().rng.random() < 0.5 else (offset, stamp)

    def _finish(self, waiting: _Waiting, answer: Answer) -> None:
        if isinstance(answer, Exception):
            waiting.future.finish(None, answer)
        else:
            place = waiting.sent.place
            metadata = SimpleNamespace(topic=place.topic, partition=place.partition, offset=answer[0], timestamp=answer[1])
            waiting.future.finish(metadata, None)
        with self._changed:
            if waiting in self._queue:
                self._queue.remove(waiting)
            self._changed.notify_all()

    def _force_close(self) -> None:
        self._is_forced = True
        with self._changed:
            left, self._queue = list(self._queue), deque()
            self._changed.notify_all()
        for waiting in left:
            waiting.future.finish(None, KafkaError("the producer is closed"))

    def _join(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)


class Admin:
    """As `kafka.KafkaAdminClient`."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, dict[str, int]]:
        def delete() -> dict[TopicPartition, dict[str, int]]:
            broker = self._link.broker
            return {place: {"low_watermark": broker.delete_before(place, offset)} for place, offset in offsets.items()}

        return dict(self._link.ask("write", delete, _ANSWERED_WITHIN_MS))

    def close(self) -> None: ...


class SimulatedCluster:
    """As `services.kafka.clusters.Cluster`."""

    def __init__(self, link: BrokerLink) -> None:
        self.site = link.broker.site
        self._link = link

    def make_producer(self, *, transactional_id: str | None = None, patient: bool = True, **options: Any) -> Producer:
        self._connect(options)
        return Producer(self._link, transactional_id, patient, options)

    def make_row_producer(self, otherwise: Callable[[], Producer] | None = None) -> KafkaPythonRows:
        return KafkaPythonRows((otherwise or self.make_producer)())

    def make_transaction_producer(self, transactional_id: str, **options: Any) -> Producer:
        producer = self.make_producer(transactional_id=transactional_id, **options)
        producer.init_transactions()
        return producer

    def librdkafka_options(self, variable: str, choice: str) -> None:
        """None: kafka-python serves."""

    def make_writer(self, transactional_id: str, answered_within_ms: int) -> Producer:
        return self.make_producer(
            transactional_id=transactional_id,
            bootstrap_timeout_ms=answered_within_ms,
            max_block_ms=answered_within_ms,
            delivery_timeout_ms=answered_within_ms,
        )

    def make_consumer(self, *, read_committed: bool = False, **options: Any) -> Consumer:
        self._connect(options)
        return Consumer(self._link, {"read_committed": read_committed, **options})

    def make_admin(self, **options: Any) -> Admin:
        self._connect(options)
        return Admin(self._link)

    def _connect(self, options: Mapping[str, Any]) -> None:
        try:
            self._link.ask("read", lambda: None, int(options.get("bootstrap_timeout_ms", BOOTSTRAP_TIMEOUT_MS)))
        except KafkaTimeoutError:
            raise KafkaConnectionError from None
