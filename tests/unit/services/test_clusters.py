"""What is told of a Kafka that does not do what it is asked."""

from __future__ import annotations

import logging

import pytest
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError, TopicAuthorizationFailedError

from services.clusters import tell_of_trying_again


def test_what_does_not_heal_by_itself_is_told_aloud_and_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("boreal.test")
    caplog.set_level(logging.DEBUG, logger.name)
    for error in (KafkaConnectionError("away"), TopicAuthorizationFailedError("in"), SaslAuthenticationFailedError("no")):
        for _ in range(3):
            tell_of_trying_again(logger, "in cannot be read", error)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["DEBUG"] * 3 + ["ERROR"] * 2
    assert "in cannot be read, and is tried again: TopicAuthorizationFailedError" in caplog.text
