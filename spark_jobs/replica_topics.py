"""The topics of one replica whose operators run in Spark, as the driver uses them."""

from __future__ import annotations

import json
import logging
from contextlib import closing

from kafka import KafkaProducer
from kafka.errors import KafkaError

from boreal.model.errors import UserError
from deployment.layout import layout_of
from deployment.operator_hosts import answers_topic, orders_topic
from deployment.query_record import QueryRecord
from services.hosting.process import StopSignal
from services.kafka.clusters import FORGET_AFTER_MS, Cluster
from services.kafka.settings import ServiceSettings
from spark_jobs.worker import WARM_UP, ReplicaTask

_LOOK_S = 0.2

_logger = logging.getLogger("boreal.spark")


class ReplicaTopics:
    """The topics of orders and answers of one replica. They have a partition for each of its instances."""

    def __init__(self, settings: ServiceSettings, record: QueryRecord, replica: str) -> None:
        """UserError if the replica has no instance whose operators run in Spark."""
        self._record = record
        self.layout = layout_of(record, settings.site_names)
        self.replica = replica
        self.instances = self.layout.remote_instances(replica)
        """In the order of the partitions."""
        if not self.instances:
            raise UserError("replica", replica, f"{record.inner} has no fragment there that runs in Spark", "name another")
        self.site = self.layout.site_of_replica(replica)
        self.orders = orders_topic(record.inner, replica, self.layout.plan.own_application)
        self.answers = answers_topic(record.inner, replica)

    def wait(self, cluster: Cluster, stopping: StopSignal) -> str | None:
        """Wait until both topics exist. Returns Kafka's id of the orders topic; None if we are stopped before."""
        while not stopping.is_set():
            try:
                with closing(cluster.make_admin()) as admin:
                    found = {topic["name"]: topic for topic in admin.describe_topics([self.orders, self.answers])}
            except KafkaError as error:
                _logger.debug("topics cannot be described: %r", error)
            else:
                if [len(topic["partitions"]) for topic in found.values()] == 2 * [len(self.instances)]:
                    return str(found[self.orders]["topic_id"])
            stopping.wait(_LOOK_S)
        return None

    def task(self, topic_id: str, process: str) -> ReplicaTask:
        """What Python workers are told of the replica. topic_id: Kafka's, of the orders topic; process: the driver's name."""
        spec, log = json.dumps(self._record.spec), f"{self.orders}@{topic_id}"
        return ReplicaTask(spec, self.replica, self.layout.sites, log, self._record.inner, process)

    def send_warm_up(self, producer: KafkaProducer, key: bytes | None = None) -> dict[int, int] | None:
        """Send a warm-up record to each host. Returns the offsets by partition; None if Kafka does not take them now."""
        try:
            sent = [producer.send(self.orders, WARM_UP, key, partition=p) for p in range(len(self.instances))]
            return {p: record.get(timeout=FORGET_AFTER_MS / 1_000).offset for p, record in enumerate(sent)}
        except KafkaError as error:
            _logger.debug("a warm-up could not be sent: %r", error)
            return None
