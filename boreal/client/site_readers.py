"""Threads that each read the topic of one site, and a queue of their batches. An unreachable site counts as silent."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from boreal.client.corrector import LogPosition, OutputRecord
from boreal.model.errors import UserError

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

BATCHES_WAITING = 4
INCARNATION_BITS = 40
"""The bits for the incarnation of a topic's writer; no topic has more incarnations than these can count."""
_POLL_MS = 200
_RETRY_S = 0.2
_SHOWN_QUERIES = 10
_FIRST_LOOK_MS = 400
"""How long Kafka may take to say where a topic begins, before it is asked whether the topic exists at all."""

_logger = logging.getLogger("boreal.client")


class SiteReaders:
    """The batches of all sites. The reader of a site pauses while BATCHES_WAITING of its batches are waiting.

    until_now: each site is read to the end that it has when its reader first reaches it.
    """

    def __init__(self, until_now: bool = False) -> None:
        self.until_now = until_now
        self._ended: set[str] = set()
        self._away: dict[str, Exception] = {}
        self._waiting: dict[str, deque[list[OutputRecord]]] = {}
        self._changed = threading.Condition()
        self._feeds: list[SiteReader] = []
        self._failure: Exception | None = None
        self.is_closed = False

    def add(self, site: str, topic: str, start: LogPosition, options: dict[str, Any]) -> None:
        """Start to read the topic of a site at a position, or at its first record if that is later."""
        self._waiting[site] = deque()
        self._feeds.append(SiteReader(self, site, topic, start, options))

    def end(self, site: str) -> None:
        """A site was read to its end."""
        with self._changed:
            self._ended.add(site)
            self._changed.notify_all()

    def note(self, site: str, error: Exception) -> bool:
        """A site is not reachable. If no site is, it is an error at once where nobody waits: for a read until now, and for an
        output that no site knows. Returns whether it is."""
        with self._changed:
            self._away[site] = error
            nobody_waits = self.until_now or all(isinstance(each, UserError) for each in self._away.values())
            is_over = nobody_waits and len(self._away) == len(self._waiting)
            if is_over:
                self.fail(error)
            return is_over

    def note_reachable(self, site: str) -> None:
        """A site is reachable, maybe again."""
        with self._changed:
            self._away.pop(site, None)

    def is_over(self) -> bool:
        """Whether all reachable sites were read to their ends, and all batches are taken."""
        with self._changed:
            return self._has_all() and not any(self._waiting.values())

    def _has_all(self) -> bool:
        return bool(self._ended) and len(self._ended | self._away.keys()) == len(self._waiting)

    def put(self, site: str, records: list[OutputRecord]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting[site]) < BATCHES_WAITING or self.is_closed)
            self._waiting[site].append(records)
            self._changed.notify_all()

    def take(self, timeout_s: float) -> list[tuple[str, list[OutputRecord]]]:
        """Wait for a batch; return all batches that are waiting, with their sites. After the timeout, the list is empty. If a
        reader failed for another reason than an outage, its error is raised after all earlier batches are taken."""
        with self._changed:
            self._changed.wait_for(
                lambda: any(self._waiting.values()) or self._failure or self.is_closed or self._has_all(), timeout=timeout_s
            )
            if self._failure is not None and not any(self._waiting.values()):
                raise self._failure
            taken = [(site, batch) for site, batches in self._waiting.items() for batch in batches]
            for batches in self._waiting.values():
                batches.clear()
            self._changed.notify_all()
        return taken

    def fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def rest(self, seconds: float) -> None:
        """Wait for this time, or until the readers are closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed, timeout=seconds)

    def stop(self) -> None:
        """Stop all readers and all waiting. Returns immediately."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def close(self) -> None:
        self.stop()
        for feed in self._feeds:
            feed.thread.join(timeout=2)


