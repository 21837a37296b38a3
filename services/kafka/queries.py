"""The queries of an installation: one record per query in the compacted topic boreal.queries, at the home site
(deployment/query_record.py)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing

from kafka import KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError, KafkaTimeoutError

from boreal.model.errors import UserError
from deployment.audit import QueryChange
from deployment.joined_sources import SourceIndex
from deployment.query_record import QueryRecord, public_name, read_query_record
from services.kafka.clusters import ANSWERED_WITHIN_MS, Cluster, close_producer, is_fenced
from services.kafka.follower import TopicFollower
from services.kafka.reading import read_range
from services.kafka.topics import QUERIES

WRITER = "boreal.queries.writer"
"""The transactional id of all writers: Kafka lets only the last one that began commit."""
BY = "by"
"""The header of a record that says who wrote it."""
_RETRY_S = 0.05
SEEN_WITHIN_S = 2.0
"""Within this time readers see what a writer has committed."""

_PARTITION = TopicPartition(QUERIES, 0)

_logger = logging.getLogger("boreal.queries")

OnChange = Callable[[str, QueryRecord | None], None]
"""Called with a query's name and its record; None if it is deleted."""

Decide = Callable[[QueryRecord | None], QueryRecord | None]
"""Called with the newest record of a query, or None; returns the record that is to replace it, or None to delete it. The same
record again changes nothing. Any error that it raises ends the update."""

DecideAmong = Callable[[QueryRecord | None, Mapping[str, QueryRecord]], QueryRecord | None]
"""As `Decide`, for what depends on other queries too. The second argument: all records, by name."""


class QueryRegistry:
    """Reads and writes the records. No update is lost: between the read and the write of `update` no other process writes.
    The caller closes it."""

    def __init__(self, home: Cluster) -> None:
        self._cluster = home
        self._updating = threading.Lock()
        self._turn: _Turn | None = None

    def close(self) -> None:
        """End the writer, if there is one."""
        with self._updating:
            self._end_turn()

    def update(self, name: str, decide: Decide, by: str | None = None) -> QueryRecord | None:
        """As `update_among`, where the other queries do not matter."""
        return self.update_among(name, lambda old, _: decide(old), by)

    def update_among(self, name: str, decide: DecideAmong, by: str | None = None) -> QueryRecord | None:
        """Replace a query's record by what `decide` makes of it, and return that. by: who changes it. KafkaError if Kafka does
        not answer within ten seconds; the record may have been written nevertheless.

        1. A writer begins: Kafka aborts what an earlier one has not committed, and refuses it from then on.
        2. The newest record is read, and `decide` is called.
        3. The new record is committed. If another writer has begun meanwhile this fails, and it starts again. So it does if
           Kafka leaves the commit without an answer; by then it is decided, and a record that was written is not written again.

        The writer stays for the next update. While no other one begins, what it has read and written is all there is; if one
        has begun, the commit fails. Only a commit shows that, so a refusal, or a record that is as wanted already, counts only
        when a writer has just begun.
        """
        deadline = time.monotonic() + ANSWERED_WITHIN_MS / 1_000
        if not self._updating.acquire(timeout=ANSWERED_WITHIN_MS / 1_000):
            raise KafkaTimeoutError(f"earlier updates of {QUERIES} wait for an answer")
        try:
            return self._update(name, decide, by, deadline)
        finally:
            self._updating.release()

    def _update(self, name: str, decide: DecideAmong, by: str | None, deadline: float) -> QueryRecord | None:
        new: QueryRecord | None = None
        is_unanswered = False
        while True:
            begins = self._turn is None
            try:
                turn = self._turn = self._turn or _Turn(self._cluster.make_writer(WRITER, ANSWERED_WITHIN_MS), self.load)
                old = turn.records.get(name)
                if is_unanswered and old == new:
                    return new
                new, is_unanswered = decide(old, turn.records), False
                if new != old:
                    if turn.write(name, new, by, deadline):
                        return new
                    is_unanswered = True
                elif begins:
                    return new
            except Exception as error:
                if is_fenced(error):
                    if time.monotonic() > deadline:
                        raise KafkaTimeoutError(f"other writers of {QUERIES} leave no turn") from None
                    if begins:
                        time.sleep(_RETRY_S)
                elif begins or time.monotonic() > deadline:
                    self._end_turn()
                    raise
            self._end_turn()

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.close()
            self._turn = None

    def put(self, record: QueryRecord) -> None:
        """Write a record, whatever there was. Errors as in `update`."""
        self.update(record.name, lambda old: record)

    def delete(self, name: str, by: str | None = None) -> None:
        """Delete a query's record. Errors as in `update`; deleting an absent record is no error."""
        self.update(name, lambda old: None, by)

    def load(self) -> dict[str, QueryRecord]:
        """All current queries, by name. KafkaError if the home site does not answer within ten seconds."""
        found: dict[str, QueryRecord] = {}
        with closing(self._cluster.make_consumer(read_committed=True, bootstrap_timeout_ms=ANSWERED_WITHIN_MS)) as consumer:
            consumer.assign([_PARTITION])
            first = consumer.beginning_offsets([_PARTITION], timeout_ms=ANSWERED_WITHIN_MS)[_PARTITION]
            end = consumer.end_offsets([_PARTITION], timeout_ms=ANSWERED_WITHIN_MS)[_PARTITION]
            for each in read_range(consumer, _PARTITION, first, end, ANSWERED_WITHIN_MS / 1_000):
                try:
                    name, record = read_query_record(each.key, each.value)
                except (KeyError, TypeError, ValueError) as error:
                    # It must not block the other queries.
                    _logger.warning("the record at offset %d of %s cannot be read: %r", each.offset, QUERIES, error)
                    continue
                found.pop(name, None)
                if record is not None:
                    found[name] = record
        return dict(sorted(found.items()))

    def find(self, name: str) -> QueryRecord:
        """The current query with this name, for a process of the query. UserError if there is none; KafkaError as in `load`.

        Kafka confirms a commit before readers can see it, so a record that was just written may appear a little later.
        """
        return self._await(name, lambda: self.load().get(name))

    def find_version(self, inner: str) -> QueryRecord:
        """As `find`, for a process of one version: the record of the version with this name (`QueryRecord.runs`)."""

        def look() -> QueryRecord | None:
            record = self.load().get(public_name(inner))
            return record.version_named(inner) if record is not None else None

        return self._await(inner, look)

    def find_source(self, inner: str, stream: str) -> QueryRecord:
        """As `find`, for a source: the record by which it runs (`deployment.joined_sources.SourceIndex`)."""
        return self._await(inner, lambda: SourceIndex(self.load().values()).record_of(inner, stream))

    def _await(self, name: str, look: Callable[[], QueryRecord | None]) -> QueryRecord:
        deadline = time.monotonic() + SEEN_WITHIN_S
        while (record := look()) is None:
            if time.monotonic() > deadline:
                raise UserError("query", name, "is not known", "apply it first: boreal query apply FILE")
            time.sleep(_RETRY_S)
        return record

    def watch(self, on_change: OnChange) -> TopicFollower:
        """Call `on_change`, in the follower's thread, for every existing query and then for every change, until the follower is
        closed. A change may be repeated. An unreachable cluster is silent."""
        return TopicFollower(
            self._cluster, QUERIES, lambda record: on_change(*read_query_record(record.key, record.value)), read_committed=True
        )

    def watch_changes(self, on_change: Callable[[QueryChange], None]) -> TopicFollower:
        """As `watch`, with who made each change, and when."""

        def take(record: ConsumerRecord) -> None:
            name, found = read_query_record(record.key, record.value)
            by = dict(record.headers).get(BY)
            on_change(QueryChange(name, found, float(record.timestamp), by.decode() if by is not None else None))

        return TopicFollower(self._cluster, QUERIES, take, read_committed=True)


