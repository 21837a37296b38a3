"""Which topics an application that queries share reads, and which a query with one of its own has."""

from __future__ import annotations

import re
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.query.spec import load_query
from deployment.change_preview import refuse_other_structure
from deployment.layout import internal_topics, make_layout
from deployment.query_record import QueryRecord
from services.kafka.settings import KafkaSettings
from services.kafka.topics import query_topics
from spark_jobs.connector import shared_source_options
from tests.harness import query_of

SHARED: dict[str, Any] = {**query_of(), "engine": "spark", "delay_threshold": "9s"}
OWN = {**SHARED, "spark": {"application": "own"}}


def orders_of(query: dict[str, Any]) -> list[str]:
    topics = query_topics(make_layout(load_query(query), ("a",)))["a"]
    return [topic.name for topic in topics if topic.name.endswith("orders.r0")]


def test_a_shared_application_does_not_read_the_orders_of_a_query_with_one_of_its_own() -> None:
    pattern = re.compile(shared_source_options(KafkaSettings(bootstrap="k:1"), "r0")["subscribePattern"])
    [shared], [own] = (orders_of(query) for query in (SHARED, OWN))
    assert pattern.fullmatch(shared) and not pattern.fullmatch(own)
    assert all(internal_topics("q", ()).fullmatch(topic) for topic in (shared, own)), "they are deleted with it"


def test_which_application_it_has_changes_with_another_version() -> None:
    with pytest.raises(UserError, match="spark"):
        refuse_other_structure(QueryRecord("q", load_query(SHARED).dump(), 1), load_query(OWN))
