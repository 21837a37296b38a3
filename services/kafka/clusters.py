"""One site's Kafka cluster, as this process reaches it.

Timeouts are short, so that clients notice soon that a cut has healed. No client ever gives up: an unreachable cluster is
silent, and the protocol handles silence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import (
    AuthorizationError,
    InvalidProducerEpochError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    SaslAuthenticationFailedError,
)

from boreal.client.kafka_clients import make_client
from boreal.model.errors import UserError
from services.kafka.row_producers import (
    KafkaPythonRows,
    LibrdkafkaRows,
    LibrdkafkaTransactions,
    RowProducer,
    TransactionProducer,
)
from services.kafka.settings import ClientChoice, ServiceSettings

ANSWERED_WITHIN_MS = 10_000
"""How long those who write and read records of the installation wait for Kafka's answer."""
MAX_FRAME_BYTES = 64 << 20
"""Maximum size of a frame, and so of a record, in bytes."""
REQUEST_TIMEOUT_MS = 3_000
FORGET_AFTER_MS = 500
"""An impatient producer drops a record that could not be sent within this time."""

RECORD_BYTES = 1_500
"""Memory that kafka-python needs for an unacknowledged record beside its value: for a boundary, by far the largest part."""

FOR_EVER_MS = 7 * 24 * 3_600_000
"""A timeout that is never reached."""
LINGER_MS = 1
"""Records sent to a partition within this time go in one request, for example rows and their boundary. Without it, a producer
sends the first record alone, and the others wait until it is acknowledged."""

BOOTSTRAP_TIMEOUT_MS = 5_000
_ABORT_WITHIN_S = 0.2
MAKE_AGAIN_S = 0.2

Made = TypeVar("Made")

_logger = logging.getLogger("boreal.kafka")

# The clients log every failed connection. During a cut there are many per second, and they carry no information.
logging.getLogger("kafka").setLevel(logging.CRITICAL)


