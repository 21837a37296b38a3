"""Reports unreadable log records to the query's dead-letter topic, with their position and the reason. Other records are not
affected."""

from __future__ import annotations

import logging
import threading

from kafka.errors import KafkaError

from boreal.model.frames import LogId
from deployment.layout import Layout
from deployment.query_record import public_name
from formats.dead_letter import DeadLetterRecord
from services.kafka.clusters import FOR_EVER_MS, Cluster, close_producer
from services.kafka.topics import dead_letter_topic

_logger = logging.getLogger("boreal.deadletters")


class BrokenFrames:
    """Reports records of our own logs that cannot be decoded: damaged, truncated, or of a newer version. Each is reported once
    per process."""

    def __init__(self, home: Cluster, layout: Layout) -> None:
        self._home = home
        self._layout = layout
        self._known: set[tuple[LogId, int]] = set()

    def report(self, log: LogId, offset: int, error: Exception) -> None:
        """Log the record and send its dead letter in another thread; returns at once."""
        topic = self._layout.topic_of(log)
        if (log, offset) in self._known:
            return
        self._known.add((log, offset))
        _logger.error("topic %s, partition %d, offset %d cannot be read: %s", topic, log.partition, offset, error)
        letter = DeadLetterRecord(log.stream, topic, log.partition, offset, str(error), "")
        threading.Thread(target=self._send, args=(letter,), name="dead-letter", daemon=True).start()

    def _send(self, letter: DeadLetterRecord) -> None:
        try:
            producer = self._home.make_producer()
            try:
                topic = dead_letter_topic(public_name(self._layout.plan.query))
                producer.send(topic, letter.to_json(), key=letter.source.encode(), partition=0)
            finally:
                close_producer(producer, FOR_EVER_MS / 1_000)
        except (KafkaError, OSError) as error:
            _logger.error("the dead letter for offset %d of %s cannot be sent: %r", letter.offset, letter.topic, error)