class SiteReader:
    """The thread that reads the topic of one site."""

    def __init__(self, feeds: SiteReaders, site: str, topic: str, start: LogPosition, options: dict[str, Any]) -> None:
        self._feeds = feeds
        self._site = site
        self._topic = topic
        self._offset, self._topic_id = start.offset, start.topic_id
        self._recreations = 0
        self._has_read = False
        self._options = options
        self.thread = threading.Thread(target=self._run, name=f"boreal-{topic}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        from kafka.errors import KafkaConfigurationError, KafkaError

        said = ""
        while not self._feeds.is_closed:
            try:
                if self._read():
                    return self._feeds.end(self._site)
            except (KafkaError, OSError, UserError) as error:
                if isinstance(error, KafkaConfigurationError):
                    return self._feeds.fail(error)
                if self._feeds.note(self._site, error):
                    return
                if repr(error) != said:
                    said = repr(error)
                    _logger.warning("%s cannot be read at present; it is tried again: %s", self._topic, said)
                self._feeds.rest(_RETRY_S)
            except Exception as error:
                return self._feeds.fail(error)

    def _read(self) -> bool:
        """Read until the readers are closed or the topic is made again. True: all that was wanted is read."""
        from kafka import KafkaConsumer, TopicPartition

        from boreal.client.kafka_clients import make_client, topic_id

        consumer: KafkaConsumer = make_client(KafkaConsumer, self._options)
        partition = TopicPartition(self._topic, 0)
        try:
            consumer.assign([partition])
            if not self._has_read:
                _check_that_it_exists(consumer, partition)
            first = consumer.beginning_offsets([partition])[partition]
            end = consumer.end_offsets([partition])[partition]
            found = topic_id(consumer, self._topic)
            if self._offset > end or (found and self._topic_id and found != self._topic_id):
                # The topic was deleted and created again. Ids show which of its rows we already have.
                self._offset = first
                self._recreations += 1
            self._offset = max(self._offset, first)
            self._topic_id = found
            consumer.seek(partition, self._offset)
            self._has_read = True
            self._feeds.note_reachable(self._site)
            while not self._feeds.is_closed:
                if self._feeds.until_now and consumer.position(partition) >= end:
                    return True
                polled = consumer.poll(timeout_ms=_POLL_MS).get(partition, [])
                if topic_id(consumer, self._topic) not in (found, ""):
                    return False  # The topic was created again: start again, since this offset may now hold any record.
                if polled:
                    self._feeds.put(self._site, [_record(record, self._recreations, found) for record in polled])
                    self._offset = polled[-1].offset + 1
            return False
        finally:
            consumer.close(autocommit=False)


def _check_that_it_exists(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    """UserError if Kafka can be reached, and has no such topic: a misspelt query is no outage."""
    from kafka.errors import KafkaTimeoutError, UnknownTopicOrPartitionError

    from boreal.client.kafka_clients import all_topics

    try:
        consumer.beginning_offsets([partition], timeout_ms=_FIRST_LOOK_MS)
    except (KafkaTimeoutError, UnknownTopicOrPartitionError) as error:
        topics = all_topics(consumer)
        if isinstance(error, KafkaTimeoutError) and partition.topic in topics:
            return
        query = partition.topic.rpartition(".")[0]
        outputs = sorted(topic.removesuffix(".stable") for topic in topics if topic.endswith(".stable"))
        shown = (get_close_matches(query, outputs, n=_SHOWN_QUERIES) or outputs)[:_SHOWN_QUERIES]
        left = f" and {len(outputs) - len(shown)} others" if len(outputs) > len(shown) else ""
        known = f"queries with results are {', '.join(shown)}{left}" if outputs else "no query has results yet"
        raise UserError("query", query, f"has no results here: there is no topic {partition.topic}", known) from None


def _record(record: Any, recreations: int, topic_id: str) -> OutputRecord:
    """A record of q.out, or of q.stable, whose values are plain rows. recreations: how often the topic was created again. The
    incarnations of its writers then start at 1 again, but must count as higher than all earlier ones."""
    headers = dict(record.headers)
    fields = json.loads(record.value)
    if "epoch" in headers:
        fields = {"type": "stable", "data": fields, "key": json.loads(record.key) if record.key else None}
    incarnation = (recreations << INCARNATION_BITS) + int(headers["incarnation"])
    return OutputRecord(record.offset, int(headers.get("id", -1)), incarnation, fields, topic_id)