class Cluster:
    """Creates clients of one site's Kafka; the caller closes them. KafkaError if the cluster is unreachable for too long."""

    def __init__(self, site: str, settings: ServiceSettings, client_id: str, proxy: str | None = None) -> None:
        """site: one of settings.sites. client_id: name of this process in Kafka's logs and metrics. proxy: a SOCKS5 URL, by
        default the site's in the settings."""
        self.site = site
        kafka = self._settings = settings.sites[site]
        self._common: dict[str, Any] = {
            "bootstrap_servers": kafka.bootstrap,
            "client_id": client_id,
            "security_protocol": kafka.security_protocol,
            "reconnect_backoff_ms": 50,
            "reconnect_backoff_max_ms": 200,
            "retry_backoff_ms": 50,
            "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
        }
        if kafka.security_protocol.startswith("SASL"):
            self._common["sasl_mechanism"] = kafka.sasl_mechanism
            self._common["sasl_plain_username"] = kafka.username
            self._common["sasl_plain_password"] = kafka.password.get_secret_value() if kafka.password else None
        if kafka.ca_file is not None:
            self._common["ssl_cafile"] = str(kafka.ca_file)
        if proxy := proxy or settings.proxies.get(site):
            self._common["proxy_url"] = proxy
        self._row_producer = settings.row_producer

    def make_producer(self, *, transactional_id: str | None = None, patient: bool = True, **options: Any) -> KafkaProducer:
        """A producer. patient: idempotent, in order, retries for ever. Otherwise records that cannot be sent at once are
        dropped, which is right for messages that would be stale when a cut has healed. options: of KafkaProducer."""
        manner: dict[str, Any] = (
            {
                "acks": "all",
                "enable_idempotence": True,
                "transactional_id": transactional_id,
                "request_timeout_ms": REQUEST_TIMEOUT_MS,
                "delivery_timeout_ms": FOR_EVER_MS,
                "max_block_ms": FOR_EVER_MS,
                "linger_ms": LINGER_MS,
            }
            if patient
            else {
                "acks": 1,
                "enable_idempotence": False,
                "retries": 0,
                "request_timeout_ms": FORGET_AFTER_MS - 100,
                "delivery_timeout_ms": FORGET_AFTER_MS,
                "max_block_ms": FORGET_AFTER_MS,
            }
        )
        settings = {
            "max_request_size": MAX_FRAME_BYTES,
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            "metadata_max_age_ms": 60_000,
        }
        return make_client(KafkaProducer, {**self._common, **manner, **settings, **options})

    def make_writer(self, transactional_id: str, answered_within_ms: int) -> KafkaProducer:
        """A producer of a few transactions. Where Kafka does not answer within the time, a call raises KafkaError."""
        return self.make_producer(
            transactional_id=transactional_id,
            bootstrap_timeout_ms=answered_within_ms,
            max_block_ms=answered_within_ms,
            delivery_timeout_ms=answered_within_ms,
            transaction_timeout_ms=answered_within_ms,
        )

    def make_consumer(self, *, read_committed: bool = False, **options: Any) -> KafkaConsumer:
        """A consumer without a group: partitions are assigned explicitly, and it never resets its offset by itself. options:
        of KafkaConsumer."""
        settings = {
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed" if read_committed else "read_uncommitted",
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "fetch_max_wait_ms": 500,
            "max_partition_fetch_bytes": MAX_FRAME_BYTES,
            "fetch_max_bytes": MAX_FRAME_BYTES,
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            "metadata_max_age_ms": 60_000,
        }
        return make_client(KafkaConsumer, {**self._common, **settings, **options})

    def make_row_producer(self, otherwise: Callable[[], KafkaProducer] | None = None) -> RowProducer:
        """A producer, patient as above, of what clients read. otherwise: what gives kafka-python's, where librdkafka does not
        serve; None: a new one."""
        options = self._row_options()
        return KafkaPythonRows((otherwise or self.make_producer)()) if options is None else LibrdkafkaRows(options)

    def make_transaction_producer(self, transactional_id: str, **options: Any) -> TransactionProducer:
        """The same, in transactions. Returns when the writers before it are fenced. options: of KafkaProducer."""
        found = self._row_options()
        if found is not None:
            return LibrdkafkaTransactions(found, transactional_id, BOOTSTRAP_TIMEOUT_MS / 1_000)
        producer = self.make_producer(transactional_id=transactional_id, **options)
        try:
            producer.init_transactions()
        except BaseException:
            close_producer(producer, 0)
            raise
        return producer

    def _row_options(self) -> dict[str, Any] | None:
        """Of librdkafka, to write what clients read; None if kafka-python serves."""
        found = self.librdkafka_options("BOREAL_ROW_PRODUCER", self._row_producer)
        limits = {"message.max.bytes": MAX_FRAME_BYTES, "linger.ms": LINGER_MS, "request.timeout.ms": REQUEST_TIMEOUT_MS}
        return None if found is None else {**found, **limits, "retry.backoff.ms": 50}

    def librdkafka_options(self, variable: str, choice: ClientChoice) -> dict[str, Any] | None:
        """How a client of librdkafka reaches the cluster; None if kafka-python serves. variable: the setting that chooses.
        UserError if librdkafka is asked for where it cannot serve: it knows no proxies."""
        has_proxy, is_missing = "proxy_url" in self._common, find_spec("confluent_kafka") is None
        if choice == "librdkafka" and has_proxy:
            raise UserError(variable, choice, "knows no proxies", "set it to kafka-python, or reach the site without a proxy")
        if choice == "librdkafka" and is_missing:
            raise UserError(variable, choice, "is not installed", "pip install 'boreal[librdkafka]'")
        if choice == "kafka-python" or has_proxy or is_missing:
            return None
        kafka = self._settings
        options: dict[str, Any] = {
            "bootstrap.servers": kafka.bootstrap,
            "client.id": self._common["client_id"],
            "security.protocol": kafka.security_protocol,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS,
            "log_level": 0,
        }
        if kafka.security_protocol.startswith("SASL"):
            password = kafka.password.get_secret_value() if kafka.password else ""
            sasl = {"sasl.mechanism": kafka.sasl_mechanism, "sasl.username": kafka.username or "", "sasl.password": password}
            options.update(sasl)
        if kafka.ca_file is not None:
            options["ssl.ca.location"] = str(kafka.ca_file)
        return options

    def make_admin(self, **options: Any) -> KafkaAdminClient:
        """An admin client. options: of KafkaAdminClient."""
        return make_client(KafkaAdminClient, {**self._common, "request_timeout_ms": 10_000, **options})


