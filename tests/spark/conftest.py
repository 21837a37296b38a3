"""One Spark session for all tests that use plain Spark in their own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from services.kafka.settings import ServiceSettings
from services.stack.servers import KafkaServer
from spark_jobs.session import close_session, open_session


@pytest.fixture(scope="package")
def session(kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = ServiceSettings(sites={"a": {"bootstrap": kafka.bootstrap}})  # type: ignore[dict-item]
    opened = open_session("test", settings, tmp_path_factory.mktemp("spark"))
    yield opened
    close_session(opened)
