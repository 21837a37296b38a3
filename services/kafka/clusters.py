"""One site's Kafka, as this process reaches it.

Time-outs are short enough to find out soon that a cut has healed, and no client ever gives up: an unreachable cluster is
silence, which the protocol knows how to handle.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import AuthorizationError, KafkaTimeoutError, SaslAuthenticationFailedError

from boreal.client.kafka_clients import make_client
from services.kafka.settings import Settings

MAX_FRAME_BYTES = 64 << 20
REQUEST_TIMEOUT_MS = 3_000
FORGET_AFTER_MS = 500

RECORD_BYTES = 1_500
"""What kafka-python keeps of a record beside its value until it is acknowledged: of a boundary that is far the most."""

FOR_EVER_MS = 7 * 24 * 3_600_000
LINGER_MS = 1
"""What is sent to a partition within so long goes in one request, such as rows and their boundary. Without, a producer's thread
begins with the first record alone, and the others wait until that one is acknowledged."""

BOOTSTRAP_TIMEOUT_MS = 5_000
_LET_GO_S = 0.2

# The clients tell of every connection that fails: during a cut that is many a second, and no news.
logging.getLogger("kafka").setLevel(logging.CRITICAL)


class Cluster:
    """Makes clients of one site's Kafka; each is its maker's to close. KafkaError if it is out of reach for too long."""

    def __init__(self, site: str, settings: Settings, client_id: str) -> None:
        self.site = site
        kafka = settings.sites[site]
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
        if site in settings.proxies:
            self._common["proxy_url"] = settings.proxies[site]

    def producer(self, *, transactional_id: str | None = None, patient: bool = True, **options: Any) -> KafkaProducer:
        """patient: idempotent, in order, and trying for ever. Otherwise what cannot be sent at once is forgotten, which
        is right for messages that are stale by the time that a cut has healed."""
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

    def consumer(self, *, read_committed: bool = False, **options: Any) -> KafkaConsumer:
        """Without a group: its partitions are assigned by hand, and it never jumps to another offset by itself."""
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

    def admin(self, **options: Any) -> KafkaAdminClient:
        return make_client(KafkaAdminClient, {**self._common, "request_timeout_ms": 10_000, **options})


def end_producer(producer: KafkaProducer, within_s: float) -> None:
    """Close a producer once Kafka has what is left in it; what it has not taken within so long is given up for good.

    kafka-python's `close` raises KafkaTimeoutError then, before it comes to end its thread, which would go on sending for as
    long as the process lives. Nothing public ends that thread.
    """
    try:
        producer.close(timeout=within_s)
    except KafkaTimeoutError:
        producer._sender.force_close()
        # Its thread lets go of what was left, and ends. A producer that is not closed by then closes itself as garbage, aloud.
        producer._sender.join(_LET_GO_S)
        with suppress(KafkaTimeoutError):
            producer.close(timeout=0)


def silence_producer(producer: KafkaProducer) -> None:
    """Send nothing more; returns at once. To be called where a send has failed, as its errback, before the next one begins.

    Where a broker has lost the end of a log, kafka-python gives up what is under way, and goes on with what comes after it:
    rows would be missing in between for good. Nothing public keeps it from that.
    """
    producer._sender.force_close()


def clusters(settings: Settings, client_id: str) -> dict[str, Cluster]:
    """All sites, by name in their order."""
    return {site: Cluster(site, settings, client_id) for site in settings.site_names}


def tell_of_trying_again(logger: logging.Logger, what: str, error: Exception) -> None:
    """What failed just now, and is tried again. An outage is told at debug level: whoever waits knows by the silence, and how
    long it lasts is in the status. What does not heal by itself, as a permission that is missing, is an error, told once."""
    if not isinstance(error, AuthorizationError | SaslAuthenticationFailedError):
        logger.debug("%s: %r", what, error)
    elif (what, type(error)) not in _told:
        _told.add((what, type(error)))
        logger.error("%s, and is tried again: %r", what, error)


_told: set[tuple[str, type[Exception]]] = set()