def close_producer(producer: Any, within_s: float) -> None:
    """Close a producer, of whatever kind, after it has sent its remaining records; those that Kafka does not accept within
    `within_s` are lost.

    If some are left, kafka-python's `close` raises KafkaTimeoutError before it stops its thread, which would go on sending
    until the process ends. No public method stops that thread.
    """
    if isinstance(producer, LibrdkafkaTransactions):
        producer.close()
        return
    if isinstance(producer, LibrdkafkaRows):
        producer.close(within_s)
        return
    if isinstance(producer, KafkaPythonRows):
        producer = producer.producer
    try:
        producer.close(timeout=within_s)
    except KafkaTimeoutError:
        producer._sender.force_close()
        # The thread drops the remaining records and ends. A producer that is open when it is garbage collected logs an error.
        producer._sender.join(_ABORT_WITHIN_S)
        with suppress(KafkaTimeoutError):
            producer.close(timeout=0)


def is_fenced(error: Exception) -> bool:
    """Whether Kafka refuses this writer because a later writer with its transactional id has begun.

    kafka-python raises that error itself, or, if its thread learns of it first, a KafkaError from the next call that holds it,
    or its text.
    """
    return any(isinstance(each, _FENCING) or _says_fenced(each) for each in (error, *error.args))


_FENCING = (ProducerFencedError, InvalidProducerEpochError)


def _says_fenced(content: object) -> bool:
    return isinstance(content, str) and any(kind.__name__ in content for kind in _FENCING)


def silence_producer(producer: Any) -> None:
    """Send nothing more with this producer, of whatever kind; returns at once. Call it in the errback of a failed send, before
    the next send begins.

    If a broker has lost the end of a log, kafka-python drops the records in flight and continues with the next ones, so the
    rows in between would be missing for ever. No public method prevents that.
    """
    if isinstance(producer, LibrdkafkaRows):
        producer.silence()
        return
    if isinstance(producer, KafkaPythonRows):
        producer = producer.producer
    producer._sender.force_close()


def knows_topic(producer: KafkaProducer, topic: str) -> bool:
    """Whether a record to this topic can be given to the producer at once; otherwise it first waits until it hears of the
    topic. No public method says so without waiting."""
    return producer._metadata.partitions_for_topic(topic) is not None


def make_clusters(settings: ServiceSettings, client_id: str) -> dict[str, Cluster]:
    """The clusters of all sites, by name, in order of the names."""
    return {site: Cluster(site, settings, client_id) for site in settings.site_names}


def log_retry(logger: logging.Logger, what: str, error: Exception) -> None:
    """Log a failure that is retried. An outage is logged at debug level: readers notice the silence, and its length is in the
    status. A failure that does not heal by itself, such as a missing permission, or too few file descriptors, is logged as an
    error, once."""
    is_outage = isinstance(error, KafkaError | ConnectionError | TimeoutError)
    if is_outage and not isinstance(error, AuthorizationError | SaslAuthenticationFailedError):
        logger.debug("%s: %r", what, error)
    elif (what, type(error)) not in _logged:
        _logged.add((what, type(error)))
        logger.error("%s, and is tried again: %r", what, error)


_logged: set[tuple[str, type[Exception]]] = set()


def until_made(make: Callable[[], Made], what: str) -> Made:
    """What `make` returns; retries until it exists: what is written waits for an unreachable cluster. what: is logged."""
    while True:
        try:
            return make()
        except (KafkaError, OSError) as error:
            log_retry(_logger, what, error)
            time.sleep(MAKE_AGAIN_S)
