"""What is expected of hosts in other processes before any was measured."""

from __future__ import annotations

from typing import Any

import pytest

from boreal.query.notes import SPARK_ORDER_US
from boreal.query.spec import load_query
from deployment.operator_hosts import expected_threshold_us
from reconcile.engine import LATENCY_GUESS_US
from tests.harness import chain_of, query_of


@pytest.mark.parametrize(
    ("query", "least_ms"),
    [
        (query_of(engine="native"), 300),
        (query_of(engine="spark"), 1_050),
        (query_of(engine=["native", "spark"]), 1_050),
        (chain_of(2, engine="spark"), 1_833),
        (chain_of(3, engine="spark"), 2_666),
    ],
)
def test_the_least_threshold_grows_with_the_hosts_that_follow_each_other(query: dict[str, Any], least_ms: int) -> None:
    assert expected_threshold_us(load_query(query)) // 1_000 == least_ms


def test_fragments_beside_each_other_take_no_longer_than_one() -> None:
    operators = {
        "left": {"filter": "a", "where": "v > 1"},
        "right": {"filter": "b", "where": "v > 1"},
        "both": {"union": ["left", "right"]},
    }
    fragments = {f"of_{name}": {"operators": [name], "engine": "native" if name == "both" else "spark"} for name in operators}
    query = query_of(operators, "both", ("a", "b"), fragments=fragments)
    spread_us = 150_000  # a bucket and a boundary interval, since one of the two may hold it back for so much longer
    assert expected_threshold_us(load_query(query)) == 1_050_000 + spread_us


def test_the_planner_takes_an_order_to_spark_to_need_what_the_engine_does() -> None:
    assert LATENCY_GUESS_US * 3 // 2 == SPARK_ORDER_US