class _Turn:
    """A writer that has begun, and the records: as they were then, with its own changes."""

    def __init__(self, producer: KafkaProducer, load: Callable[[], dict[str, QueryRecord]]) -> None:
        self._producer = producer
        try:
            producer.init_transactions()
            self.records = load()
        except BaseException:
            self.close()
            raise

    def write(self, name: str, record: QueryRecord | None, by: str | None, deadline: float) -> bool:
        """Commit a query's new record, None if it is deleted; whether Kafka says that it is done. A broker under load may
        answer that it does not know (UnknownError), which kafka-python raises as a plain KafkaError. After the deadline, and
        for all other errors, the error is raised."""
        value, headers = record.to_json() if record else None, [(BY, by.encode())] if by is not None else []
        self._producer.begin_transaction()
        sent = self._producer.send(QUERIES, value, key=name.encode(), headers=headers, partition=0)
        try:
            sent.get(timeout=max(deadline - time.monotonic(), 0))
        except KafkaTimeoutError:
            # kafka-python's says how much of the time was left here: none, where all before the record has taken it.
            text = f"{QUERIES} has not taken the record of {name} within {ANSWERED_WITHIN_MS // 1_000} s"
            raise KafkaTimeoutError(text) from None
        try:
            _within(deadline, self._producer.commit_transaction)
        except KafkaError as error:
            if type(error) is not KafkaError or time.monotonic() > deadline:
                raise
            return False
        self.records.pop(name, None)
        if record is not None:
            self.records[name] = record
        return True

    def close(self) -> None:
        close_producer(self._producer, 1)


def _within(deadline: float, act: Callable[[], None]) -> None:
    """Do what kafka-python gives no time limit. KafkaTimeoutError if it has not ended by then; its thread stays behind."""
    ended: Future[None] = Future()

    def run() -> None:
        try:
            act()
            ended.set_result(None)
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=run, name="commit", daemon=True).start()
    try:
        ended.result(timeout=max(deadline - time.monotonic(), 0))
    except TimeoutError:
        raise KafkaTimeoutError(f"{QUERIES} does not answer a commit") from None


class SharedWatch:
    """One watch of the records for many listeners of a process."""

    def __init__(self, registry: QueryRegistry) -> None:
        self._registry = registry
        self._lock = threading.RLock()
        self._follower: TopicFollower | None = None
        self._known: dict[str, QueryRecord] = {}
        self._listeners: list[OnChange] = []

    def add(self, on_change: OnChange) -> None:
        """As `QueryRegistry.watch`, until the listener is removed. Existing queries that are known already are told in the
        caller's thread."""
        with self._lock:
            for name, record in self._known.items():
                on_change(name, record)
            self._listeners.append(on_change)
            if self._follower is None:
                self._follower = self._registry.watch(self._take)

    def remove(self, on_change: OnChange) -> None:
        """Tell this listener of no more changes."""
        with self._lock:
            self._listeners.remove(on_change)

    def await_current(self) -> None:
        """Return when all records of before are told. Only then the last one of a query is known to be its newest: one of the
        same name that was deleted may have had higher revisions."""
        with self._lock:
            follower = self._follower
        if follower is not None:
            follower.is_current.wait()

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()

    def _take(self, name: str, record: QueryRecord | None) -> None:
        with self._lock:
            if record is None:
                self._known.pop(name, None)
            else:
                self._known[name] = record
            for listener in self._listeners:
                try:
                    listener(name, record)
                except Exception:
                    # It concerns one role; the others must hear of the change too.
                    _logger.exception("a change of %s is not taken up", name)
