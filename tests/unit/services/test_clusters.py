"""What is told of a Kafka that does not do what it is asked, and which client serves where."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import (
    InvalidProducerEpochError,
    KafkaConnectionError,
    KafkaError,
    ProducerFencedError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
)
from kafka.producer.transaction_manager import TransactionManager

from boreal.client.kafka_clients import make_client
from boreal.model.errors import UserError
from services.kafka import clusters as clusters_module
from services.kafka.clusters import FOR_EVER_MS, Cluster, close_producer, is_fenced, log_retry
from services.kafka.settings import ClientChoice, KafkaSettings, ServiceSettings
from tests.waiting import wait


def test_what_does_not_heal_by_itself_is_told_aloud_and_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clusters_module, "_logged", set())
    logger = logging.getLogger("boreal.test")
    caplog.set_level(logging.DEBUG, logger.name)
    for error in (KafkaConnectionError("away"), TopicAuthorizationFailedError("in"), SaslAuthenticationFailedError("no")):
        for _ in range(3):
            log_retry(logger, "in cannot be read", error)
    levels = [record.levelname for record in caplog.records if record.name == logger.name]
    assert levels == ["DEBUG"] * 3 + ["ERROR"] * 2
    assert "in cannot be read, and is tried again: TopicAuthorizationFailedError" in caplog.text


@pytest.mark.parametrize("within_s", [0, 0.05])
def test_a_producer_that_has_ended_sends_no_more_whatever_was_left_in_it(within_s: float) -> None:
    options = {"bootstrap_servers": "127.0.0.1:1", "api_version": (2, 6), "delivery_timeout_ms": FOR_EVER_MS}
    producer = make_client(KafkaProducer, {**options, "client_id": "ended"})
    left = producer._accumulator.append(TopicPartition("in", 0), 0, None, b"value", [])[0]
    assert any(thread.name.startswith("ended") for thread in threading.enumerate())
    close_producer(producer, within_s)
    assert wait(lambda: not any(thread.name.startswith("ended") for thread in threading.enumerate()))
    assert left.failed()


@pytest.mark.parametrize("error", [ProducerFencedError(), InvalidProducerEpochError("a younger one")])
def test_a_fenced_writer_is_told_whether_its_call_or_the_thread_behind_it_learned_of_it_first(error: KafkaError) -> None:
    assert is_fenced(error) and is_fenced(KafkaError("an earlier request has failed", error))
    assert not is_fenced(KafkaError("an earlier request has failed", KafkaConnectionError("away")))
    failed = SimpleNamespace(has_error=lambda: True, _last_error=error)
    with pytest.raises(KafkaError) as told:
        TransactionManager._maybe_fail_with_error(failed)
    assert is_fenced(told.value), "the next call of a transaction has its text alone"
    assert not is_fenced(OSError(11, "no"))


def options_of(choice: ClientChoice, proxy: str | None = None) -> dict[str, object] | None:
    """Of librdkafka; None if kafka-python serves."""
    cluster = Cluster("a", ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:9")}), "test", proxy)
    return cluster.librdkafka_options("BOREAL_ROW_PRODUCER", choice)


def test_librdkafka_serves_unless_another_client_is_asked_for_or_there_is_a_proxy() -> None:
    proxy = "socks5://127.0.0.1:9"
    choices: tuple[ClientChoice, ...] = ("auto", "librdkafka")
    for choice in choices:
        found = options_of(choice)
        assert found is not None and found["bootstrap.servers"] == "127.0.0.1:9"
    assert options_of("kafka-python") is None
    assert options_of("auto", proxy) is None
    with pytest.raises(UserError, match="BOREAL_ROW_PRODUCER: knows no proxies"):
        options_of("librdkafka", proxy)


def test_where_librdkafka_is_not_installed_kafka_python_serves_or_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clusters_module, "find_spec", lambda name: None)
    assert options_of("auto") is None
    with pytest.raises(UserError, match=r"is not installed .*; pip install 'boreal\[librdkafka\]'"):
        options_of("librdkafka")
