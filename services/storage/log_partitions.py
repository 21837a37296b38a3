"""The logs of a whole query, for one thread that looks into them and writes none."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Self

from kafka import KafkaConsumer

from boreal.model.frames import LogId
from services.kafka.clusters import Cluster
from services.storage.kafka_log import LogPlaces
from services.storage.log_partition import LogPartition, make_log_consumer


class LogPartitions:
    """Reads logs through one consumer for each site. Use as a context."""

    def __init__(self, clusters: Mapping[str, Cluster], places: LogPlaces) -> None:
        """clusters: by site."""
        self._clusters = clusters
        self._places = places
        self._consumers: dict[str, KafkaConsumer] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, log: LogId) -> LogPartition:
        """The partition of a log. KafkaError if its site does not answer."""
        site = self._places.site_of(log)
        if site not in self._consumers:
            self._consumers[site] = self._stack.enter_context(closing(make_log_consumer(self._clusters[site])))
        return LogPartition(log, self._places.topic_of(log), self._consumers[site])
